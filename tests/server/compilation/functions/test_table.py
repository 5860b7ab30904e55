from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import ConnectionLost, ProtocolError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.transforms import encode_transformation
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.functions.table import FunctionReplaced, Functions
from tests.server.in_process import PLAIN, Source, program_cache_in
from tests.server.staging import PATIENCE_S, at_once, join, start, until, waiting


def _double(x: Any) -> Any:
    return 2 * x


GRAD = encode_transformation("grad", {"argnums": 0})


def test_a_function_is_asked_for_once_whoever_calls_it_and_with_which_options() -> None:
    """Its code travels once; with other options it is another function of the same code."""
    functions = Functions()
    source, same = (Source(_double, Options(keep_unused=True)) for _ in range(2))
    plain, slope = Source(_double), Source(_double, Options(transformations=(GRAD,)))
    first = functions.obtain(source.key, source)
    assert (first.function(2), first.key, first.name) == (4, source.key, "_double")
    assert first.options.keep_unused
    assert functions.obtain(same.key, same) is first
    second, found = (functions.obtain(each.key, each) for each in (plain, slope))
    assert (second.function is first.function, second.key != first.key) == (True, True)
    assert (float(found.function(3.0)), found.parameters) == (2.0, ("x",))
    assert (found.name, found.described.name) == ("grad(_double)", "_double")
    asked = [each.asked for each in (source, same, plain, slope)]
    assert asked == [["describe", "code"], [], ["describe"], ["describe"]]
    assert len(functions) == 3


def test_on_no_device_in_particular_a_function_has_one_key() -> None:
    """Of one in doubt nothing is known: its key stays its own."""
    there = Options(device=2)
    sources = (Source(_double), Source(_double, there), _doubted(there))
    plain, placed, doubted = (Functions().obtain(each.key, each) for each in sources)
    assert placed.key != plain.key
    assert (placed.plain_key, plain.plain_key) == (plain.key, plain.key)
    assert doubted.plain_key == doubted.key


@pytest.mark.parametrize("clients", [1, 8])
def test_many_calls_of_a_new_function_send_its_code_once(clients: int) -> None:
    """Each client says what it means by the key, once, and all have the same function."""
    functions, sources = Functions(), [Source(_double) for _ in range(clients)]

    def obtain(index: int) -> Any:
        source = sources[index % clients]
        return functions.obtain(source.key, source).function

    assert len({id(function) for function in at_once(8, obtain)}) == 1
    assert sum(source.asked.count("code") for source in sources) == 1
    assert max(source.asked.count("describe") for source in sources) == 1


class Leaving(Source):
    """A client that takes its time when it is asked, and goes away if it `leaves`."""

    leaves = True

    def __init__(self, verb: str) -> None:
        super().__init__(_double)
        self.asked_now, self.gone = threading.Event(), threading.Event()
        self._verb = verb

    def describe(self, key: bytes) -> Any:
        """Leaves, if this is the moment."""
        self._leave("describe")
        return super().describe(key)

    def code(self, fingerprint: bytes) -> Any:
        """Leaves, if this is the moment."""
        self._leave("code")
        return super().code(fingerprint)

    def _leave(self, verb: str) -> None:
        if verb == self._verb:
            self.asked_now.set()
            assert self.gone.wait(PATIENCE_S)
            if self.leaves:
                raise ConnectionLost("the client went away")


def _lose(functions: Functions, leaving: Leaving) -> None:
    with pytest.raises(ConnectionLost):
        functions.obtain(leaving.key, leaving)


def test_a_client_that_leaves_while_it_sends_code_does_not_fail_the_others() -> None:
    """Who waits for the same code is asked instead."""
    functions = Functions()
    leaving, staying = Leaving("code"), Source(_double)
    outcomes: list[Any] = []
    threads = [start(_lose, functions, leaving)]
    assert leaving.asked_now.wait(PATIENCE_S)
    threads.append(start(lambda: outcomes.append(functions.obtain(staying.key, staying))))
    until(lambda: waiting(functions._receiving._flights[staying.fingerprint]._condition))
    leaving.gone.set()
    join(threads)
    assert [function.function(2) for function in outcomes] == [4]


def test_a_client_that_leaves_while_it_describes_keeps_nobody_waiting() -> None:
    """Others say for themselves what they mean."""
    functions = Functions()
    leaving, staying = Leaving("describe"), Source(_double)
    thread = start(_lose, functions, leaving)
    assert leaving.asked_now.wait(PATIENCE_S)
    assert functions.obtain(staying.key, staying).function(2) == 4
    leaving.gone.set()
    join([thread])


def test_a_description_of_another_function_is_refused() -> None:
    """One client must not be able to put its code under another's name."""
    functions = Functions()
    honest, liar = Source(_double), Source(lambda x: -x)
    with pytest.raises(ProtocolError, match="another function"):
        functions.obtain(honest.key, liar)
    assert functions.obtain(honest.key, honest).function(2) == 4


def _doubted(options: Options = PLAIN) -> Source:
    """A client that sends other code than its fingerprint says."""
    source = Source(_double, options)
    source.code_ = Source(lambda x: -x).code_
    return source


def test_other_code_than_the_fingerprint_says_is_its_own_client_s() -> None:
    """It gets what it sent, under a key that is nobody else's, and is told so."""
    functions = Functions()
    liar, another, honest = _doubted(), _doubted(), Source(_double)
    private, others, shared = (functions.obtain(one.key, one) for one in (liar, another, honest))
    assert (private.function(2), shared.function(2)) == (-2, 4)
    assert "is not shared" in str(private.doubt)
    assert len({private.key, others.key, liar.key}) == 3
    assert (shared.key, shared.doubt) == (honest.key, None)
    assert liar.asked == another.asked == ["describe", "code"]


