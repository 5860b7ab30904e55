from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rpyc.core import brine, consts
from rpyc.core.channel import Channel
from rpyc.core.protocol import Connection
from rpyc.core.service import VoidService
from rpyc.lib import Timeout

from jaxd_protocol.errors import LimitExceeded, ProtocolError, RemoteError
from jaxd_protocol.wire import BulkChannel, BulkStream, Frame, Value
from jaxd_protocol.wire.connection import (
    ROOT,
    _parse,
    _root_call,
    _usual_message,
    encode_reply,
    encode_request,
)
from tests.ids import stable_id
from tests.shared.wire.by_hand import DispatchingConnection, file_of, open_files, streams


class Recorder(DispatchingConnection):
    """An end that writes down what it is asked and told."""

    def __init__(self, channel: BulkChannel) -> None:
        super().__init__(VoidService(), channel, {})
        self.seen: list[tuple[Any, ...]] = []

    def on_request(self, seq: int, verb: str, args: tuple[Value, ...], frame: Frame) -> None:
        self.seen.append(("request", seq, verb, args, *map(bytes, frame.buffers)))

    def on_reply(self, seq: int, value: Value, failed: bool, frame: Frame) -> None:
        self.seen.append(("failure" if failed else "reply", seq, value, *map(bytes, frame.buffers)))

    def read(self) -> tuple[Any, ...]:
        self.dispatch(self._channel.recv())
        return self.seen[-1]


@pytest.fixture
def ends() -> Iterator[tuple[Recorder, Recorder]]:
    with streams() as (ours, theirs):
        yield Recorder(BulkChannel(ours)), Recorder(BulkChannel(theirs))


@pytest.fixture
def end(ends: tuple[Recorder, Recorder]) -> Recorder:
    return ends[0]


def message(kind: int, seq: object, body: object) -> Frame:
    """A message as rpyc's `Connection._send` writes it."""
    return Frame(brine.I1.pack(kind) + brine.dump((seq, body)))


def request(handler: object, packed: object) -> Frame:
    return message(consts.MSG_REQUEST, 1, (handler, packed))


numbers = st.integers(0, 1 << 70)
plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 300), 1 << 300) | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False) | st.text() | st.binary(max_size=300),
    lambda items: st.lists(items, max_size=6).map(tuple),
)  # fmt: skip
arguments = st.lists(plain, max_size=6).map(tuple)
verbs = st.sampled_from(["call", "statistics", "describe", "code", "event", ""])


def test_requests_and_replies_arrive_with_their_buffers(ends: tuple[Recorder, Recorder]) -> None:
    """And with their numbers, by which they are matched."""
    ours, theirs = ends
    ours.send_request(1, "call", (b"key", 2.5, None), [memoryview(b"array")])
    assert theirs.read() == ("request", 1, "call", (b"key", 2.5, None), b"array")
    theirs.send_reply(1, (0, b"value"), [memoryview(b"result")])
    assert ours.read() == ("reply", 1, (0, b"value"), b"result")


@pytest.mark.slow
@given(numbers, verbs, arguments)
def test_a_request_is_what_rpyc_would_send(seq: int, verb: str, args: tuple[Any, ...]) -> None:
    """The bytes of `conn.root.verb(*args)` in rpyc; they are read alike, fast or not."""
    packed = (
        consts.LABEL_TUPLE,
        (
            (consts.LABEL_LOCAL_REF, ROOT),
            (consts.LABEL_VALUE, verb),
            (consts.LABEL_VALUE, args),
        ),
    )
    expected = message(consts.MSG_REQUEST, seq, (consts.HANDLE_CALLATTR, packed))
    assert encode_request(seq, verb, args) == expected
    kind, number, (handler, unpacked) = _parse(Frame(expected))
    assert (kind, number, handler) == (consts.MSG_REQUEST, seq, consts.HANDLE_CALLATTR)
    assert _root_call(unpacked) == (verb, args)
    usual = _usual_message(Frame(encode_request(seq, "call", args)))
    assert usual == ("call", seq, args)


@pytest.mark.parametrize("size", [*range(6), 255, 256, 257, 65_536])
def test_values_of_any_length_are_what_rpyc_would_send(size: int) -> None:
    """Where rpyc has another tag for a length; and they are read again."""
    number = 10 ** max(1, size % 1000)
    value = (b"x" * size, tuple(range(size)), "y" * size, number, -number, (None, True, 0.5))
    data = encode_reply(size, value)
    assert data == bytes(message(consts.MSG_REPLY, size, (consts.LABEL_VALUE, value)))
    assert _usual_message(Frame(data)) == (None, size, value)


