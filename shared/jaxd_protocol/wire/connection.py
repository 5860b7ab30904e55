"""An rpyc connection between our own two ends: everything by value, nothing by reference.

Each message is a genuine rpyc request or reply. The one object that can be named is the peer's
root, and both ends know its name beforehand (`ROOT`), so that no netref is ever made: in rpyc a
netref costs a round trip for each attribute, and copying one runs code that the peer chose.

One of the modules that import rpyc; relies on `Connection._local_root`, `_cleanup`, `_closed`,
`_send`, `_box`, `_unbox`, on the message layout of `Connection._send` and `_async_request`, on
the `stream`, `send`, `recv` and `poll` of `Channel`, and on brine's `_dump`, `_load`, tags and
tables of small integers.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NoReturn

from rpyc.core import brine, consts
from rpyc.core.channel import Channel
from rpyc.core.protocol import Connection

from jaxd_protocol.errors import ProtocolError, RemoteError
from jaxd_protocol.wire.frames import DEFAULT_MAX_FRAME_BYTES, Frame, FrameReader, FrameWriter
from jaxd_protocol.wire.stream import BulkStream


class BulkChannel(Channel):  # type: ignore[misc]
    """Messages over one socket. Any thread may send; one thread at a time may read.

    Args:
        stream: the connected stream.
        max_frame_bytes: larger messages are refused both ways, before any memory is taken.
        admit: called with the size of an arriving message before memory is taken for its
            buffers; it may block (back-pressure).
        inflates: whether the peer may be a stock one of rpyc's, which compresses; ours never do.
    """

    def __init__(
        self,
        stream: BulkStream,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        admit: Callable[[int], None] | None = None,
        *,
        inflates: bool = False,
    ) -> None:
        super().__init__(stream, compress=False)
        self.reader = FrameReader(
            stream.receive_into, max_frame_bytes, admit, stream.arrivals, inflates=inflates
        )
        self.writer = FrameWriter(stream.send_some, max_frame_bytes, stream.flush)

    def send(
        self,
        data: bytes,
        buffers: Sequence[memoryview] = (),
        descriptors: Sequence[int] = (),
        *,
        more: bool = False,
    ) -> None:
        """Sends one message; see `FrameWriter.write`."""
        self.writer.write(data, buffers, descriptors, more=more)

    def recv(self) -> Frame:
        """The next message, consumed; see `FrameReader.peek` for what it raises."""
        frame = self.reader.peek()
        self.reader.advance()
        return frame

    def poll(self, timeout: object) -> bool:
        """Whether `recv` would find bytes within `timeout`: seconds, None, or rpyc's `Timeout`."""
        seconds = timeout.timeleft() if hasattr(timeout, "timeleft") else timeout
        return self.reader.has_input() or self.stream.wait_readable(seconds)


Value = Any
"""The values of brine: None, bool, int, float, complex, str, bytes, slice, and tuples of these."""

Message = tuple[str | None, int, Value]
"""A verb, a number and arguments; or, of a reply, None, its number and its value.

The value is a `RemoteError` when the peer has raised an exception, which only a stock one does.
"""

ROOT: Final = ("jaxd.root", 0, 0)

PLAIN_CONFIG: Final[Mapping[str, object]] = {
    "allow_safe_attrs": False,
    "allow_exposed_attrs": True,
    "allow_public_attrs": False,
    "allow_all_attrs": False,
    "allow_setattr": False,
    "allow_delattr": False,
    "allow_pickle": False,
    "import_custom_exceptions": False,
    "instantiate_custom_exceptions": False,
    "instantiate_oldstyle_exceptions": False,
    "sync_request_timeout": None,
    "close_catchall": True,
}
"""rpyc's switches that let a peer reach further than the exposed methods, all off."""


_REQUEST_HEAD: Final = brine.I1.pack(consts.MSG_REQUEST) + brine.TAG_TUP2
_REPLY_HEAD: Final = brine.I1.pack(consts.MSG_REPLY) + brine.TAG_TUP2
_REPLY_TAIL: Final = brine.TAG_TUP2 + brine.dump(consts.LABEL_VALUE)


@cache
def _request_prefix(verb: str) -> bytes:
    """The bytes between a request's number and its arguments: call `verb` of the root."""
    no_args = brine.dump(())
    call = (consts.LABEL_LOCAL_REF, ROOT), (consts.LABEL_VALUE, verb), (consts.LABEL_VALUE, ())
    request = brine.dump((consts.HANDLE_CALLATTR, (consts.LABEL_TUPLE, call)))
    return bytes(request).removesuffix(no_args)


