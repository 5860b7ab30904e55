from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ArgumentError, ValueDeleted, ValuesFull
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import (
    CACHED_AS_VALUE,
    KEEP_ALL,
    KEEP_NONE,
    DataLocation,
    first_value_id,
    pack_ids,
    pack_locations,
)
from jaxd_protocol.messages.failures import ForwardedFailure, decode_failure
from jaxd_server.codec.results import result_layout
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.execution.call import Client
from jaxd_server.execution.run import Run
from jaxd_server.values.store import ValueStore
from tests.server.execution.test_pipeline import double, failure
from tests.server.in_process import PipelineHarness, Source
from tests.server.value_desks import ValueServiceRig
from tests.spans import leaves_in

DONATES = Options(donate_argnums=(0,))
X: Any = np.arange(3, dtype=np.float32)


def step(state: Any, batch: Any) -> Any:
    return state + batch, (state * batch).sum()


def same(x: Any) -> Any:
    return x


def twice(x: Any) -> Any:
    y = x + 1
    return y, y


def fails(state: Any, batch: Any) -> Any:
    def check(x: Any) -> Any:
        if x > 100:
            raise ZeroDivisionError("on the device")
        return x

    return state + jax.pure_callback(check, np.zeros((), np.float32), batch.sum())


def answer(
    harness: PipelineHarness, rig: ValueServiceRig, source: Source, *args: Any, **stay: int
) -> Any:
    """Skeleton, blob, buffers and the numbers of what was given up; raises what went wrong."""
    value, buffers = harness.answer(rig.call(source, *args, **stay))
    if value[0] == FAILED:
        raise decode_failure(value[1])
    assert value[0] == OK
    return value[1], value[2], list(buffers), leaves_in(value[3])


def test_what_the_client_has_as_well_is_not_given_up(harness: PipelineHarness) -> None:
    """The call was given another copy of it: the value can be used again."""
    rig, source = ValueServiceRig(), Source(step, DONATES)
    (number,) = rig.put(X)
    rig.own.get(number).copied = True
    for _ in range(3):
        assert (
            answer(harness, rig, source, rig.ref(number), X, above=KEEP_NONE, home=KEEP_NONE)[3]
            == ()
        )
    assert rig.fetch(number)[0].tolist() == X.tolist()


def test_what_was_not_kept_is_in_the_reply(harness: PipelineHarness) -> None:
    """Behind all else, with and without results that stay."""
    rig, source = ValueServiceRig(ValueStore(limit=10)), Source(same)
    call = rig.call(source, X, above=KEEP_NONE, home=KEEP_NONE)
    call.elsewhere = pack_locations([DataLocation(0, CACHED_AS_VALUE, 7)])
    value, _ = harness.answer(call)
    assert value[3:] == (b"", b"", pack_ids([7]))
    call.stay = None
    value, _ = harness.answer(call)
    assert value[3:] == (b"", b"", pack_ids([7]))
    call.elsewhere, call._rows = b"", None
    call.not_kept = ()
    value, _ = harness.answer(call)
    assert value[3:] == ()


def test_a_result_stays_where_it_was_made(harness: PipelineHarness) -> None:
    """Under numbers that its client knows beforehand, cold and warm."""
    rig, source = ValueServiceRig(), Source(step)
    for _ in range(2):
        _, blob, buffers, given_up = answer(harness, rig, source, X, X)
        assert (blob, buffers, given_up) == (b"", [], ())
        new, loss = (first_value_id(rig.number) + leaf for leaf in (0, 1))
        assert [array.tolist() for array in rig.fetch(new, loss)] == [[0, 2, 4], 5.0]
    assert (len(rig.values), rig.values.nbytes) == (4, 32)
    assert {row["what"] for row in rig.holders()["holders"]} == {"step"}


def test_small_leaves_stay_and_come_home(harness: PipelineHarness) -> None:
    """Larger ones only stay; and those that need not stay only come home."""
    rig, source = ValueServiceRig(), Source(step)
    _, blob, buffers, _ = answer(harness, rig, source, X, X, above=-1, home=4)
    assert np.frombuffer(blob, np.float32).tolist() == [5.0]
    assert (buffers, len(rig.values)) == ([], 2)
    _, blob, _, _ = answer(harness, rig, source, X, X, above=4, home=4)
    assert np.frombuffer(blob, np.float32).tolist() == [5.0]
    assert len(rig.values) == 3
    _, blob, _, _ = answer(harness, rig, source, X, X, above=KEEP_NONE, home=KEEP_NONE)
    assert len(blob) == 16 + 4
    assert len(rig.values) == 3