@pytest.mark.slow
@given(numbers, plain)
def test_a_reply_is_what_rpyc_would_send(seq: int, value: Any) -> None:
    """As above, for replies."""
    frame = message(consts.MSG_REPLY, seq, (consts.LABEL_VALUE, value))
    assert encode_reply(seq, value) == frame
    assert _parse(frame) == (consts.MSG_REPLY, seq, (consts.LABEL_VALUE, value))
    assert _usual_message(frame) == (None, seq, value)


def test_a_request_takes_open_files_along(ends: tuple[Recorder, Recorder]) -> None:
    """To an end that expects them."""
    ours, theirs = ends
    theirs._channel.stream.expect_descriptors()
    channel = BulkChannel(theirs._channel.stream)
    with open_files(1) as numbers:
        ours.send_request(1, "call", (b"key",), [memoryview(b"array")], numbers)
        frame = channel.recv()
        theirs.dispatch(frame)
        assert theirs.seen == [("request", 1, "call", (b"key",), b"array")]
        assert list(map(file_of, frame.descriptors)) == list(map(file_of, numbers))


def test_other_verbs_take_the_general_way(end: Recorder) -> None:
    """They are rare."""
    frame = Frame(encode_request(7, "describe", (b"key",)))
    assert _usual_message(frame) is None
    end.dispatch(frame)
    assert end.seen == [("request", 7, "describe", (b"key",))]


def test_a_stock_peer_can_ping_and_close() -> None:
    """Its own messages, over its own channel."""
    with streams() as (ours, theirs):
        end, stock = Recorder(BulkChannel(ours)), Connection(VoidService(), Channel(theirs))
        answer = stock.async_request(consts.HANDLE_PING, "data")
        end.dispatch(end._channel.recv())
        stock.serve(None)
        assert answer.value == "data"
        stock._send(consts.MSG_REQUEST, 2, (consts.HANDLE_CLOSE, stock._box(())))
        with pytest.raises(EOFError, match="closed"):
            end.dispatch(end._channel.recv())
        stock._cleanup()


def test_an_exception_of_a_stock_peer_is_only_named(end: Recorder) -> None:
    """No instance is made of a type that the peer chose, and no attribute is set."""
    raised = (("builtins", "SystemExit"), (3,), (("__class__", "x"),), "its traceback")
    end.dispatch(message(consts.MSG_EXCEPTION, 5, raised))
    kind, seq, error = end.seen[0]
    assert (kind, seq) == ("failure", 5)
    assert type(error) is RemoteError
    assert error.type_name == "builtins.SystemExit"
    assert "its traceback" in str(error)


@pytest.mark.parametrize("value", [[1], {}, np.zeros(2), object(), print, ([],)], ids=stable_id)
def test_nothing_is_sent_by_reference(end: Recorder, value: object) -> None:
    """What brine does not take is refused where it is sent."""
    with pytest.raises(TypeError):
        end.send_request(1, "call", (value,))
    with pytest.raises(TypeError):
        end.send_reply(1, value)
    with pytest.raises(TypeError, match="no netrefs"):
        end._box(value)


