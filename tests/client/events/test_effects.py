"""Effects of a call that is sent again: none happens twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jaxd.events.effects import Answer, CallEffects
from jaxd_protocol.errors import CallbackError
from tests.end_to_end.gates import in_thread


def answered_once(effects: CallEffects, call: Callable[[], Answer], place: int) -> Answer:
    """The answer for a call that is not made again."""
    return effects.answer((), (), call, place, is_recorded=False)


def is_new(effects: CallEffects, *texts: str) -> list[str]:
    """Those of the texts that are new."""
    return [text for text in texts if not effects.is_repeated_output(("print", text))]


def test_what_a_lost_attempt_emitted_is_not_emitted_again() -> None:
    """As often as it was emitted, in whatever order; what comes then is new."""
    effects = CallEffects()
    assert is_new(effects, "a", "b", "a") == ["a", "b", "a"]
    effects.begin_attempt()
    assert is_new(effects, "b", "a", "a", "a", "c") == ["a", "c"]


def test_an_attempt_that_is_not_lost_may_repeat_itself() -> None:
    """A loop prints the same again and again."""
    assert is_new(CallEffects(), *["a"] * 5) == ["a"] * 5


def test_a_call_with_endless_output_takes_a_bounded_room() -> None:
    """What is not counted is emitted again."""
    effects = CallEffects()
    texts = [str(number) for number in range(100_500)]
    assert is_new(effects, *texts) == texts
    effects.begin_attempt()
    assert is_new(effects, *texts) == texts[100_000:]
    assert len(effects._emitted) == 100_000


def test_a_function_is_called_back_once_for_each_question() -> None:
    """A repeated attempt gets the answers of the one before it, whatever the order."""
    effects, calls = CallEffects(), iter(range(10))

    def ask(question: bytes, data: bytes = b"") -> Any:
        return effects.answer((question,), [memoryview(data)], lambda: (next(calls), []))[0]

    assert [ask(b"a"), ask(b"b"), ask(b"a"), ask(b"a", b"x")] == [0, 1, 2, 3]
    effects.begin_attempt()
    assert [ask(b"b"), ask(b"a", b"x"), ask(b"a"), ask(b"a"), ask(b"a")] == [1, 3, 0, 2, 4]
    assert effects.are_recorded


def test_what_calls_back_with_other_arguments_than_before_calls_nothing() -> None:
    """On another worker a program may compute something else, in the last bits: no effect twice."""
    effects, calls = CallEffects(), list[bytes]()

    def ask(question: bytes, data: bytes) -> None:
        def called() -> Any:
            calls.append(data)
            return None, []

        effects.answer((question,), [memoryview(data)], called)

    ask(b"log", b"1.0")
    ask(b"log", b"2.0")
    ask(b"save", b"2.0")
    effects.begin_attempt()
    ask(b"log", b"1.0")
    with pytest.raises(CallbackError, match="other arguments than before"):
        ask(b"log", b"2.1")
    assert calls == [b"1.0", b"2.0", b"2.0"]
    effects.begin_attempt()
    ask(b"save", b"2.0")
    ask(b"log", b"2.0")
    ask(b"log", b"1.0")
    ask(b"log", b"3.0")
    assert calls.count(b"2.0") == 2
    assert calls[-1] == b"3.0"


def test_a_call_that_is_over_has_no_effects_when_it_is_made_again() -> None:
    """It prints nothing, and calls nothing back that it did not before."""
    effects = CallEffects()
    effects.answer((b"a",), [], lambda: (1, []))
    muted = effects.muted()
    assert muted.is_repeated_output(("print", "new"))
    assert muted.answer((b"a",), [], lambda: pytest.fail("called")) == (1, [])
    with pytest.raises(CallbackError, match="Nothing is called"):
        muted.answer((b"b",), [], lambda: pytest.fail("called"))


def test_answers_that_are_too_large_are_not_kept() -> None:
    """Such a call cannot be made again."""
    effects = CallEffects()
    large = [memoryview(bytes(1 << 25))]
    assert effects.answer((b"a",), [], lambda: (1, large)) == (1, large)
    assert not effects.are_recorded
    effects.begin_attempt()
    with pytest.raises(CallbackError, match="not called twice"):
        effects.answer((b"a",), [], lambda: pytest.fail("called"))


def test_an_attempt_waits_for_a_function_that_the_one_before_has_called() -> None:
    """It runs once, though its answer comes when the connection is another one."""
    effects, gate, started = CallEffects(), threading.Event(), threading.Event()

    def slow() -> Any:
        started.set()
        assert gate.wait(20)
        return 1, []

    first = in_thread(effects.answer, (b"a",), [], slow)
    assert started.wait(20)
    effects.begin_attempt()
    second = in_thread(effects.answer, (b"a",), [], lambda: pytest.fail("called"))
    gate.set()
    assert first.result(20) == second.result(20) == (1, [])


def test_a_program_that_goes_on_asks_again_for_what_has_no_answer() -> None:
    """By the place of the question; the same one at another place is asked as ever."""
    effects, calls = CallEffects(), iter(range(10))
    ask: Any = {
        "recorded": lambda place: effects.answer((b"a",), [], lambda: (next(calls), []), place)[0],
        "once": lambda place: answered_once(effects, lambda: (next(calls), []), place)[0],
    }
    for kind in ("recorded", "once"):
        effects, calls = CallEffects(), iter(range(10))
        assert [ask[kind](place) for place in (0, 1, 2, 2, 3, 1)] == [0, 1, 2, 2, 3, 1]
        assert effects.are_recorded == (kind == "recorded")


def test_a_call_made_again_begins_with_the_first_question() -> None:
    """Places are those of one run of the program."""
    effects, calls = CallEffects(), iter(range(10))

    def ask(question: bytes, place: int) -> Any:
        return effects.answer((question,), [], lambda: (next(calls), []), place)[0]

    assert [ask(b"a", 0), ask(b"b", 1)] == [0, 1]
    effects.begin_attempt()
    assert [ask(b"b", 0), ask(b"a", 1), ask(b"a", 2)] == [1, 0, 2]


def test_of_a_program_that_goes_on_the_last_answers_are_kept() -> None:
    """The others, and what is too large, are refused and not called twice."""
    effects, half = CallEffects(), [memoryview(bytes(1 << 19))]
    for place in range(4):
        answered_once(effects, lambda: (0, half), place)
    assert answered_once(effects, lambda: pytest.fail("called"), 3) == (0, half)
    large = [memoryview(bytes(1 << 21))]
    assert answered_once(effects, lambda: (4, large), 4) == (4, large)
    for place in (0, 4):
        with pytest.raises(CallbackError, match="not called twice"):
            answered_once(effects, lambda: pytest.fail("called"), place)


@pytest.mark.parametrize("step", [1, 5000])
def test_a_server_that_leaves_questions_out_fills_no_memory(step: int) -> None:
    """Threads of a program may ask out of order, but not for ever before the first has come."""
    effects, most = CallEffects(), 256 if step == 1 else 0

    def ask(place: int) -> Any:
        return answered_once(effects, lambda: ((), [memoryview(bytes(1 << 16))]), place)

    for number in range(most):
        ask((number + 1) * step)
    with pytest.raises(CallbackError, match="leaves out questions"):
        ask((most + 1) * step)
    assert ask(0)[0] == ()