def test_a_value_is_taken_without_moving(harness: PipelineHarness) -> None:
    """And is still there; the executable is that of the array itself."""
    rig, source = ValueServiceRig(), Source(step)
    (number,) = rig.put(X)
    answer(harness, rig, source, X, X)
    answer(harness, rig, source, rig.ref(number), X)
    assert rig.fetch(first_value_id(rig.number))[0].tolist() == [0, 2, 4]
    assert rig.fetch(number)[0].tolist() == X.tolist()
    assert harness.counts() == (1, 1)
    rig = ValueServiceRig()
    source = Source(lambda key: (jax.random.split(key), jnp.arange(4, dtype=jnp.bfloat16), 1.0))
    (key,) = rig.put(jax.random.key(1))
    answer(harness, rig, source, rig.ref(key))
    first = first_value_id(rig.number)
    keys, numbers, weak = (rig.own.get(first + leaf).leaf for leaf in range(3))
    assert (keys.tag, keys.shape, keys.impl) == ("K", (2, 2), "threefry2x32")
    assert (numbers.dtype, numbers.shape, weak.weak) == ("bfloat16", (4,), True)
    again = Source(lambda keys, n, w: (keys, n * w))
    answer(harness, rig, again, *(rig.ref(first + leaf) for leaf in range(3)))


def test_what_is_donated_is_gone(harness: PipelineHarness) -> None:
    """The reply says so, and its memory is the result's; what has a name is not used up."""
    rig, source = ValueServiceRig(), Source(step, DONATES)
    (state,) = rig.put(X)
    for _ in range(3):
        _, _, _, given_up = answer(harness, rig, source, rig.ref(state), X)
        assert given_up == (0,)
        with pytest.raises(ValueDeleted):
            rig.fetch(state)
        state = first_value_id(rig.number)
    assert rig.fetch(state)[0].tolist() == [0, 4, 8]
    assert len(rig.values) == 1 + 3  # the losses
    rig, source = ValueServiceRig(), Source(step, DONATES)
    (state,) = rig.put(X)
    rig.name("state", state)
    answer(harness, rig, source, rig.ref(state), X)
    with pytest.raises(ValueDeleted):
        rig.fetch(state)
    assert rig.fetch(*rig.named("state"))[0].tolist() == X.tolist()


def test_a_call_that_has_no_room_loses_nothing(harness: PipelineHarness) -> None:
    """It is refused before it runs; what is given up makes room for the next state."""
    rig = ValueServiceRig(ValueStore(limit=1000))
    (state,) = rig.put(X)
    (small,) = rig.put(np.float32(1))
    source = Source(lambda state, n: (state + n, jnp.zeros(300)), DONATES)
    for _ in range(2):
        with pytest.raises(ValuesFull, match="largest: put"):
            answer(harness, rig, source, rig.ref(state), rig.ref(small))
        assert rig.fetch(state)[0].tolist() == X.tolist()
    assert (len(rig.values), rig.values.nbytes) == (2, 16)
    rig, source = ValueServiceRig(ValueStore(limit=1000)), Source(lambda state: state + 1, DONATES)
    (state,) = rig.put(np.zeros(200, np.float32))
    for _ in range(3):
        answer(harness, rig, source, rig.ref(state))
        state = first_value_id(rig.number)
    assert rig.fetch(state)[0].tolist() == [3.0] * 200
    assert rig.values.nbytes == 800


def test_a_call_that_fails_says_what_it_took(harness: PipelineHarness) -> None:
    """It leaves nothing behind, its results raise its error; before it runs, nothing is lost."""
    rig, source = ValueServiceRig(), Source(fails, DONATES)
    state, fine, bad = rig.put(X, np.float32(1), np.float32(1000))
    answer(harness, rig, source, rig.ref(state), rig.ref(fine))
    state = first_value_id(rig.number)
    value, _ = harness.answer(rig.call(source, rig.ref(state), rig.ref(bad)))
    assert (value[0], leaves_in(value[2])) == (FAILED, (0,))
    error = decode_failure(value[1])
    assert "on the device" in str(error)
    with pytest.raises(ValueDeleted):
        rig.own.get(state)
    with pytest.raises(ForwardedFailure) as forwarded:
        rig.own.get(first_value_id(rig.number))
    assert forwarded.value.failure == value[1]
    assert len(rig.values) == 2
    rig, source = ValueServiceRig(), Source(lambda state: state @ jnp.ones((7, 7)), DONATES)
    (state,) = rig.put(X)
    value, _ = harness.answer(rig.call(source, rig.ref(state)))
    assert (value[0], value[2]) == (FAILED, b"")
    assert rig.fetch(state)[0].tolist() == X.tolist()
    assert len(rig.values) == 1


