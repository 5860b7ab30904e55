from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxd.events.effects import CallEffects
from jaxd.remote_values.lineage import (
    ArgumentSource,
    CallLineage,
    Lineage,
    NoLineage,
    PartLineage,
    Snapshot,
    values_lost_error,
    with_array_names,
)
from jaxd.request.call_request import CallRequest
from jaxd.results.reader import run_seconds
from jaxd_protocol.errors import ConnectionLost, ValuesDied, ValuesLost, WorkerLost
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import KEEP_ALL, ResultPolicy, new_call_number


def array(*shape: int, dtype: str = "float32") -> Any:
    return SimpleNamespace(shape=shape, dtype=dtype)


def test_a_worker_that_died_is_another_thing_than_a_session_that_was_given_up() -> None:
    """Who restores a state needs to know one type, who counts crashes another."""
    died, left = values_lost_error(with_worker=True), values_lost_error(with_worker=False)
    assert isinstance(died, ValuesDied)
    assert isinstance(died, ValuesLost | WorkerLost)
    assert not died.may_repeat
    assert type(left) is ValuesLost
    assert not isinstance(left, ConnectionLost)
    assert "--session-grace-s" in str(left)


def test_the_message_names_what_was_needed() -> None:
    """By kind, the most frequent ones first, and ends in what to do."""
    arrays = [array(4), *[array(2, 3)] * 3, *(array(n, dtype="int8") for n in range(4))]
    error = with_array_names(values_lost_error(with_worker=True), arrays, "train_step")
    assert isinstance(error, ValuesDied)
    text = str(error)
    assert "died with its worker; train_step needs 8 of them: 3 of float32[2,3], " in text
    assert "and 2 other kinds" in text
    assert text.endswith("from a checkpoint.")


@pytest.mark.parametrize("with_worker", [True, False])
def test_one_array(with_worker: bool) -> None:
    """A scalar has brackets with nothing in between."""
    text = str(
        with_array_names(values_lost_error(with_worker=with_worker), [array()], "this process")
    )
    assert "; this process needs 1 of them: float32[]. Make them" in text


def test_who_needed_them_before_is_not_named() -> None:
    """An error that is raised again at the next touch says what this touch needs."""
    once = with_array_names(values_lost_error(with_worker=True), [array(4)], "this process")
    twice = with_array_names(once, [array(2)], "double")
    assert str(twice) == str(
        with_array_names(values_lost_error(with_worker=True), [array(2)], "double")
    )


def test_other_advice_is_kept() -> None:
    """What to do depends on why they are gone."""
    error = with_array_names(
        ValuesLost("these arrays are the parent's. Bring them home first."), [array()]
    )
    assert str(error) == (
        "these arrays are the parent's; this process needs 1 of them: float32[]. "
        "Bring them home first."
    )


def test_what_a_long_loop_keeps_goes_at_once() -> None:
    """Without a recursion for each of its calls."""
    gone: list[int] = []
    lineage: Lineage = NoLineage(0, "it is the first")
    for number in range(1, 100_000):
        lineage = PartLineage(number, lineage, 0, (slice(1, None),))
    assert lineage.depth == 99_999
    lineage.on_gone = lambda: gone.append(1)
    del lineage
    assert gone == [1]


def lineage_of(*sources: Lineage, max_s: float = 100.0) -> CallLineage:
    """Of a call that takes the first result of each of these."""
    policy = ResultPolicy(new_call_number(), KEEP_ALL, -1)
    spec: Any = None
    call = CallRequest(spec, b"", b"", [memoryview(b"data")], None, "remote", result_policy=policy)
    taken = [ArgumentSource(leaf, each, 0, range(1)) for leaf, each in enumerate(sources)]
    return CallLineage(call, taken, CallEffects(), 4, (), max_s)


def test_the_time_of_calls_adds_up_one_after_the_other() -> None:
    """As their depth does: what was computed beside counts once, and a copy takes none."""
    first, other = lineage_of(), lineage_of()
    first.settle(10.0)
    other.settle(30.0)
    part = PartLineage(new_call_number(), other, 0, (0,))
    both = lineage_of(first, part, first)
    both.settle(5.0)
    assert (both.run_s, both.seconds, both.depth) == (5.0, 35.0, 3)
    from_copy = lineage_of(Snapshot(new_call_number(), {}))
    from_copy.settle(5.0)
    assert from_copy.seconds == 5.0


def test_what_would_take_too_long_is_not_kept() -> None:
    """Nor what is made of it, which may have been sent before that was known."""
    first = lineage_of()
    second = lineage_of(first)
    third = lineage_of(second)
    for each in (first, second, third):
        each.settle(60.0)
    assert (first.obstacle, len(first.call.buffers)) == ("", 1)
    for each in (second, third):
        assert "more than 100 s (JAXD_LINEAGE_S)" in each.obstacle
        assert (each.call.buffers, each.sources) == ((), ())


@pytest.mark.parametrize("told", [(), (b"",), (b"", "1"), (b"", 3), (b"", float("nan"))])
def test_a_time_that_is_none_counts_for_nothing(told: tuple[Any, ...]) -> None:
    """Whatever a server says."""
    assert run_seconds((OK, b"", b"", b"", b"", *told)) == 0.0
    assert run_seconds((OK, b"", b"", b"", b"", b"", 1.5)) == 1.5
