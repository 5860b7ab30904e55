"""The arrays of one session."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import ConnectionLost, DeadlineExceeded, ProtocolError
from jaxd.remote_values.store import retry_once
from jaxd.results.reader import specs_in
from jaxd_protocol.messages.data_locations import first_value_id
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.pytree import Leaf, TreeEncoder
from tests.end_to_end.passing_on import Stalling
from tests.live_server import TOKEN, LiveServer
from tests.server.staging import until
from tests.spans import packed_ids


def test_the_arrays_of_a_reply_are_read_from_its_skeleton() -> None:
    """In order; an object is refused."""
    encoder = TreeEncoder()
    encoder.specs([Leaf("A", "float32", (3,)), Leaf("A", "int8", ())])
    assert [leaf.dtype for leaf in specs_in(encoder.skeleton)] == ["float32", "int8"]
    with pytest.raises(ProtocolError):
        specs_in(b"P" + bytes(4))


def test_a_release_does_not_overtake_a_call_that_was_lost_with_its_connection(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may take that array for good: over the next connection the call is repeated first."""
    session = client.caller.session
    array, values = client.put(np.ones(3)), session.values()
    looks = values.calls.has_unsent_calls

    def lost_meanwhile() -> bool:
        found = looks()
        session.connection().shut()
        session.connection()
        return found

    monkeypatch.setattr(values.calls, "has_unsent_calls", lost_meanwhile)
    assert values._send_releases(packed_ids([array.id]))
    monkeypatch.undo()
    assert np.asarray(array).tolist() == [1, 1, 1]


def test_a_release_that_had_no_connection_waits_for_the_next_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be there by now; but its session may not be the one that was looked at."""
    session = client.caller.session
    array, values = client.put(np.ones(3)), session.values()
    sent = list[Any]()

    def note(*args: Any, **_: Any) -> bool:
        sent.append(args)
        return True

    monkeypatch.setattr(session, "notify", note)
    monkeypatch.setattr(type(session), "open_connection", None)
    monkeypatch.setattr(values, "defers_releases", lambda: False)
    assert values._send_releases(packed_ids([array.id]))
    assert not sent
    assert [each.start for each in values.release_queue.pending] == [array.id]
    values.release_queue.pending.clear()


def test_several_come_home_with_one_message(client: Client) -> None:
    """And are here afterwards."""
    arrays = [client.put(np.full(10, i)) for i in range(20)]
    before = client.caller.session.connection().number()
    client.get(arrays)
    assert client.caller.session.connection().number() - before <= 2
    assert all(array.is_here for array in arrays)


def test_what_is_touched_brings_what_is_small_and_came_with_it(client: Client) -> None:
    """Also of calls that returned before they had run."""
    step = client.persistent_call(lambda state: [x + 1 for x in state])
    state = client.put([np.full(10, i, np.float32) for i in range(200)])
    for _ in range(3):
        state = step(state)
    before = client.caller.session.connection().number()
    assert [float(np.asarray(x)[0]) for x in state] == [i + 3 for i in range(200)]
    assert (
        client.caller.session.connection().number() - before <= 8
    )  # two, and what tells of gone arrays


def test_arrays_that_do_not_come_are_waited_for_until_the_deadline(live: LiveServer) -> None:
    """A reply may stand still in its middle."""
    real = Address.parse(live.tls)
    with (
        Stalling(real.port) as stalled,
        connect(str(real._replace(port=stalled.port)), token=TOKEN) as client,
    ):
        make = client.persistent_call(lambda: jnp.ones(1 << 18), results="remote")
        array: Any = make()
        array.block_until_ready()
        with pytest.raises(DeadlineExceeded):
            array.fetcher.fetch_all([array], time.monotonic() + 0.1)
        assert not array.is_here


@pytest.mark.parametrize(
    "make",
    [
        lambda client, _: client.put([np.ones(100), np.ones(200)]),
        lambda client, _: client.named("interrupted"),
        lambda _, there: there[: 1 << 17],
    ],
    ids=["put", "named", "part"],
)
def test_what_is_made_for_nobody_goes(
    client: Client, monkeypatch: pytest.MonkeyPatch, make: Callable[[Client, Any], Any]
) -> None:
    """Whoever asked for it was interrupted."""
    there = client.put(np.zeros(1 << 18, np.float32), name="interrupted")
    answers = len(client.caller.session.values().release_queue._sent)
    connection = client.caller.session.connection()

    def interrupted(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    before = client.statistics().values
    monkeypatch.setattr(connection.shared_reader, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(client, there)
    until(lambda: len(client.caller.session.values().release_queue._sent) > answers)
    until(lambda: client.statistics().values <= before)
    client.forget("interrupted")


def test_what_is_put_again_is_not_what_was_put_before(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt may yet run, on memory that was given to others: nobody has its arrays."""
    connection = client.caller.session.connection()
    ids: list[int] = []

    def lost(verb: str, args: Any, *rest: Any, **more: Any) -> Any:
        monkeypatch.undo()
        connection.request(verb, args, *rest, **more)
        ids.append(first_value_id(args[0]))
        raise ConnectionLost("gone")

    before = client.statistics().values
    monkeypatch.setattr(connection, "request", lost)
    kept = client.put([np.ones(100), np.full(200, 2.0)])
    assert ids[0] + 1 < kept[0].id
    assert [float(array[-1]) for array in kept] == [1.0, 2.0]
    until(lambda: client.statistics().values == before + 2)


LOST, NO = ConnectionLost("gone"), ValueError("no")


@pytest.mark.parametrize(
    ("answers", "found", "left"),
    [((1, 2), 1, 1), ((LOST, 2, 3), 2, 1), ((LOST, LOST, 3), LOST, 1), ((NO, 2), NO, 1)],
)
def test_a_question_is_asked_again_once(answers: Any, found: Any, left: int) -> None:
    """Only when its connection was lost."""
    waiting = list(answers)

    def ask() -> Any:
        answer = waiting.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    if isinstance(found, Exception):
        with pytest.raises(type(found)):
            retry_once(ask)
    else:
        assert retry_once(ask) == found
    assert len(waiting) == left