def test_what_is_donated_cannot_be_given_twice(harness: PipelineHarness) -> None:
    """The array lives, and the program is not thrown away for it."""
    rig, source = ValueServiceRig(), Source(step, DONATES)
    (state,) = rig.put(X)
    answer(harness, rig, source, X, X)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="given to a call twice"):
            answer(harness, rig, source, rig.ref(state), rig.ref(state))
    assert rig.fetch(state)[0].tolist() == X.tolist()
    answer(harness, rig, source, rig.ref(state), X)
    assert harness.counts() == (1, 1)


@pytest.mark.parametrize("function", [same, twice])
def test_no_two_values_are_the_same_memory(harness: PipelineHarness, function: Any) -> None:
    """Giving one away must not take the other along."""
    rig, source = ValueServiceRig(), Source(function)
    taker = Source(lambda x: x * 2, DONATES)
    (first,) = rig.put(X)
    answer(harness, rig, source, rig.ref(first))
    one = first_value_id(rig.number)
    rest = [number for number in rig.own.values if number != one]
    before = [array.tolist() for array in rig.fetch(*rest)]
    answer(harness, rig, taker, rig.ref(one))
    assert [array.tolist() for array in rig.fetch(*rest)] == before


# dispatched again -----------------------------------------------------------------------------


def by_hand(rig: ValueServiceRig, source: Source, call: Any, **stay: int) -> Run:
    """A run of a program that the test has written."""
    form = result_layout([jnp.zeros(3), jnp.zeros(1)], jax.tree.structure((0, 0)))
    executable = Executable("step", source.key, Program(b"p", call), form)
    return Run(rig.call(source, X, **stay), executable, [X])


def test_what_was_let_go_of_does_not_come_back() -> None:
    """When it is dispatched once more, its client has gone on."""
    rig, made = ValueServiceRig(), list[Sequence[Any]]()

    def call(x: Any) -> Sequence[Any]:
        made.append([jnp.asarray(x) + len(made), jnp.asarray(x)])
        return made[-1]

    run = by_hand(rig, Source(twice), call)
    run.dispatch()
    first = first_value_id(rig.number)
    rig.values.drop(rig.own, [range(first + 1, first + 2)])
    run.dispatch()
    assert rig.own.get(first).array is made[1][0]
    assert len(rig.values) == 1
    run.undo()
    assert len(rig.values) == 0
    rig = ValueServiceRig()
    run = by_hand(rig, Source(twice), lambda x: [jnp.asarray(x)] * 2)
    run.undo()
    run.dispatch()
    assert len(rig.values) == 2
    for _ in range(2):
        run.undo()
        assert len(rig.values) == 0


def test_what_comes_home_is_waited_for_first() -> None:
    """In a loop the next call has taken all else."""
    rig, made = ValueServiceRig(), [jnp.zeros(3), jnp.zeros(1)]
    run = by_hand(rig, Source(twice), lambda _: made, above=KEEP_ALL, home=4)
    run.dispatch()
    assert next(iter(run.pending_results())) is made[1]
    assert {*map(id, run.pending_results())} == {*map(id, made)}
    run.undo()
    assert list(run.pending_results()) == []
    run = by_hand(ValueServiceRig(), Source(twice), lambda x: [jnp.asarray(x) + 1] * 2)
    argument = jnp.zeros(3)
    seen = weakref.ref(argument)
    run.leaves = [argument]
    del argument
    run.dispatch()
    assert seen() is not None  # it may have to be dispatched once more
    run.deliver()
    assert seen() is None


def slow(state: Any, batch: Any) -> Any:
    """Takes the device a while."""
    for _ in range(6):
        state = state @ state * 1e-3 + batch
    return state


