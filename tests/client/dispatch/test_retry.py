from __future__ import annotations

import ssl
import threading
import time
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd.connection.shared_reader import NotSent
from jaxd.dispatch import retry
from jaxd.dispatch.retry import BusyBackoff, Outage, RetryBudget, RetryCopy, RetryLimits, outlasted
from jaxd.request.call_request import CallRequest
from jaxd.transfer.routing import CallTransfer
from jaxd_protocol.errors import (
    ConnectionLost,
    JaxdError,
    NoServer,
    ProtocolError,
    ServerStartFailed,
    WorkerLost,
)
from jaxd_protocol.messages.calls import LOST_AGAIN, LOST_ONCE
from jaxd_protocol.messages.data_locations import BLOCK, VALUE, DataLocation
from jaxd_protocol.network.addresses import Address
from tests.ids import row

LOST = ConnectionLost("lost")


def call() -> CallRequest:
    spec: Any = None
    return CallRequest(spec, b"", b"", (), None, "auto")


def marks(call: CallRequest) -> int:
    return call.flags & (LOST_ONCE | LOST_AGAIN)


def test_a_call_that_was_never_lost_is_as_it_was() -> None:
    """Nothing is said of it."""
    one = call()
    assert RetryLimits("f").prepare_retry(one, (1, 7)) is one
    assert marks(one) == 0


def test_the_next_worker_is_told_what_the_last_one_may_have_died_of() -> None:
    """And whether that was so once or again."""
    retry_limits = RetryLimits("f")
    retry_limits.record(LOST, (1, 7))
    once = retry_limits.prepare_retry(call(), (2, 8))
    assert marks(once) == LOST_ONCE
    assert retry_limits.prepare_retry(once, (2, 8)) is once
    retry_limits.record(LOST, (2, 8))
    assert marks(retry_limits.prepare_retry(once, (3, 9))) == LOST_ONCE | LOST_AGAIN


def test_a_worker_that_lives_is_suspected_of_nothing() -> None:
    """When only the connection was lost, the call is repeated once, as any other."""
    retry_limits = RetryLimits("step")
    retry_limits.record(LOST, (1, 7))
    assert marks(retry_limits.prepare_retry(call(), (1, 7))) == 0
    retry_limits.record(LOST, (1, 7))
    with pytest.raises(ConnectionLost, match=r"step was under way, and again.*See the server's"):
        retry_limits.prepare_retry(call(), (1, 7))


def test_a_call_that_is_under_way_when_two_members_are_lost_is_not_tried_on_a_third() -> None:
    """It may be what ends them; one that was lost says nothing."""
    retry_limits = RetryLimits("step")
    retry_limits.record(LOST, (1, 7, "m0"))
    assert marks(retry_limits.prepare_retry(call(), (1, 7, "m1"))) == LOST_ONCE
    retry_limits.record(LOST, (1, 7, "m1"))
    with pytest.raises(WorkerLost, match=r"two members of the pool.*step.*jaxd pool status"):
        retry_limits.prepare_retry(call(), (1, 7, "m2"))


def test_a_call_that_is_lost_in_outages_is_not_what_ends_connections() -> None:
    """It is repeated after each; but not for ever, and once where the server could be reached."""
    retry_limits = RetryLimits("step")
    for outages in range(16):
        retry_limits.record(LOST, (1, 7), outages)
        assert marks(retry_limits.prepare_retry(call(), (1, 7), outages + 1)) == 0
    retry_limits.record(LOST, (1, 7), 16)
    retry_limits.prepare_retry(call(), (1, 7), 16)
    retry_limits.record(LOST, (1, 7), 16)
    with pytest.raises(ConnectionLost, match="step was under way, and again"):
        retry_limits.prepare_retry(call(), (1, 7), 17)


def test_what_was_not_sent_was_not_begun() -> None:
    """No worker can have died of it; it is sent again, but not for ever."""
    retry_limits = RetryLimits("step")
    for _ in range(15):
        retry_limits.record(NotSent("lost"), (1, 7))
        assert marks(retry_limits.prepare_retry(call(), (2, 8))) == 0
    with pytest.raises(ConnectionLost, match="16 times while step was being sent"):
        retry_limits.record(LOST, None)