def test_a_function_in_doubt_is_asked_for_once() -> None:
    """By its own client."""
    functions, liar = Functions(), _doubted()
    private = functions.obtain(liar.key, liar)
    assert functions.obtain(liar.key, liar) is private
    assert liar.asked == ["describe", "code"]


def test_whoever_waited_for_code_in_doubt_sends_its_own() -> None:
    """What one client sent must not answer the other."""
    functions = Functions()
    liar, honest = Leaving("code"), Source(_double)
    liar.code_ = Source(lambda x: -x).code_
    liar.leaves = False
    outcomes: dict[str, Any] = {}

    def obtain(name: str, source: Source) -> None:
        outcomes[name] = functions.obtain(source.key, source).function(2)

    threads = [start(obtain, "liar", liar)]
    assert liar.asked_now.wait(PATIENCE_S)
    threads.append(start(obtain, "honest", honest))
    until(lambda: waiting(functions._receiving._flights[honest.fingerprint]._condition))
    liar.gone.set()
    join(threads)
    assert outcomes == {"liar": -2, "honest": 4}
    assert honest.asked == ["describe", "code"]


def test_a_function_that_is_known_after_all_answers_whoever_knew_only_doubt() -> None:
    """One that is verified is found before one that is private."""
    functions = Functions()
    source = _doubted()
    private = functions.obtain(source.key, source)
    honest = Source(_double)
    shared = functions.obtain(honest.key, honest)
    assert private is not shared
    assert functions.obtain(source.key, source) is shared


class _Fragile:
    """Is made by `_restore_fragile` when it arrives."""

    def __reduce__(self) -> Any:
        return _restore_fragile, ()


def _restore_fragile() -> Any:
    import builtins

    if getattr(builtins, "jaxd_test_is_broken", False):
        raise ImportError("no module named 'flux'")
    return lambda x: x


def test_a_function_that_cannot_be_unpacked_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says why, and the next call tries again."""
    functions = Functions()
    source = Source(_Fragile())  # type: ignore[arg-type]
    with monkeypatch.context() as broken:
        broken.setattr("builtins.jaxd_test_is_broken", True, raising=False)
        with pytest.raises(ImportError, match="flux"):
            functions.obtain(source.key, source)
    assert len(functions) == 0
    assert functions.obtain(source.key, source).function(5) == 5


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ProgramCache]:
    """What is kept on disk: nothing so far."""
    cache = program_cache_in(str(tmp_path / "cache"))
    yield cache
    cache.close()


def left(cache: ProgramCache, source: Source, code: bytes | None = None) -> Functions:
    """The functions of a process that follows one which kept this one, and perhaps other code."""
    cache.keep_function(Functions(program_cache=cache).obtain(source.key, source))
    cache.flush()
    if code is not None:
        cache.keep_code(source.fingerprint, code)
        cache.flush()
    source.asked.clear()
    return Functions(program_cache=cache)


def test_a_function_on_disk_is_known_without_its_code(cache: ProgramCache) -> None:
    """Nobody is asked, and nothing is unpacked until it is needed; of other options neither."""
    source, other = Source(_double), Source(_double, Options(inline=True))
    functions = left(cache, source)
    function = functions.obtain(source.key, source)
    assert (function.name, function.parameters, function.unpacked) == ("_double", ("x",), None)
    assert function.is_lasting
    for _ in range(2):
        functions.unpack(function, source)
        assert function.function(2) == 4
        assert functions.obtain(source.key, source) is function
    assert source.asked == []
    assert Functions(program_cache=cache).obtain(other.key, other).function(2) == 4
    assert other.asked == ["describe"]


def test_what_a_client_sent_is_kept_once_it_is_checked(cache: ProgramCache) -> None:
    """Code in doubt is not."""
    honest, liar = Source(_double), _doubted()
    functions = Functions(program_cache=cache)
    functions.obtain(liar.key, liar)
    assert cache.code(honest.fingerprint) is None
    functions.obtain(honest.key, honest)
    assert cache.code(honest.fingerprint) == bytes(honest.code_)


def test_code_on_disk_that_is_another_function_by_now_is_replaced(cache: ProgramCache) -> None:
    """The caller has to look again, and finds what its client says."""
    source = Source(_double)
    functions = left(cache, source, bytes(Source(lambda x: -x).code_))
    function = functions.obtain(source.key, source)
    with pytest.raises(FunctionReplaced):
        functions.unpack(function, source)
    cache.flush()
    assert cache.function(source.key) is None
    again = functions.obtain(source.key, source)
    assert (again.function(2), again.key) == (4, source.key)
    assert cache.code(source.fingerprint) == bytes(source.code_)
    assert source.asked == ["describe", "code"]


@pytest.mark.parametrize("code", [b"", b"garbage"])
def test_code_on_disk_that_cannot_be_unpacked_is_asked_for(
    cache: ProgramCache, code: bytes
) -> None:
    """Its client has it as well; the next process finds that."""
    source = Source(_double)
    functions = left(cache, source, code)
    function = functions.obtain(source.key, source)
    functions.unpack(function, source)
    assert function.function(2) == 4
    assert source.asked == ["code"]
    cache.flush()
    assert cache.code(source.fingerprint) == bytes(source.code_)


def test_many_who_need_the_code_on_disk_unpack_it_once(cache: ProgramCache) -> None:
    """All of them have the same function."""
    source = Source(_double)
    functions = left(cache, source)

    def obtain(_: int) -> Any:
        function = functions.obtain(source.key, source)
        functions.unpack(function, source)
        return function.function

    assert len({id(outcome) for outcome in at_once(8, obtain)}) == 1