_CALL_PREFIX: Final = _request_prefix("call")
_LONG_INT: Final = brine.TAG_INT_L1[0]
_DECODING_ERRORS: Final = (
    TypeError, ValueError, IndexError, AttributeError, struct.error, RecursionError
)  # fmt: skip
"""The errors that rpyc's brine raises for bytes that are not brine."""


def encode_request(seq: int, verb: str, args: tuple[Value, ...]) -> bytes:
    """The rpyc request with number `seq` that calls `verb` of the peer's root."""
    parts = [_REQUEST_HEAD, _integer(seq), _request_prefix(verb)]
    _dump_all((args,), parts)
    return b"".join(parts)


def encode_reply(seq: int, value: Value) -> bytes:
    """The rpyc reply to request `seq`."""
    parts = [_REPLY_HEAD, _integer(seq), _REPLY_TAIL]
    _dump_all((value,), parts)
    return b"".join(parts)


# brine, with one call of a function for each tuple: rpyc's has two or three for each value in it,
# which were a fifth of all that a small call makes ----------------------------------------------

_BYTES_HEADS: Final = (
    *(brine.TAG_EMPTY_STR, brine.TAG_STR1, brine.TAG_STR2, brine.TAG_STR3, brine.TAG_STR4),
    *(brine.TAG_STR_L1 + bytes((size,)) for size in range(5, 256)),
)
_INT_HEADS: Final = tuple(brine.TAG_INT_L1 + bytes((size,)) for size in range(256))
_TUPLE_HEADS: Final = (
    *(brine.TAG_EMPTY_TUPLE, brine.TAG_TUP1, brine.TAG_TUP2, brine.TAG_TUP3, brine.TAG_TUP4),
    *(brine.TAG_TUP_L1 + bytes((size,)) for size in range(5, 256)),
)


def _integer(number: int) -> bytes:
    if number in brine.IMM_INTS:
        return bytes(brine.IMM_INTS[number])
    digits = b"%d" % number
    return _INT_HEADS[len(digits)] + digits if len(digits) < 256 else bytes(brine.dump(number))


def _dump_all(values: tuple[Value, ...], parts: list[bytes]) -> None:
    """Appends the brine of each value.

    Raises:
        TypeError: when one is no plain value.
    """
    for value in values:
        kind = type(value)
        if kind is bytes:
            size = len(value)
            head = _BYTES_HEADS[size] if size < 256 else brine.TAG_STR_L4 + brine.I4.pack(size)
            parts += (head, value)
        elif kind is tuple and len(value) < 256:
            parts.append(_TUPLE_HEADS[len(value)])
            _dump_all(value, parts)
        elif kind is int:
            parts.append(_integer(value))
        elif value is None:
            parts.append(brine.TAG_NONE)
        else:
            brine._dump(value, parts)


_IMMEDIATE: Final = range(min(brine.IMM_INTS_LOADER)[0], max(brine.IMM_INTS_LOADER)[0] + 1)
_ZERO: Final = brine.IMM_INTS[0][0]
_BYTES: Final = brine.TAG_STR_L1[0]
_SHORT_BYTES: Final = {head[0]: size for size, head in enumerate(_BYTES_HEADS[:6])}
"""Those of up to 255 bytes, and how many it has where the tag says so; `_BYTES` does not."""


def _load_all(data: bytes, at: int, count: int) -> tuple[tuple[Value, ...], int]:
    """The values whose brine begins at `at`, and where it ends.

    Raises:
        Exception: one of `_DECODING_ERRORS`, when it is no brine.
    """
    found: list[Value] = []
    for _ in range(count):
        tag = data[at]
        if tag in _IMMEDIATE:
            found.append(tag - _ZERO)
            at += 1
        elif tag in _SHORT_BYTES:
            start, size = (at + 1, _SHORT_BYTES[tag]) if tag != _BYTES else (at + 2, data[at + 1])
            at = start + size
            found.append(data[start:at])
        else:
            value, at = _LOADERS.get(tag, _load_other)(data, at + 1)
            found.append(value)
    if at > len(data):
        raise IndexError("its end is missing")  # `_parse` decides what becomes of it
    return tuple(found), at