LOCAL = (consts.LABEL_LOCAL_REF, ROOT)
REMOTE = (consts.LABEL_REMOTE_REF, ("builtins.list", 1, 2))
CALL = (consts.LABEL_VALUE, "call")
FORGED: dict[str, Frame] = {
    "a reference as argument": request(
        consts.HANDLE_CALLATTR, (consts.LABEL_TUPLE, (LOCAL, CALL, (consts.LABEL_TUPLE, (REMOTE,))))
    ),
    "another object's method": request(
        consts.HANDLE_CALLATTR, (consts.LABEL_TUPLE, (REMOTE, CALL, (consts.LABEL_VALUE, ())))
    ),
    "a verb that is no name": request(
        consts.HANDLE_CALLATTR,
        (consts.LABEL_TUPLE, (LOCAL, (consts.LABEL_VALUE, 1), (consts.LABEL_VALUE, ()))),
    ),
    "arguments that are no tuple": request(
        consts.HANDLE_CALLATTR, (consts.LABEL_TUPLE, (LOCAL, CALL, (consts.LABEL_VALUE, 1)))
    ),
    "a reply by reference": message(consts.MSG_REPLY, 1, REMOTE),
    "a reply with a reference inside": message(
        consts.MSG_REPLY, 1, (consts.LABEL_TUPLE, ((consts.LABEL_VALUE, 1), REMOTE))
    ),
    "a ping by reference": request(consts.HANDLE_PING, REMOTE),
    "a ping with nothing": request(consts.HANDLE_PING, (consts.LABEL_VALUE, ())),
    "an exception that is none": message(consts.MSG_EXCEPTION, 1, 2),
    "a number that is none": message(consts.MSG_REPLY, "1", (consts.LABEL_VALUE, 1)),
    "an unknown kind": message(99, 1, (consts.LABEL_VALUE, 1)),
    "text that is none": Frame(b"\1\x11\x51\x08\x00"),
    "nothing": Frame(b""),
    **{
        f"rpyc's request {name}": request(getattr(consts, name), (consts.LABEL_VALUE, ()))
        for name in dir(consts)
        if name.startswith("HANDLE_") and name not in ("HANDLE_PING", "HANDLE_CLOSE")
    },
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_message_is_refused(end: Recorder, case: str) -> None:
    """Nothing but calls of the root with plain values is understood."""
    with pytest.raises(ProtocolError):
        end.dispatch(FORGED[case])
    assert end.seen == []


def test_a_netref_cannot_be_made(end: Recorder) -> None:
    """By no way that rpyc has."""
    with pytest.raises(ValueError, match="netrefs"):
        end._netref_factory(("builtins.list", 1, 2))


def nested(depth: int) -> bytes:
    """A tuple in a tuple in a tuple."""
    return bytes(brine.TAG_TUP1 * depth + brine.TAG_NONE)


@pytest.mark.parametrize("depth", [10_000, 1_000_000])
@pytest.mark.parametrize("good", [encode_request(1, "call", (1,)), encode_reply(1, 1)])
def test_a_bomb_of_tuples_is_refused(end: Recorder, depth: int, good: bytes) -> None:
    """The interpreter's stack is not the peer's to use up."""
    for frame in (Frame(good[:1] + nested(depth)), Frame(good[:-2] + nested(depth))):
        with pytest.raises(ProtocolError):
            end.dispatch(frame)


def test_a_connection_that_was_shut_is_at_its_end(ends: tuple[Recorder, Recorder]) -> None:
    """Twice is as good as once, and the peer sees it."""
    ours, theirs = ends
    ours.shut()
    ours.shut()
    ours.close()
    assert ours.closed
    with pytest.raises(EOFError):
        ours.send_request(1, "call", ())
    with pytest.raises(EOFError):
        theirs.read()


def test_an_abandoned_connection_says_nothing_to_the_peer(
    ends: tuple[Recorder, Recorder],
) -> None:
    """A forked child closes its copy of the descriptor and leaves the parent's alone."""
    ours, theirs = ends
    copy = ours._channel.stream.sock.dup()
    with copy:
        ours.abandon()
        assert ours.closed
        assert not theirs._channel.poll(0)


@pytest.fixture
def pair() -> Iterator[tuple[BulkStream, BulkStream]]:
    with streams() as pair:
        yield pair


@pytest.mark.parametrize("size", [0, 10, 2999, 3001, 100_000, 1_000_000])
@pytest.mark.parametrize("compress", [True, False])
def test_a_stock_channel_and_ours_understand_each_other(
    pair: tuple[BulkStream, BulkStream], size: int, compress: bool
) -> None:
    """rpyc compresses what is larger than 3,000 bytes."""
    ours = BulkChannel(pair[0], inflates=True)
    stock = Channel(pair[1], compress=compress)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    for sender, receiver in ((stock, ours), (ours, stock)):
        sending = threading.Thread(target=sender.send, args=(body,))
        sending.start()
        assert receiver.recv() == body
        sending.join()


def test_waiting_for_a_message_knows_what_was_read_ahead(
    pair: tuple[BulkStream, BulkStream],
) -> None:
    """Nothing is left in the socket then."""
    ours, theirs = map(BulkChannel, pair)
    assert not theirs.poll(0)
    ours.send(b"one")
    ours.send(b"two")
    assert theirs.poll(None)
    assert theirs.recv() == b"one"
    assert theirs.poll(0)
    assert theirs.recv() == b"two"
    assert not theirs.poll(Timeout(0))


def test_the_limit_holds_both_ways(pair: tuple[BulkStream, BulkStream]) -> None:
    """And is each end's own."""
    ours, theirs = BulkChannel(pair[0], 1 << 20), BulkChannel(pair[1], 1 << 10)
    with pytest.raises(LimitExceeded):
        ours.send(b"", [memoryview(bytes(1 << 21))])
    ours.send(b"", [memoryview(bytes(1 << 11))])
    with pytest.raises(LimitExceeded):
        theirs.recv()


def test_an_arriving_message_asks_for_room(pair: tuple[BulkStream, BulkStream]) -> None:
    """Before its buffers are received."""
    asked: list[int] = []
    ours, theirs = BulkChannel(pair[0]), BulkChannel(pair[1], admit=asked.append)
    ours.send(b"body", [memoryview(b"123")])
    theirs.recv()
    assert asked == [7]


def test_a_closed_channel_is_at_its_end(pair: tuple[BulkStream, BulkStream]) -> None:
    """For both ends."""
    ours, theirs = map(BulkChannel, pair)
    ours.close()
    for channel in (ours, theirs):
        with pytest.raises(EOFError):
            channel.recv()