def test_somewhen_it_is_enough() -> None:
    """Though the server never said that the call is at fault."""
    retry_limits = RetryLimits("step")
    for number in range(16):
        retry_limits.record(LOST, (number, 7))
        retry_limits.prepare_retry(call(), (number + 1, 7))
    retry_limits.record(LOST, (16, 7))
    with pytest.raises(WorkerLost, match=r"17 workers.*step.*JAXD_INLINE=1"):
        retry_limits.prepare_retry(call(), (17, 7))


BUSY = 0.2


def test_callers_come_again_at_different_moments() -> None:
    """Around the time that the server said."""
    pauses = [BusyBackoff(None).pause_s(BUSY) or 0.0 for _ in range(100)]
    assert 0.1 <= min(pauses) < 0.15
    assert 0.25 < max(pauses) <= 0.3


def test_each_time_later_than_the_last() -> None:
    """Everybody may have been told the same; but not for ever later."""
    busy_backoff = BusyBackoff(None)
    pauses = [busy_backoff.pause_s(BUSY) or 0.0 for _ in range(6)]
    assert max(pauses[:1]) < min(pauses[2:])
    assert max(pauses) <= 8 * 0.3


def test_nobody_comes_again_too_late() -> None:
    """After its deadline the caller is told."""
    assert BusyBackoff(time.monotonic() + 0.05).pause_s(BUSY) is None
    assert BusyBackoff(time.monotonic() + 5.0).pause_s(BUSY) is not None


def call_of(*buffers: bytearray, sources: dict[int, Any] | None = None) -> CallRequest:
    """A call with these arrays, the leaves 0, 1, 2, …."""
    owners = range(len(buffers))
    spec: Any = None
    data = [memoryview(one) for one in buffers]
    return CallRequest(
        spec, b"s", b"b", data, None, "auto", buffer_leaves=owners, sources=sources or {}
    )


def test_it_does_not_change_with_the_callers_arrays() -> None:
    """Those in a block are there already, those of jax stay what they are, the rest is copied."""
    sent, shared, of_jax = bytearray(b"sent"), bytearray(b"shared"), bytearray(b"of jax")
    call = call_of(sent, shared, of_jax, sources={2: object()})
    shares: list[int] = []
    block: Any = SimpleNamespace(number=5, view=memoryview(b"....shared"))
    block.retain, block.release = (partial(shares.append, 1), partial(shares.append, -1))
    load = CallTransfer(
        [DataLocation(1, BLOCK, 5, 4), DataLocation(2, VALUE, 77)], [memoryview(sent)], [(block, 4)]
    )
    spare = RetryCopy.of(call, load, RetryBudget(4))
    assert spare is not None
    for array in (sent, shared):
        array[:] = bytes(len(array))
    assert [bytes(one) for one in spare.call.buffers] == [b"sent", b"shared", b"of jax"]
    assert (spare.nbytes, shares) == (4, [1])
    spare.release()
    assert shares == [1, -1]


def test_what_is_pickled_is_copied_too() -> None:
    """Its buffers have no leaf of their own; perhaps not all are listed."""
    first, second = bytearray(b"first"), bytearray(b"second")
    call = call_of(first, second)._replace(buffer_leaves=[-1])
    spare = RetryCopy.of(call, CallTransfer((), call.buffers), RetryBudget())
    assert spare is not None
    first[:] = second[:5] = bytes(5)
    assert [bytes(one) for one in spare.call.buffers] == [b"first", b"second"]


def test_an_array_that_the_server_has_and_its_owner_may_change_is_copied() -> None:
    """The next worker does not have it."""
    array = bytearray(b"hashed")
    spare = RetryCopy.of(
        call_of(array), CallTransfer([DataLocation(0, VALUE, 77)], []), RetryBudget()
    )
    assert spare is not None
    array[:] = bytes(6)
    assert bytes(spare.call.buffers[0]) == b"hashed"


