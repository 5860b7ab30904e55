from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd_protocol.calls import Options
from jaxd_protocol.errors import ConnectionLost, ProtocolError
from jaxd_server.functions import Functions
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


def test_many_calls_of_a_new_function_ask_once() -> None:
    """Whichever client is asked, the others wait."""
    functions = Functions()
    sources = [Source(_double) for _ in range(8)]
    outcomes = at_once(8, lambda index: functions.obtain(sources[index].key, sources[index]))
    assert len({id(function) for function in outcomes}) == 1
    assert sorted(verb for source in sources for verb in source.asked) == ["code", "describe"]


class Leaving(Source):
    """A client that goes away while it is asked."""

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
            raise ConnectionLost("the client went away")


@pytest.mark.parametrize("verb", ["describe", "code"])
def test_a_client_that_leaves_does_not_fail_the_others(verb: str) -> None:
    """Who waits for its answer is asked instead."""
    functions = Functions()
    leaving, staying = Leaving(verb), Source(_double)
    outcomes: list[Any] = []

    def leave() -> None:
        with pytest.raises(ConnectionLost):
            functions.obtain(leaving.key, leaving)

    threads = [start(leave)]
    assert leaving.asked_now.wait(PATIENCE_S)
    threads.append(start(lambda: outcomes.append(functions.obtain(staying.key, staying))))
    until(lambda: waiting(functions._flights._flights[staying.key]._condition))
    leaving.gone.set()
    join(threads)
    assert [function.function(2) for function in outcomes] == [4]


def test_a_description_of_another_function_is_refused() -> None:
    """One client must not be able to put its code under another's name."""
    functions = Functions()
    honest, liar = Source(_double), Source(lambda x: -x)
    with pytest.raises(ProtocolError, match="another function"):
        functions.obtain(honest.key, liar)
    assert functions.obtain(honest.key, honest).function(2) == 4


def test_other_code_than_the_fingerprint_says_is_refused() -> None:
    """It is not even unpacked."""
    functions = Functions()
    source = Source(_double)
    honest = source.code_
    source.code_ = Source(lambda x: -x).code_
    with pytest.raises(ProtocolError, match="other code"):
        functions.obtain(source.key, source)
    source.code_ = honest
    assert functions.obtain(source.key, source).function(2) == 4


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
