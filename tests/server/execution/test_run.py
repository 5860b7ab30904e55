from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ArgumentError, ValueDeleted, ValuesFull
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import (
    EVERYTHING,
    KEPT,
    NOTHING,
    Row,
    first_id,
    pack_ids,
    pack_rows,
    unpack_numbers,
)
from jaxd_protocol.messages.failures import ForwardedFailure, rebuild_failure
from jaxd_server.codec.results import result_form
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.execution.run import Run
from jaxd_server.values.store import Values
from tests.server.in_process import Kitchen, Source
from tests.server.value_desks import Desk

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


def answer(kitchen: Kitchen, desk: Desk, source: Source, *args: Any, **stay: int) -> Any:
    """Skeleton, blob, buffers and the numbers of what was given up; raises what went wrong."""
    value, buffers = kitchen.answer(desk.call(source, *args, **stay))
    if value[0] == FAILED:
        raise rebuild_failure(value[1])
    assert value[0] == OK
    return value[1], value[2], list(buffers), unpack_numbers(value[3])


def test_what_the_client_has_as_well_is_not_given_up(kitchen: Kitchen) -> None:
    """The call was given another copy of it: the value can be used again."""
    desk, source = Desk(), Source(step, DONATES)
    (number,) = desk.put(X)
    desk.own.get(number).copied = True
    for _ in range(3):
        assert (
            answer(kitchen, desk, source, desk.ref(number), X, above=NOTHING, home=NOTHING)[3] == ()
        )
    assert desk.fetch(number)[0].tolist() == X.tolist()


def test_what_was_not_kept_is_in_the_reply(kitchen: Kitchen) -> None:
    """Behind all else, with and without results that stay."""
    desk, source = Desk(Values(limit=10)), Source(same)
    call = desk.call(source, X, above=NOTHING, home=NOTHING)
    call.elsewhere = pack_rows([Row(0, KEPT, 7)])
    value, _ = kitchen.answer(call)
    assert value[3:] == (b"", b"", pack_ids([7]))
    call.stay = None
    value, _ = kitchen.answer(call)
    assert value[3:] == (b"", b"", pack_ids([7]))
    call.elsewhere, call._rows = b"", None
    call.not_kept = ()
    value, _ = kitchen.answer(call)
    assert value[3:] == ()


def test_a_result_stays_where_it_was_made(kitchen: Kitchen) -> None:
    """Under numbers that its client knows beforehand, cold and warm."""
    desk, source = Desk(), Source(step)
    for _ in range(2):
        _, blob, buffers, given_up = answer(kitchen, desk, source, X, X)
        assert (blob, buffers, given_up) == (b"", [], ())
        new, loss = (first_id(desk.number) + leaf for leaf in (0, 1))
        assert [array.tolist() for array in desk.fetch(new, loss)] == [[0, 2, 4], 5.0]
    assert (len(desk.values), desk.values.nbytes) == (4, 32)
    assert {row["what"] for row in desk.holders()["holders"]} == {"step"}


def test_small_leaves_stay_and_come_home(kitchen: Kitchen) -> None:
    """Larger ones only stay; and those that need not stay only come home."""
    desk, source = Desk(), Source(step)
    _, blob, buffers, _ = answer(kitchen, desk, source, X, X, above=-1, home=4)
    assert np.frombuffer(blob, np.float32).tolist() == [5.0]
    assert (buffers, len(desk.values)) == ([], 2)
    _, blob, _, _ = answer(kitchen, desk, source, X, X, above=4, home=4)
    assert np.frombuffer(blob, np.float32).tolist() == [5.0]
    assert len(desk.values) == 3
    _, blob, _, _ = answer(kitchen, desk, source, X, X, above=NOTHING, home=NOTHING)
    assert len(blob) == 16 + 4
    assert len(desk.values) == 3


def test_a_value_is_taken_without_moving(kitchen: Kitchen) -> None:
    """And is still there afterwards; the executable is the one of the array itself."""
    desk, source = Desk(), Source(step)
    (number,) = desk.put(X)
    answer(kitchen, desk, source, X, X)
    answer(kitchen, desk, source, desk.ref(number), X)
    assert desk.fetch(first_id(desk.number))[0].tolist() == [0, 2, 4]
    assert desk.fetch(number)[0].tolist() == X.tolist()
    assert kitchen.counts() == (1, 1)


def test_what_is_donated_is_gone(kitchen: Kitchen) -> None:
    """The reply says so, and its memory is the result's; also what was not needed for that."""
    desk, source = Desk(), Source(step, DONATES)
    (state,) = desk.put(X)
    for _ in range(3):
        _, _, _, given_up = answer(kitchen, desk, source, desk.ref(state), X)
        assert given_up == (0,)
        with pytest.raises(ValueDeleted):
            desk.fetch(state)
        state = first_id(desk.number)
    assert desk.fetch(state)[0].tolist() == [0, 4, 8]
    assert len(desk.values) == 1 + 3  # the losses


