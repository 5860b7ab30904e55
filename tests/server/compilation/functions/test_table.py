from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd_protocol.errors import ConnectionLost, ProtocolError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.transforms import encode_transformation
from jaxd_protocol.messages.recorded_reads import ProcessRead
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.compilation.functions.table import FunctionReplaced, Functions
from tests.server.in_process import Source
from tests.server.staging import PATIENCE_S, at_once, join, start, until, waiting


def test_an_unknown_function_is_asked_for() -> None:
    """What comes back is the function, under its name and with its options."""
    functions = Functions()
    source = Source(lambda x: x + 1, Options(keep_unused=True))
    function = functions.obtain(source.key, source)
    assert function.function(1) == 2
    assert (function.key, function.name) == (source.key, "<lambda>")
    assert function.options.keep_unused
    assert len(functions) == 1


def test_a_known_function_is_not_asked_for_again() -> None:
    """Not even by another client."""
    functions = Functions()
    source, other = Source(_double), Source(_double)
    first = functions.obtain(source.key, source)
    assert functions.obtain(other.key, other) is first
    assert (source.asked, other.asked) == (["describe", "code"], [])


def _double(x: Any) -> Any:
    return 2 * x


def test_the_code_travels_once_for_all_options() -> None:
    """Another option makes another function of the same code."""
    functions = Functions()
    plain, other = Source(_double), Source(_double, Options(inline=True))
    first, second = (functions.obtain(source.key, source) for source in (plain, other))
    assert first.function is second.function
    assert first.key != second.key
    assert other.asked == ["describe"]


def test_a_transformed_function_is_one_of_the_same_code() -> None:
    """Traced behind its transformations, and called so for people; the client's name stays."""
    functions = Functions()
    grad = encode_transformation("grad", {"argnums": 0})
    plain, slope = Source(_double), Source(_double, Options(transformations=(grad,)))
    functions.obtain(plain.key, plain)
    found = functions.obtain(slope.key, slope)
    assert (float(found.function(3.0)), found.parameters) == (2.0, ("x",))
    assert (found.name, found.described.name) == ("grad(_double)", "_double")
    assert slope.asked == ["describe"]


def test_many_calls_of_a_new_function_ask_once() -> None:
    """All those of one client."""
    functions = Functions()
    source = Source(_double)
    outcomes = at_once(8, lambda index: functions.obtain(source.key, source))
    assert len({id(function) for function in outcomes}) == 1
    assert source.asked == ["describe", "code"]


def test_many_clients_with_the_same_new_function_send_its_code_once() -> None:
    """Each of them says what it means by the key, and has the same function."""
    functions = Functions()
    sources = [Source(_double) for _ in range(8)]
    outcomes = at_once(8, lambda index: functions.obtain(sources[index].key, sources[index]))
    assert len({id(function.function) for function in outcomes}) == 1
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


def _doubted() -> Source:
    """A client that sends other code than its fingerprint says."""
    source = Source(_double)
    source.code_ = Source(lambda x: -x).code_
    return source


def test_other_code_than_the_fingerprint_says_is_its_own_client_s() -> None:
    """It gets what it sent, under a key that is nobody else's, and is told so."""
    functions = Functions()
    liar, honest = _doubted(), Source(_double)
    private, shared = (functions.obtain(each.key, each) for each in (liar, honest))
    assert (private.function(2), shared.function(2)) == (-2, 4)
    assert "is not shared" in str(private.doubt)
    assert private.key not in (liar.key, shared.key)
    assert (shared.key, shared.doubt) == (honest.key, None)


def test_a_function_in_doubt_is_asked_for_once_and_by_each_client() -> None:
    """Two that doubt alike have nothing in common."""
    functions = Functions()
    first, second = _doubted(), _doubted()
    mine = functions.obtain(first.key, first)
    assert functions.obtain(first.key, first) is mine
    assert functions.obtain(second.key, second).key != mine.key
    assert first.asked == second.asked == ["describe", "code"]


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