def test_there_is_room_for_so_many_bytes() -> None:
    """Of all calls together; what is given back can be taken again."""
    room, call = RetryBudget(10), call_of(bytearray(6))
    load = CallTransfer((), call.buffers)
    first = RetryCopy.of(call, load, room)
    assert first is not None
    assert RetryCopy.of(call, load, room) is None
    first.release()
    assert RetryCopy.of(call, load, room) is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_copy_that_is_not_made_takes_no_room(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Without memory for it the call goes out all the same."""
    room, call = RetryBudget(10), call_of(bytearray(6))

    def copy(data: memoryview) -> bytes:
        raise error

    monkeypatch.setattr(retry, "bytes", copy, raising=False)
    with pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext():
        assert RetryCopy.of(call, CallTransfer((), call.buffers), room) is None
    assert room.reserve(10)


def test_a_fork_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread of the parent held or had taken counts no more."""
    room = RetryBudget(10)
    assert room.reserve(10)
    monkeypatch.setattr(room, "_lock", held := threading.Lock())
    with held:
        room.after_fork()
        room.release(10)  # what the parent had taken
    assert [room.reserve(10), room.reserve(1)] == [True, False]


UNIX = Address.unix("/run/s.sock")
TCP = Address.tcp("host", 1)
SSH = Address.parse("ssh://host")


def caused(error: JaxdError, cause: BaseException | None) -> JaxdError:
    """An error with its cause."""
    error.__cause__ = cause
    return error


def later(grace_s: float, seconds: float) -> Outage:
    """An outage that has lasted for so long."""
    outage = Outage(grace_s)
    outage._began -= seconds
    return outage


REFUSED = caused(NoServer("refused"), ConnectionRefusedError(111, "refused"))
GONE = caused(NoServer("gone"), FileNotFoundError(2, "gone"))


def test_what_is_tried_again_for_long() -> None:
    """What may pass: not what something else answers, and not what only a new server can mend."""
    rows: list[tuple[JaxdError, Address, bool]] = [
        (REFUSED, TCP, True),
        (REFUSED, UNIX, True),
        (caused(NoServer("unreachable"), OSError(113, "unreachable")), TCP, True),
        (caused(ProtocolError("broken off"), ConnectionResetError(104, "reset")), TCP, True),
        (caused(ProtocolError("broken off"), EOFError()), UNIX, True),
        (caused(ProtocolError("no TLS"), ssl.SSLEOFError()), TCP, True),
        (caused(ProtocolError("no TLS"), ssl.SSLError(1, "wrong version")), TCP, False),
        (caused(ProtocolError("no server"), ValueError("no JSON")), TCP, False),
        (GONE, UNIX, False),
        (caused(NoServer("not let in"), PermissionError("Permission denied")), SSH, False),
        (caused(NoServer("no login"), ConnectionError("it said nothing")), SSH, True),
        (ServerStartFailed("it ended"), UNIX, False),
        (NoServer("switched off"), UNIX, False),
    ]
    for error, address, is_tried in rows:
        with row((error, address, is_tried)):
            assert (later(60.0, 3.0).pause_s(error, address, None) is not None) is is_tried
            assert later(60.0, 61.0).pause_s(error, address, None) is None


def test_a_socket_that_is_gone_may_be_made_again() -> None:
    """By a server that is being restarted just now."""
    assert later(60.0, 1.0).pause_s(GONE, UNIX, None) is not None
    assert later(0.5, 1.0).pause_s(GONE, UNIX, None) is None


def test_pauses_grow_and_end_with_the_callers_time() -> None:
    """So that many clients do not keep a server busy that has just started."""
    first, late = later(60.0, 0.0), later(60.0, 30.0)
    assert (first.pause_s(REFUSED, TCP, None) or 9) < 0.1
    assert (late.pause_s(REFUSED, TCP, None) or 0) >= 0.5
    assert (late.pause_s(REFUSED, TCP, time.monotonic() + 0.1) or 9) <= 0.1
    assert late.pause_s(REFUSED, TCP, time.monotonic() - 0.1) is None


def test_logins_are_tried_more_and_more_seldom() -> None:
    """Each is a process, and a line in a log; machines shut out who tries too often."""
    first, late = later(60.0, 0.0), later(60.0, 30.0)
    refused = caused(NoServer("no login"), ConnectionError("it said nothing"))
    assert 0.2 < (first.pause_s(refused, SSH, None) or 0) < 1.0
    assert (late.pause_s(refused, SSH, None) or 0) >= 5.0


def test_the_error_says_what_may_be_in_between() -> None:
    """A tunnel takes connections for a server that does not run."""
    broken = caused(ProtocolError("broken off"), EOFError())
    found = outlasted(broken, TCP, 60.0)
    assert isinstance(found, NoServer)
    assert found.may_repeat
    assert found.__cause__ is broken
    assert outlasted(REFUSED, TCP, 60.0) is REFUSED