def test_what_has_a_name_is_not_used_up(kitchen: Kitchen) -> None:
    """The handle is dead, and who looks for the name finds the array."""
    desk, source = Desk(), Source(step, DONATES)
    (state,) = desk.put(X)
    desk.name("state", state)
    answer(kitchen, desk, source, desk.ref(state), X)
    with pytest.raises(ValueDeleted):
        desk.fetch(state)
    assert desk.fetch(*desk.named("state"))[0].tolist() == X.tolist()


def test_a_call_that_has_no_room_loses_nothing(kitchen: Kitchen) -> None:
    """It is refused before it runs."""
    desk = Desk(Values(limit=1000))
    (state,) = desk.put(X)
    (small,) = desk.put(np.float32(1))
    source = Source(lambda state, n: (state + n, jnp.zeros(300)), DONATES)
    for _ in range(2):
        with pytest.raises(ValuesFull, match="largest: put"):
            answer(kitchen, desk, source, desk.ref(state), desk.ref(small))
        assert desk.fetch(state)[0].tolist() == X.tolist()
    assert (len(desk.values), desk.values.nbytes) == (2, 16)


def test_a_state_that_fills_the_room_is_replaced_by_the_next(kitchen: Kitchen) -> None:
    """What is given up makes the room."""
    desk, source = Desk(Values(limit=1000)), Source(lambda state: state + 1, DONATES)
    (state,) = desk.put(np.zeros(200, np.float32))
    for _ in range(3):
        answer(kitchen, desk, source, desk.ref(state))
        state = first_id(desk.number)
    assert desk.fetch(state)[0].tolist() == [3.0] * 200
    assert desk.values.nbytes == 800


def test_a_call_that_fails_while_it_runs_says_what_it_took(kitchen: Kitchen) -> None:
    """It leaves nothing behind, and those that were to use its results raise its error."""
    desk, source = Desk(), Source(fails, DONATES)
    state, fine, bad = desk.put(X, np.float32(1), np.float32(1000))
    answer(kitchen, desk, source, desk.ref(state), desk.ref(fine))
    state = first_id(desk.number)
    value, _ = kitchen.answer(desk.call(source, desk.ref(state), desk.ref(bad)))
    assert (value[0], unpack_numbers(value[2])) == (FAILED, (0,))
    error = rebuild_failure(value[1])
    assert "on the device" in str(error)
    with pytest.raises(ValueDeleted):
        desk.own.get(state)
    with pytest.raises(ForwardedFailure) as forwarded:
        desk.own.get(first_id(desk.number))
    assert forwarded.value.failure == value[1]
    assert len(desk.values) == 2


def test_a_call_that_fails_before_it_runs_loses_nothing(kitchen: Kitchen) -> None:
    """As when it cannot be traced."""
    desk, source = Desk(), Source(lambda state: state @ jnp.ones((7, 7)), DONATES)
    (state,) = desk.put(X)
    value, _ = kitchen.answer(desk.call(source, desk.ref(state)))
    assert (value[0], value[2]) == (FAILED, b"")
    assert desk.fetch(state)[0].tolist() == X.tolist()
    assert len(desk.values) == 1


def test_what_is_donated_cannot_be_given_twice(kitchen: Kitchen) -> None:
    """The array lives, and the program is not thrown away for it."""
    desk, source = Desk(), Source(step, DONATES)
    (state,) = desk.put(X)
    answer(kitchen, desk, source, X, X)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="given to a call twice"):
            answer(kitchen, desk, source, desk.ref(state), desk.ref(state))
    assert desk.fetch(state)[0].tolist() == X.tolist()
    answer(kitchen, desk, source, desk.ref(state), X)
    assert kitchen.counts() == (1, 1)


@pytest.mark.parametrize("function", [same, twice])
def test_no_two_values_are_the_same_memory(kitchen: Kitchen, function: Any) -> None:
    """Giving one away must not take the other along."""
    desk, source = Desk(), Source(function)
    taker = Source(lambda x: x * 2, DONATES)
    (first,) = desk.put(X)
    answer(kitchen, desk, source, desk.ref(first))
    one = first_id(desk.number)
    rest = [number for number in desk.own.values if number != one]
    before = [array.tolist() for array in desk.fetch(*rest)]
    answer(kitchen, desk, taker, desk.ref(one))
    assert [array.tolist() for array in desk.fetch(*rest)] == before