class OnDisk:
    """What an earlier process has left: one function, and perhaps other code."""

    def __init__(
        self, source: Source, code: bytes | None = None, *, described: bool = True
    ) -> None:
        said = source.describe(source.key)
        source.asked.clear()
        self.described: Described | None = said if described else None
        self.codes = {source.fingerprint: bytes(source.code_) if code is None else code}
        self.forgotten: list[bytes] = []
        self.known_reads: tuple[ProcessRead, ...] = ()

    def function(self, key: bytes) -> Function | None:
        """Not unpacked."""
        if self.described is None:
            return None
        return Function(key, self.described, parameters=("x",))

    def code(self, fingerprint: bytes) -> bytes | None:
        """The packed function."""
        return self.codes.get(fingerprint)

    def keep_code(self, fingerprint: bytes, code: bytes) -> None:
        """Takes a packed function."""
        self.codes[fingerprint] = code

    def reads(self, fingerprint: bytes) -> tuple[ProcessRead, ...]:
        """What it is known to read."""
        return self.known_reads

    def keep_reads(self, fingerprint: bytes, reads: tuple[ProcessRead, ...]) -> None:
        """Takes what it reads."""
        self.known_reads = reads

    def keep_function(self, function: Function) -> None:
        """Takes what a key stands for."""
        self.described = function.described

    def forget_function(self, function: Function) -> None:
        """Takes note of it."""
        self.forgotten.append(function.key)
        self.described = None
        self.codes.pop(function.described.fingerprint, None)


def test_a_function_on_disk_is_known_without_its_code() -> None:
    """Nobody is asked, and nothing is unpacked until it is needed."""
    source = Source(_double)
    functions = Functions(program_cache=OnDisk(source))
    function = functions.obtain(source.key, source)
    assert (function.name, function.parameters, function.unpacked) == ("_double", ("x",), None)
    assert function.is_lasting
    functions.unpack(function, source)
    assert function.function(2) == 4
    assert functions.obtain(source.key, source) is function
    functions.unpack(function, source)
    assert source.asked == []


def test_code_on_disk_spares_the_client_the_sending() -> None:
    """Of another option of the same code, say: only that has to be described."""
    source = Source(_double)
    functions = Functions(program_cache=OnDisk(source, described=False))
    assert functions.obtain(source.key, source).function(2) == 4
    assert source.asked == ["describe"]


def test_what_a_client_sent_is_kept_once_it_is_checked() -> None:
    """Code in doubt is not."""
    honest, liar = Source(_double), _doubted()
    disk = OnDisk(honest, described=False)
    disk.codes.clear()
    functions = Functions(program_cache=disk)
    functions.obtain(liar.key, liar)
    assert disk.codes == {}
    functions.obtain(honest.key, honest)
    assert disk.codes == {honest.fingerprint: bytes(honest.code_)}


def test_code_on_disk_that_is_another_function_by_now_is_replaced() -> None:
    """The caller has to look again, and finds what its client says."""
    source = Source(_double)
    disk = OnDisk(source, bytes(Source(lambda x: -x).code_))
    functions = Functions(program_cache=disk)
    function = functions.obtain(source.key, source)
    with pytest.raises(FunctionReplaced):
        functions.unpack(function, source)
    assert disk.forgotten == [source.key]
    assert source.asked == ["describe", "code"]
    again = functions.obtain(source.key, source)
    assert again.function(2) == 4
    assert again.key == source.key
    assert disk.codes == {source.fingerprint: bytes(source.code_)}
    assert source.asked == ["describe", "code"]


@pytest.mark.parametrize("code", [b"", b"garbage"])
def test_code_on_disk_that_cannot_be_unpacked_is_asked_for(code: bytes) -> None:
    """Its client has it as well; the next process finds that."""
    source = Source(_double)
    disk = OnDisk(source, code)
    functions = Functions(program_cache=disk)
    function = functions.obtain(source.key, source)
    functions.unpack(function, source)
    assert function.function(2) == 4
    assert source.asked == ["code"]
    assert disk.codes == {source.fingerprint: bytes(source.code_)}


def test_many_who_need_the_code_on_disk_unpack_it_once() -> None:
    """All of them have the same function."""
    source = Source(_double)
    functions = Functions(program_cache=OnDisk(source))

    def obtain(_: int) -> Any:
        function = functions.obtain(source.key, source)
        functions.unpack(function, source)
        return function.function

    assert len({id(outcome) for outcome in at_once(8, obtain)}) == 1