Loader = Callable[[bytes, int], tuple[Value, int]]
"""Reads the value after a tag; returns where it ends."""


def _load_long_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + 4
    end = start + int(brine.I4.unpack_from(data, at)[0])
    return data[start:end], end


def _load_long_int(data: bytes, at: int) -> tuple[int, int]:
    end = at + 1 + data[at]
    return int(data[at + 1 : end]), end


def _load_other(data: bytes, at: int) -> tuple[Value, int]:
    """Of a type that our own messages do not have."""
    stream = io.BytesIO(data)  # no copy: these are bytes, and no `Frame`
    stream.seek(at - 1)
    return brine._load(stream), stream.tell()


def _load_text(data: bytes, at: int) -> tuple[str, int]:
    (encoded,), end = _load_all(data, at, 1)
    return encoded.decode(), end


_LOADERS: Final[dict[int, Loader]] = {
    brine.TAG_NONE[0]: lambda _, at: (None, at),
    brine.TAG_TRUE[0]: lambda _, at: (True, at),
    brine.TAG_FALSE[0]: lambda _, at: (False, at),
    brine.TAG_FLOAT[0]: lambda data, at: (brine.F8.unpack_from(data, at)[0], at + 8),
    brine.TAG_STR_L4[0]: _load_long_bytes,
    brine.TAG_INT_L1[0]: _load_long_int,
    brine.TAG_UNICODE[0]: _load_text,
    brine.TAG_EMPTY_TUPLE[0]: lambda _, at: ((), at),
    brine.TAG_TUP1[0]: lambda data, at: _load_all(data, at, 1),
    brine.TAG_TUP2[0]: lambda data, at: _load_all(data, at, 2),
    brine.TAG_TUP3[0]: lambda data, at: _load_all(data, at, 3),
    brine.TAG_TUP4[0]: lambda data, at: _load_all(data, at, 4),
    brine.TAG_TUP_L1[0]: lambda data, at: _load_all(data, at + 1, data[at]),
}
"""Of the types that our own messages have."""


class BulkConnection(Connection):  # type: ignore[misc]
    """Base of both ends: sends messages and reads those that arrive.

    Args:
        root: the rpyc service of this end.
        channel: a channel over an authenticated socket.
    """

    def __init__(self, root: object, channel: BulkChannel, config: Mapping[str, Any]) -> None:
        super().__init__(root, channel, {**PLAIN_CONFIG, **config})
        self.numbers = itertools.count(1)

    def send_request(
        self,
        seq: int,
        verb: str,
        args: tuple[Value, ...],
        buffers: Sequence[memoryview] = (),
        descriptors: Sequence[int] = (),
        *,
        more: bool = False,
    ) -> None:
        """Calls `verb` of the peer's root; the answer comes as a message of its own.

        `descriptors` are open files for a peer that takes them; the caller closes its own. With
        `more`, it may go out with the next message, see `FrameWriter.write`.

        Raises:
            EOFError: when the connection broke.
            InternalError: when open files cannot travel over this connection.
            LimitExceeded: when the message is too large.
        """
        self._channel.send(encode_request(seq, verb, args), buffers, descriptors, more=more)

    def send_reply(
        self, seq: int, value: Value, buffers: Sequence[memoryview] = (), *, more: bool = False
    ) -> None:
        """Answers the peer's request `seq`; arguments and errors as of `send_request`."""
        self._channel.send(encode_reply(seq, value), buffers, more=more)

    def read_message(self, frame: Frame) -> Message | None:
        """The request or reply that a frame holds; None for a ping, which is answered here.

        Raises:
            EOFError: when the peer closes the connection.
            ProtocolError: when it is not a message of our own two ends.
        """
        usual = _usual_message(frame)
        if usual is not None:
            return usual
        kind, seq, body = _parse(frame)
        if kind == consts.MSG_REPLY:
            return None, seq, self._unbox(body)
        if kind == consts.MSG_EXCEPTION:
            return None, seq, self._unbox_exc(body)
        handler, packed = body
        if handler == consts.HANDLE_CALLATTR:
            verb, args = _root_call(packed)
            return verb, seq, args
        if handler == consts.HANDLE_PING:
            self.send_reply(seq, _ping_data(self._unbox(packed)))
            return None
        if handler == consts.HANDLE_CLOSE:
            raise EOFError("the peer closed the connection")
        raise ProtocolError(f"rpyc request {handler} is not part of jaxd's protocol.")

    def shut(self) -> None:
        """Ends the connection at once, waking whoever reads or writes. May be called twice."""
        self._closed = True
        self._channel.close()

    def abandon(self) -> None:
        """Releases the socket in the child of a fork; the parent's connection stays intact."""
        self._closed = True
        self._channel.stream.abandon()

    # rpyc's transfer by reference, refused ---------------------------------------------------

    def _box(self, obj: object) -> tuple[int, Value]:
        if brine.dumpable(obj):
            return consts.LABEL_VALUE, obj
        raise TypeError(f"{type(obj).__name__} does not travel by value, and jaxd sends no netrefs")

    def _unbox(self, package: tuple[int, Value]) -> Value:
        try:
            label, value = package
            if label == consts.LABEL_VALUE:
                return value
            if label == consts.LABEL_TUPLE:
                return tuple(self._unbox(item) for item in value)
        except (TypeError, ValueError, RecursionError):
            pass
        raise ProtocolError("only plain values travel between jaxd's ends, no references.")

    def _unbox_exc(self, raw: Value) -> RemoteError:
        """A foreign end's exception by name: rpyc would make one, with any attributes."""
        try:
            (module, name), _, _, text = raw
            return RemoteError(f"the peer raised an exception:\n{text}", f"{module}.{name}")
        except (TypeError, ValueError) as error:
            raise ProtocolError("the peer raised an exception that cannot be read.") from error

    def _netref_factory(self, id_pack: object) -> NoReturn:
        raise ValueError("netrefs do not exist between jaxd's ends")

    def close(self) -> None:
        """Ends the connection; rpyc's own version would wait for an answer first."""
        self.shut()

    def __del__(self) -> None:
        """Nothing: the owner closes, and after a fork the child must not."""


