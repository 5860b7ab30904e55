"""Calls on values on their way: their order, their number, and what a lost connection means."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd.connection.shared_reader import NotSent, PendingReply
from jaxd.interop.handle_ranges import HandleRange
from jaxd.interop.remote_array import RemoteArray, ResultBatch
from jaxd.remote_values.call_pipeline import _MAX_ATTEMPTS, CallPipeline, PipelinedCall
from jaxd.request.call_request import CallRequest
from jaxd.transfer.routing import CallTransfer
from jaxd_protocol.errors import (
    Busy,
    ConnectionLost,
    DeadlineExceeded,
    JaxdError,
    LimitExceeded,
    NoServer,
    ValuesDied,
    ValuesLost,
    WorkerReplaced,
)
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import ResultPolicy, pack_ids, spans_of, value_ids_of
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.pytree import Leaf
from jaxd_protocol.wire import Frame
from tests.client.fake_fetcher import FakeFetcher, watched_arrays
from tests.end_to_end.gates import in_thread
from tests.server.staging import until
from tests.spans import packed_leaves


class Connection:
    """Takes requests; the test replies."""

    def __init__(self) -> None:
        self.shared_reader = self
        self.address = "unix:///run/s.sock"
        self.worker = (1, 1)
        self.session = (1, 1, "session")
        self.alive = True
        self.sent: list[tuple[int, int, bytes]] = []  # number of call, acked, drops
        self.data: list[list[bytes]] = []
        self.left: list[int] = []
        self.cancelled: list[int] = []
        self.refuses: Exception | None = None
        self.interrupts = False
        self.waiting: list[PendingReply] = []
        self.looks: Callable[[], object] = lambda: None
        self._numbers = iter(range(1, 1000))

    def number(self) -> int:
        self.looks()
        return next(self._numbers)

    def launch(
        self,
        verb: str,
        args: tuple[Any, ...],
        buffers: Sequence[memoryview],
        pending: PendingReply,
        number: int,
    ) -> None:
        if self.refuses is not None:
            raise self.refuses
        stay = ResultPolicy.from_bytes(args[5])
        assert stay is not None
        self.sent.append((stay.number, stay.acked, args[7]))
        self.data.append([bytes(one) for one in buffers])
        self.waiting.append(pending)
        if self.interrupts:
            raise KeyboardInterrupt

    def read_available(self) -> None:
        pass

    def abandon_reply(self, number: int, pending: PendingReply) -> None:
        self.left.append(number)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    def reply(self, index: int = 0, value: Any = (OK, b"s", b"", b"", b"")) -> None:
        """The call is done."""
        pending = self.waiting.pop(index)
        pending.value, pending.frame = value, Frame(b"")
        pending.done = True
        assert pending.then is not None
        pending.then(pending)

    def lose(self) -> None:
        """The connection ends."""
        self.alive = False
        for pending in self.waiting:
            pending.error, pending.done = ConnectionLost("lost"), True
            assert pending.then is not None
            pending.then(pending)

    def wait(self, pending: PendingReply, deadline: float | None) -> None:
        until(lambda: pending.done)


class Server:
    """Connections, one after the other."""

    def __init__(self) -> None:
        self.connections = [Connection()]
        self.gone: Exception | None = None
        self.drops = b""
        routes: Any = SimpleNamespace(
            prepare=lambda call, *_, **__: CallTransfer(call.data_locations, call.buffers),
            announce=lambda *_: True,
        )
        connect: Any = self.connect
        self.requeue: list[bytes] = []
        self.released: list[range] = []
        self.retried = 0
        drops: Any = SimpleNamespace(
            take_all=lambda: self.drops,
            requeue=self.requeue.append,
            retry=self.retry,
            add=self.released.append,
        )
        self.routes = routes
        sent_before: Any = None
        self.flights = CallPipeline(connect, routes, drops, sent_before, lambda *_: None)

    def retry(self) -> None:
        self.retried += 1

    def connect(self, deadline: float | None = None) -> Connection:
        if self.gone is not None:
            raise self.gone
        if not self.connections[-1].alive:
            self.connections.append(Connection())
        return self.connections[-1]

    def launch(
        self, ended: Any = None, *, donates: bool = False, timeout_s: float | None = None
    ) -> PipelinedCall:
        snapshot = SimpleNamespace(name="step", reader=None)
        spec: Any = SimpleNamespace(key=b"k", snapshot=snapshot, donates=donates)
        policy = ResultPolicy(1, -1, 64)
        call = CallRequest(spec, b"s", b"", (), timeout_s, "auto", result_policy=policy)
        flight = PipelinedCall(call, None, (), ended)
        self.flights.launch(flight)
        return flight


@pytest.fixture
def server() -> Server:
    """With one connection."""
    return Server()


def numbers(connection: Connection) -> list[int]:
    """Of the calls that it was sent."""
    return [number for number, *_ in connection.sent]


def test_a_call_that_cannot_be_sent_again_ends_alone(server: Server) -> None:
    """Those behind it are sent, and so is the one that found them lost."""
    first, second = server.launch(), server.launch()
    server.connections[0].lose()
    server.connections.append(Connection())
    refusals = [LimitExceeded("too large for this server")]

    def look() -> None:
        server.connections[1].refuses = refusals.pop() if refusals else None

    server.connections[1].looks = look
    third = server.launch()
    assert isinstance(first.error, LimitExceeded)
    assert numbers(server.connections[1]) == [second.number, third.number]
    assert server.connections[1].sent[-1][1] == second.number  # the first waits for no reply


def test_each_says_up_to_where_replies_have_come(server: Server) -> None:
    """In whichever order they come."""
    connection = server.connections[0]
    first, second, third = (server.launch().number for _ in range(3))
    assert first < second < third
    assert [acked for _, acked, _ in connection.sent] == [first] * 3
    connection.reply(1)
    server.launch()
    connection.reply(0)
    server.launch()
    assert [acked for _, acked, _ in connection.sent[3:]] == [first, third]


def test_a_call_that_may_have_run_is_not_to_be_repeated(server: Server) -> None:
    """Where it was given arrays for good: they may be gone."""
    ended: list[PipelinedCall] = []
    flight = server.launch(ended.append, donates=True)
    server.gone = NoServer("gone. Start one.")
    server.connections[0].lose()
    until(lambda: ended == [flight])
    assert isinstance(flight.error, ValuesLost)
    assert not flight.error.may_repeat


@pytest.mark.parametrize("error", [Busy("full."), DeadlineExceeded("late.")], ids=type)
def test_nor_where_the_server_is_reached_again_too_late(server: Server, error: JaxdError) -> None:
    """Or has no room: the call may have run all the same."""
    flight = server.launch(donates=True)
    server.gone = error
    server.connections[0].lose()
    with pytest.raises(type(error)):
        server.flights.wait(flight)
    final = server.flights.final_error(flight, error)
    assert isinstance(final, ValuesLost)
    assert not final.may_repeat


def test_a_reply_that_is_late_may_still_say_what_was_taken(server: Server) -> None:
    """So the error stays what it is, but does not say that the call may be repeated."""
    late = DeadlineExceeded("late.")
    assert server.flights.final_error(server.launch(), late).may_repeat  # type: ignore[attr-defined]
    assert server.flights.final_error(server.launch(donates=True), late) is late
    assert not late.may_repeat


def test_a_call_that_took_arrays_and_failed_is_not_to_be_repeated(server: Server) -> None:
    """Whatever the error of its class says."""
    for taken, may_repeat in ((b"", True), (packed_leaves([0]), False)):
        flight = server.launch(donates=True)
        failure = encode_failure(DeadlineExceeded("late."))
        server.connections[0].reply(value=(FAILED, failure, taken))
        assert isinstance(flight.error, DeadlineExceeded)
        assert flight.error.may_repeat is may_repeat


def test_each_waits_for_a_server_no_longer_than_its_own_time(server: Server) -> None:
    """Also where nobody waits for the call itself, and others have more time."""
    ended: list[PipelinedCall] = []
    short, long = server.launch(ended.append, timeout_s=0.05), server.launch(ended.append)
    asked: list[float | None] = []
    is_back = threading.Event()
    connect = server.flights._connect_session

    def waits(deadline: float | None) -> Any:
        asked.append(deadline)
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not is_back.wait(left_s):
            raise NoServer("gone. Start one.")
        return connect(deadline)

    server.flights._connect_session = waits
    server.connections[0].lose()
    until(lambda: ended == [short])
    assert isinstance(short.error, NoServer)
    is_back.set()
    until(lambda: len(server.connections) == 2 and bool(server.connections[1].waiting))
    assert not long.done
    assert numbers(server.connections[1]) == [long.number]


def test_a_call_of_which_nothing_was_sent_may_be_repeated(server: Server) -> None:
    """Also where it is given arrays for good: they are as they were."""
    server.connections[0].refuses = NotSent("lost")
    connect = server.flights._connect_session
    lost: Any = iter([connect(None), connect(None)])

    def once_lost(deadline: float | None) -> Any:
        found = next(lost, None)
        if found is None:
            raise NoServer("gone. Start one.")
        return found

    server.flights._connect_session = once_lost
    server.connections[0].looks = lambda: setattr(server.connections[0], "alive", False)
    with pytest.raises(NoServer):
        server.launch(donates=True)


def test_what_loses_every_connection_is_given_up(server: Server) -> None:
    """Something in between may be what ends it."""
    flight = server.launch()
    for _ in range(_MAX_ATTEMPTS - 1):
        server.connections[-1].lose()
        server.flights._resend_lost()
    server.connections[-1].lose()
    server.flights.wait(flight)
    assert isinstance(flight.error, ConnectionLost)
    assert len(server.connections) == _MAX_ATTEMPTS + 1


def test_a_call_that_cannot_be_sent_is_none(server: Server) -> None:
    """It holds nobody up."""
    server.drops = pack_ids([4])
    server.connections[0].refuses = LimitExceeded("too large. Send less.")
    with pytest.raises(LimitExceeded):
        server.launch()
    assert server.requeue == [pack_ids([4])]
    server.connections[0].refuses = None
    flight = server.launch()
    assert server.connections[0].sent[-1][1] == flight.number


def test_a_call_without_a_server_is_none(server: Server) -> None:
    """It is not made later, when there is one."""
    first = server.launch()
    server.connections[0].lose()
    server.gone = NoServer("gone. Start one.")
    with pytest.raises(NoServer):
        server.launch()
    server.gone = None
    last = server.launch()
    assert numbers(server.connections[1]) == [first.number, last.number]


def test_one_that_nobody_waits_for_any_more(server: Server) -> None:
    """The server hears of it; the end is told; it is not sent again when its connection is lost."""
    ended: list[PipelinedCall] = []
    kept, lost = server.launch(), server.launch()
    server.flights.abandon(kept, ended.append)
    assert server.connections[0].cancelled == [kept.request]
    server.connections[0].reply()
    assert ended == [kept]
    server.connections[0].lose()
    server.flights.abandon(lost, ended.append)
    assert server.released == [value_ids_of(lost.number)]  # its reply may have been a result
    assert isinstance(lost.error, ConnectionLost)
    assert not server.flights._open
    assert len(server.connections[0].left) == 1


def test_who_is_told_of_an_end_may_make_calls(server: Server) -> None:
    """From any thread: the lock is free by then."""
    told: list[PipelinedCall] = []

    def ended(flight: PipelinedCall) -> None:
        told.append(in_thread(server.launch).result(10))

    server.launch(ended)
    server.flights.fail_all(ValuesLost("gone. Make them again."))
    assert len(told) == 1


def flight(*donated: int, **more: Any) -> tuple[PipelinedCall, list[RemoteArray]]:
    """A call on three arrays of two origins, and these."""
    fetcher, leaf = FakeFetcher(), Leaf("A", "float32", ())
    one, other = ResultBatch(fetcher, 10, [leaf] * 9), ResultBatch(fetcher, 20, [leaf])
    arrays = [*watched_arrays(one)[4:6], *watched_arrays(other)]
    fetcher.told.clear()
    values = [HandleRange(0, one, 4, arrays[:2]), HandleRange(2, other, 0, arrays[2:])]
    spec: Any = SimpleNamespace(snapshot=SimpleNamespace(name="step", reader=None))
    stay = ResultPolicy(7, -1, 1 << 16)
    call = CallRequest(spec, b"s", b"b", (), None, "auto", values=values, result_policy=stay)
    return PipelinedCall(call, None, spans_of(donated), **more), arrays


def takers(arrays: list[RemoteArray]) -> list[str | None]:
    """Who has the arrays."""
    return [array.donated_to for array in arrays]


def succeeded(*given_up: int) -> tuple[Any, ...]:
    """The reply of a call that went well."""
    return (OK, b"skeleton", b"", packed_leaves(given_up), b"")


def failed(*given_up: int) -> tuple[Any, ...]:
    """The reply of a call that did not."""
    return (FAILED, encode_failure(ArithmeticError("no")), packed_leaves(given_up))


ENDS: dict[str, tuple[Any, ...]] = {
    "succeeds": (
        lambda one: one.complete(succeeded(0, 2), ()),
        *(type(None), ["step", None, "step"], [15]),
    ),
    "fails": (
        lambda one: one.complete(failed(0, 2), ()),
        *(ArithmeticError, ["step", None, "step"], [15]),
    ),
    "fails and says nothing of it": (
        lambda one: one.complete(failed()[:2], ()),
        *(ArithmeticError, [None] * 3, [14, 15, 20]),
    ),
    "its worker gives way": (
        lambda one: one.complete((FAILED, encode_failure(WorkerReplaced("repeat it")), b""), ()),
        *(ValuesDied, [None] * 3, [14, 15, 20]),
    ),
    "is refused": (
        lambda one: one.fail_not_run(ValueError("no")),
        *(ValueError, [None] * 3, [14, 15, 20]),
    ),
    "is lost": (
        lambda one: one.fail_unknown(ConnectionError("gone")),
        *(ConnectionError, [None, "step", None], [14, 15, 20]),
    ),
}


@pytest.mark.parametrize(("end", "error", "taken", "told"), ENDS.values(), ids=ENDS)
def test_the_end_of_a_call_decides_what_was_taken(
    end: Any, error: type, taken: list[str | None], told: list[int]
) -> None:
    """More than was known before anything was sent, or less; the server is told of the rest."""
    one, arrays = flight(1)
    assert takers(arrays) == [None, "step", None]
    end(one)
    assert type(one.error) is error
    assert takers(arrays) == taken
    if error is ValuesDied:  # to repeat it would be of no use: the next one has not got these
        assert "step needs 3 of them" in str(one.error)
    one, arrays = flight(0, 2)
    fetcher: Any = arrays[0].fetcher
    end(one)
    arrays.clear()
    assert sorted(fetcher.told) == [("drop", number) for number in told]


def test_what_was_not_made_does_not_come_back_to_life() -> None:
    """The first end counts: a second one changes nothing."""
    one, arrays = flight(1)
    one.fail_unknown(ConnectionError("gone"))
    one.complete(succeeded(), ())
    one.fail_not_run(ValueError("no"))
    assert isinstance(one.error, ConnectionError)
    assert takers(arrays) == [None, "step", None]


class CountingTransfer:
    """Stands for data on its way."""

    def __init__(self) -> None:
        self.released = 0

    def release(self, reply: Any = None) -> None:
        """Counts."""
        self.released += 1


def test_its_data_is_let_go_once() -> None:
    """Whatever takes its place, and whenever that comes."""
    loads: Any = [CountingTransfer() for _ in range(3)]
    one, _ = flight()
    for load in loads[:2]:
        one.replace_transfer(load, one.call)
    one.complete(succeeded(), ())
    one.fail_unknown(ConnectionError("gone"))
    one.replace_transfer(loads[2], one.call)
    assert [load.released for load in loads] == [1, 1, 1]


def test_a_call_that_was_not_made_gives_back_only_what_was_its_own() -> None:
    """Another one has taken an array in the meantime."""
    one, arrays = flight(1)
    arrays[0].origin.donate(range(4, 5), "other")
    one.fail_not_run(ConnectionError("gone"))
    assert takers(arrays) == ["other", None, None]
    assert isinstance(one.error, ConnectionError)


def test_its_end_is_told_once_and_its_arrays_are_let_go() -> None:
    """Though two threads may settle it."""
    ended: list[PipelinedCall] = []
    one, _ = flight(on_done=ended.append)
    one.complete(succeeded(), ())
    one.complete(succeeded(), ())
    one.notify()
    one.notify()
    assert ended == [one]
    assert one.done
    assert not one.call.values


def test_numbers_grow_in_the_order_of_sending() -> None:
    """Whichever was encoded first."""
    first, second = flight()[0], flight()[0]
    second.assign_number()
    first.assign_number()
    assert second.number < first.number
    assert first.call.result_policy is not None
    assert first.call.result_policy.number == first.number