def test_keys_and_other_dtypes_stay(kitchen: Kitchen) -> None:
    """As what they are."""
    desk = Desk()
    source = Source(lambda key: (jax.random.split(key), jnp.arange(4, dtype=jnp.bfloat16), 1.0))
    (key,) = desk.put(jax.random.key(1))
    answer(kitchen, desk, source, desk.ref(key))
    first = first_id(desk.number)
    keys, numbers, weak = (desk.own.get(first + leaf).leaf for leaf in range(3))
    assert (keys.tag, keys.shape, keys.impl) == ("K", (2, 2), "threefry2x32")
    assert (numbers.dtype, numbers.shape, weak.weak) == ("bfloat16", (4,), True)
    again = Source(lambda keys, n, w: (keys, n * w))
    answer(kitchen, desk, again, *(desk.ref(first + leaf) for leaf in range(3)))


# dispatched again -----------------------------------------------------------------------------


def by_hand(desk: Desk, source: Source, call: Any, **stay: int) -> Run:
    """A run of a program that the test has written."""
    form = result_form([jnp.zeros(3), jnp.zeros(1)], jax.tree.structure((0, 0)))
    executable = Executable("step", source.key, Program(b"p", call), form)
    return Run(desk.call(source, X, **stay), executable, [X])


def test_what_was_let_go_of_does_not_come_back() -> None:
    """A call is dispatched once more when there was no room; its client has gone on meanwhile."""
    desk, made = Desk(), list[Sequence[Any]]()

    def call(x: Any) -> Sequence[Any]:
        made.append([jnp.asarray(x) + len(made), jnp.asarray(x)])
        return made[-1]

    run = by_hand(desk, Source(twice), call)
    run.dispatch()
    first = first_id(desk.number)
    desk.values.drop(desk.own, [first + 1])
    run.dispatch()
    assert desk.own.values.keys() == {first}
    assert desk.own.get(first).array is made[1][0]
    assert len(desk.values) == 1
    run.undo()
    assert len(desk.values) == 0


def test_what_a_failed_call_has_made_is_taken_back() -> None:
    """Once is enough, and what has not begun has made nothing."""
    desk = Desk()
    run = by_hand(desk, Source(twice), lambda x: [jnp.asarray(x)] * 2)
    run.undo()
    run.dispatch()
    assert len(desk.values) == 2
    for _ in range(2):
        run.undo()
        assert len(desk.values) == 0


def test_what_comes_home_is_waited_for_first() -> None:
    """In a loop the next call has taken all else; of what was taken back nothing is waited for."""
    desk, made = Desk(), [jnp.zeros(3), jnp.zeros(1)]
    run = by_hand(desk, Source(twice), lambda _: made, above=EVERYTHING, home=4)
    run.dispatch()
    assert next(iter(run.likely_left())) is made[1]
    assert {*map(id, run.likely_left())} == {*map(id, made)}
    run.undo()
    assert list(run.likely_left()) == []


def test_what_the_device_has_read_is_free_before_the_reply_is_sent() -> None:
    """Whoever sends it holds the run meanwhile, and a client may take its time to read."""
    run = by_hand(Desk(), Source(twice), lambda x: [jnp.asarray(x) + 1] * 2)
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


def test_a_call_whose_results_were_all_taken_is_done_when_the_taker_is(kitchen: Kitchen) -> None:
    """Its reply says that its arguments are free, and they are read until then."""
    desk, source = Desk(), Source(slow, DONATES)
    state, batch = np.ones((900, 900), np.float32), np.float32(1)
    answer(kitchen, desk, source, state, batch)
    numbers = [first_id(desk.number)]
    for _ in range(2):  # cold, and then warm
        answer(kitchen, desk, source, desk.ref(numbers[-1]), batch)
        numbers.append(first_id(desk.number))
    finishes = []
    for _ in range(3):
        call = desk.call(source, desk.ref(numbers[-1]), batch)
        finishes.append(
            kitchen.pipeline.start(call, kitchen.pipeline.plan(call.key, call.skeleton))
        )
        numbers.append(first_id(desk.number))
    last = desk.own.get(numbers[-1]).array
    value, _ = finishes[0]()
    assert value[0] == OK
    assert last.is_ready()
    assert [finish()[0][0] for finish in finishes[1:]] == [OK, OK]


def test_what_was_given_away_before_it_came_home_is_left_out(kitchen: Kitchen) -> None:
    """Nobody may look at it, and nobody gets zeros for it."""
    desk, source = Desk(), Source(step, DONATES)
    answer(kitchen, desk, source, X, X)
    first = desk.call(source, desk.ref(first_id(desk.number)), X, above=EVERYTHING, home=1 << 16)
    made = first_id(desk.number)
    finish = kitchen.pipeline.start(first)
    taker = desk.call(Source(lambda loss: loss * 2, DONATES), desk.ref(made + 1))
    assert kitchen.answer(taker)[0][0] == OK
    value, _ = finish()
    assert value[0] == OK
    assert unpack_numbers(value[4]) == (0, 1)