def _usual_message(frame: Frame) -> Message | None:
    """The parts of a `call` or of a plain reply, found by constant bytes; None for others.

    These two are nearly all messages, and reading them item by item, as `_parse` does, takes
    three times as long.
    """
    try:
        if frame.startswith(_REPLY_HEAD):
            prefix, verb = _REPLY_TAIL, None
        elif frame.startswith(_REQUEST_HEAD):
            prefix, verb = _CALL_PREFIX, "call"
        else:
            return None
        at = len(_REPLY_HEAD)
        tag = frame[at]
        if tag == _LONG_INT:
            end = at + 2 + frame[at + 1]
            seq = int(frame[at + 2 : end])
        else:
            end = at + 1
            seq = brine.IMM_INTS_LOADER[frame[at:end]]
        if frame.startswith(prefix, end):
            (value,), _ = _load_all(frame[end + len(prefix) :], 0, 1)
            return (verb, seq, value) if verb is None or type(value) is tuple else None
    except (*_DECODING_ERRORS, KeyError):
        pass
    return None


def _parse(frame: Frame) -> tuple[int, int, Value]:
    """Kind, number and body of a message.

    Raises:
        ProtocolError: when the bytes are not brine, or not a message.
    """
    stream = io.BytesIO(frame)
    try:
        kind = stream.read(1)[0]
        seq, body = brine._load(stream)
        if type(seq) is int and kind in (
            consts.MSG_REQUEST,
            consts.MSG_REPLY,
            consts.MSG_EXCEPTION,
        ):
            return kind, seq, (body if kind != consts.MSG_REQUEST else (body[0], body[1]))
    except _DECODING_ERRORS:
        pass
    raise ProtocolError("a message cannot be read: the peer does not speak jaxd.")


def _root_call(packed: Value) -> tuple[str, tuple[Value, ...]]:
    """Verb and arguments of a boxed call of the root.

    Raises:
        ProtocolError: when anything else is called.
    """
    try:
        label, ((_, root), (_, verb), (args_label, args)) = packed
        labels = (label, args_label) == (consts.LABEL_TUPLE, consts.LABEL_VALUE)
        if labels and root == ROOT and type(verb) is str and type(args) is tuple:
            return verb, args
    except (TypeError, ValueError):
        pass
    raise ProtocolError("only methods of the root can be called, and only with plain values.")


def _ping_data(args: Value) -> Value:
    """The data of a ping, which is sent back.

    Raises:
        ProtocolError: when there is anything else.
    """
    if type(args) is tuple and len(args) == 1:
        return args[0]
    raise ProtocolError("a ping that cannot be read.")