@pytest.mark.slow
def test_a_call_whose_results_were_all_taken_is_done_when_the_taker_is(
    harness: PipelineHarness,
) -> None:
    """Its reply says that its arguments are free, and they are read until then."""
    rig, source = ValueServiceRig(), Source(slow, DONATES)
    state, batch = np.ones((900, 900), np.float32), np.float32(1)
    answer(harness, rig, source, state, batch)
    numbers = [first_value_id(rig.number)]
    for _ in range(2):  # cold, and then warm
        answer(harness, rig, source, rig.ref(numbers[-1]), batch)
        numbers.append(first_value_id(rig.number))
    finishes = []
    for _ in range(3):
        call = rig.call(source, rig.ref(numbers[-1]), batch)
        finishes.append(
            harness.pipeline.start(call, harness.executables.plan(call.key, call.skeleton))
        )
        numbers.append(first_value_id(rig.number))
    last = rig.own.get(numbers[-1]).array
    value, _ = finishes[0]()
    assert value[0] == OK
    assert last.is_ready()
    assert [finish()[0][0] for finish in finishes[1:]] == [OK, OK]


def test_what_was_given_away_before_it_came_home_is_left_out(harness: PipelineHarness) -> None:
    """Nobody may look at it, and nobody gets zeros for it."""
    rig, source = ValueServiceRig(), Source(step, DONATES)
    answer(harness, rig, source, X, X)
    first = rig.call(source, rig.ref(first_value_id(rig.number)), X, above=KEEP_ALL, home=1 << 16)
    made = first_value_id(rig.number)
    finish = harness.pipeline.start(first)
    taker = rig.call(Source(lambda loss: loss * 2, DONATES), rig.ref(made + 1))
    assert harness.answer(taker)[0][0] == OK
    value, _ = finish()
    assert value[0] == OK
    assert leaves_in(value[4]) == (0, 1)


def risky(x: Any) -> Any:
    """Makes a NaN on its second line."""
    y = x - 1
    return jax.numpy.log(y)


NANS = Options(config=(("jax_debug_nans", True),))


def test_a_nan_is_found_where_it_is_made(open_harness: Callable[..., PipelineHarness]) -> None:
    """The user sees the line, also when the program came from disk and the call is warm."""
    good, bad = np.float32(2), np.float32(0)
    for _ in range(2):
        harness, source = open_harness(), Source(risky, NANS)
        for _ in range(2):
            assert float(harness.value(source, good)) == 0.0
            failed = failure(harness, source, bad)
            assert failed[1] == "FloatingPointError"
            assert "return jax.numpy.log(y)" in failed[5]
    assert harness.counts() == (0, 0)
    assert not {"describe", "code"} & {*source.asked}  # jax itself may read its process


def test_a_nan_is_found_although_its_code_on_disk_is_no_good(
    open_harness: Callable[..., PipelineHarness],
) -> None:
    """The client is asked for it, and sees its own error."""
    harness, source = open_harness(), Source(risky, NANS)
    harness.value(source, np.float32(2))
    assert harness.program_cache is not None
    harness.program_cache.keep_code(source.fingerprint, bytes(Source(double).code_))
    harness, source = open_harness(), Source(risky, NANS)
    for _ in range(2):  # found by its signature, and then by its bytes
        harness.value(source, np.float32(2))
    failed = failure(harness, source, np.float32(0))
    assert failed[1] == "FloatingPointError"
    assert source.asked[:2] == ["describe", "code"]


def test_other_errors_are_not_looked_for(harness: PipelineHarness) -> None:
    """Without the setting, a NaN is a result."""
    assert np.isnan(harness.value(Source(risky), np.float32(0)))


def test_one_that_only_the_compiler_makes_is_said_to_be_one(
    harness: PipelineHarness, monkeypatch: Any
) -> None:
    """Step by step there is none: the caller learns what that means."""
    source = Source(risky, NANS)
    harness.value(source, np.float32(2))
    (function,) = harness.pipeline.functions._functions.values()
    monkeypatch.setattr(type(function), "function", property(lambda _: lambda x: x))
    failed = failure(harness, source, np.float32(0))
    assert failed[1] == "FloatingPointError"
    assert "not when it is run step by step" in failed[2]


def test_each_second_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits on the device for the one before it ran only from its end on."""
    rig, session = ValueServiceRig(), Client("", "")
    runs = [by_hand(rig, Source(twice), lambda x: [x, x]) for _ in range(2)]
    told = []
    for run, began, ended in zip(runs, (10.0, 11.0), (15.0, 18.0), strict=True):
        run.dispatch()
        run.call.session, run.call.timed_from = session, began
        monkeypatch.setattr(time, "monotonic", lambda now=ended: now)
        told.append(run.timed(((OK, b"", b"", b"", b""), ()))[0][5:])
    assert told == [(b"", 5.0), (b"", 3.0)]
