"""The client's end of a connection: sends requests, and handles those of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rpyc.core.service import VoidService

from jaxd.connection.shared_reader import (
    CONNECTION_LOST_TEXT,
    NotSent,
    PendingReply,
    SharedReader,
    ignore_reply,
)
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import Cancelled, ConnectionLost, JaxdError, RemoteError
from jaxd_protocol.wire import BulkChannel, BulkConnection, BulkStream, Frame, Value

if TYPE_CHECKING:
    from jaxd.connection.server_requests import RequestWorkers, ServerRequestHandler


_MIN_DIRECT_BYTES = 1 << 16
_MIN_REPORTED_BYTES = 1 << 20


class ClientConnection(BulkConnection):
    """An open, authenticated connection. Thread-safe.

    Args:
        stream: connected, past the handshake.
        max_frame_bytes: what the server takes.
        handler: handles the requests of the server.

    Attributes:
        passes_descriptors: whether the server can be given open files, as far as is known.
        shared_reader: reads it, in the threads that wait for replies.
        address: of the server, for people; set by `open_connection`.
        worker: which of its workers this is; set by `open_connection`.
        session: which session of that worker; set by `open_connection`.
        owner: the user whose process listens, as the system says of a Unix socket of this machine;
            None where it does not; set by `open_connection`.
        welcome: the server's first message; set by `open_connection`.
        notice: what the server says of the end of the worker before; set by `open_connection`.
        on_transfer: called when a message of 1 MiB or more begins to go out or to come in.
    """

    def __init__(
        self, stream: BulkStream, max_frame_bytes: int, handler: ServerRequestHandler
    ) -> None:
        channel = BulkChannel(stream, max_frame_bytes, self._on_large_message)
        super().__init__(VoidService(), channel, {})
        self.shared_reader = SharedReader(self, channel)
        self._handler = handler
        self._request_workers: RequestWorkers | None = None
        self.passes_descriptors = stream.passes_descriptors
        self.address = "an address that is not known"
        self.worker: tuple[Any, ...] = ()
        self.session: tuple[Any, ...] = ()
        self.owner: int | None = None
        self.welcome: Mapping[str, Any] = {}
        self.notice = ""
        self.on_transfer: Callable[[ClientConnection], object] | None = None
        reset_after_fork(self)

    @property
    def alive(self) -> bool:
        """Whether requests can still be made."""
        return not self._closed

    def transfer_progress(self) -> tuple[str, int, int] | None:
        """Which large message is on its way: "sending" or "receiving", bytes so far, of how many.

        None when there is none. From any thread.
        """
        channel = self._channel
        for word, span in (
            ("sending", channel.writer.transfer),
            ("receiving", channel.reader.transfer),
        ):
            if span is not None and span.total >= _MIN_REPORTED_BYTES and not self._closed:
                return word, span.moved, span.total
        return None

    def _on_large_message(self, nbytes: int) -> None:
        """Called when a message of that size starts to be sent or received; perhaps twice."""
        if nbytes >= _MIN_REPORTED_BYTES and self.on_transfer is not None:
            self.on_transfer(self)

    def check(self) -> None:
        """Detects that the server has closed an idle connection, which no thread reads."""
        if not self.shared_reader.pending and not self._closed and self._channel.stream.has_ended():
            self.shut()

    def number(self) -> int:
        """A number for the next request, which names it in events as well."""
        return next(self.numbers)

    def request(
        self,
        verb: str,
        args: tuple[Value, ...],
        buffers: Sequence[memoryview] = (),
        deadline: float | None = None,
        number: int | None = None,
        descriptors: Sequence[int] = (),
        late: Callable[[PendingReply], None] = ignore_reply,
        about: Any = None,
    ) -> tuple[Value, Frame]:
        """The server's reply, and the frame with its buffers.

        Args:
            verb: what to call.
            args: plain values.
            buffers: bulk data beside them.
            deadline: `time.monotonic()` after which to stop waiting.
            number: the request's number, from `number()`, when the caller has to know it.
            descriptors: open files that the server is given.
            late: called, in the reading thread, when the caller was interrupted or the deadline has
                passed, and the reply comes all the same.
            about: the call that it is for, if it is for one.

        Raises:
            ConnectionLost: when the connection ended before the reply came.
            DeadlineExceeded: when the deadline passed.
            LimitExceeded: when the request is larger than the server takes.
        """
        seq = next(self.numbers) if number is None else number
        reader = self.shared_reader
        pending = reader.pending[seq] = PendingReply()
        pending.about = about
        try:
            self._send(seq, verb, args, buffers, descriptors)
            reader.wait(pending, deadline)
        except BaseException:
            reader.abandon(seq, pending, late)
            raise
        return pending.result()

    def wait(
        self,
        number: int,
        pending: PendingReply,
        deadline: float | None,
        late: Callable[[PendingReply], None],
    ) -> tuple[Value, Frame]:
        """The server's reply to a request that was launched; arguments and errors as `request`."""
        try:
            if self._channel.writer.held:  # it may not have gone out
                self.push()
            self.shared_reader.wait(pending, deadline)
        except BaseException:
            self.shared_reader.abandon(number, pending, late)
            raise
        return pending.result()

    def launch(
        self,
        verb: str,
        args: tuple[Value, ...],
        buffers: Sequence[memoryview],
        pending: PendingReply,
        number: int,
        *,
        more: bool = False,
    ) -> None:
        """Sends a request whose reply goes to `pending.then`; then `buffers` may change.

        The reply is read by the thread that waits or sends next, or by the connection's own: at
        once where `pending.needs_reader`, after a while where `pending.is_ahead`.

        Args:
            verb: what to call.
            args: plain values.
            buffers: bulk data beside them.
            pending: its `then` is called also when the connection ends before the reply came.
            number: the request's number.
            more: whether it may go out with the next message, or at `push`.

        Raises:
            ConnectionLost: when it could not be sent and `then` was not called.
            LimitExceeded: when it is larger than the server takes.

        Interrupted by anything else, it may have been sent: `then` is called when the reply comes.
        """
        try:
            self.shared_reader.register(number, pending)
            if pending.needs_reader:
                self.shared_reader.start_background_reading()
            self._send(number, verb, args, buffers, more=more)
        except JaxdError as error:
            was_called = not self.shared_reader.unregister(number, pending)
            if was_called and isinstance(error, ConnectionLost):
                return  # `then` handles it
            raise
        except BaseException:
            self.abandon_reply(number, pending)
            raise
        if self._closed:
            self.shared_reader.fail_all(ConnectionLost(CONNECTION_LOST_TEXT))

    def abandon_reply(self, number: int, pending: PendingReply) -> None:
        """Abandons a launched request: its reply is read all the same."""
        self.shared_reader.abandon(number, pending, pending.then or ignore_reply)

    def cancel(self, number: int) -> None:
        """Cancels a call on the server, if it was not answered yet."""
        if number in self.shared_reader.pending and not self._closed:
            with suppress(ConnectionLost):
                self.notify("cancel", (number,))

    def notify(self, verb: str, args: tuple[Value, ...]) -> None:
        """Sends a message that has no reply.

        Raises:
            ConnectionLost: when it could not be sent.
        """
        self._send(next(self.numbers), verb, args, ())

    def _send(
        self,
        seq: int,
        verb: str,
        args: tuple[Value, ...],
        buffers: Sequence[memoryview],
        descriptors: Sequence[int] = (),
        *,
        more: bool = False,
    ) -> None:
        if self._closed:
            raise NotSent(CONNECTION_LOST_TEXT)
        size = sum(map(len, buffers))
        self._on_large_message(size)
        try:
            if len(self.shared_reader.pending) > 1 and size > _MIN_DIRECT_BYTES:
                with (
                    self.shared_reader.background_reading()
                ):  # while this thread is stuck in sending
                    self.send_request(seq, verb, args, buffers, descriptors)
            else:
                self.send_request(seq, verb, args, buffers, descriptors, more=more)
        except EOFError as error:
            self.shared_reader.fail_all(ConnectionLost(CONNECTION_LOST_TEXT), error)
            raise NotSent(CONNECTION_LOST_TEXT) from error

    def push(self) -> None:
        """Sends what was launched with `more`; what waits for it learns where that fails."""
        try:
            self._channel.writer.send_held()
        except EOFError as error:
            self.shared_reader.fail_all(ConnectionLost(CONNECTION_LOST_TEXT), error)

    def retire(self) -> None:
        """Ends the connection on purpose: open requests fail, and are not repeated."""
        error = Cancelled(
            "the client was closed while the call was open. Keep it open until the result is here."
        )
        self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """Ends the connection: open requests fail with `error`, and are not repeated."""
        self.shared_reader.finish_all(error)
        self.shut()

    def shut(self) -> None:
        """Ends the connection; its own thread ends with it."""
        super().shut()
        self.shared_reader.stop()

    # what arrives -----------------------------------------------------------------------------

    def dispatch(self, frame: Frame) -> None:
        """Dispatches one message.

        Each step may be repeated, because an interrupt may fall in between.

        Raises:
            EOFError, ProtocolError: as `read_message`.
        """
        message = self.read_message(frame)
        if message is None:
            return
        verb, seq, value = message
        if verb is not None:
            self._on_request(seq, verb, value, frame)
            return
        pending = self.shared_reader.pending.get(seq)
        if pending is None:
            return
        if isinstance(value, RemoteError):
            pending.error = value
        pending.value, pending.frame = value, frame
        self.shared_reader.finish(seq, pending)

    def _on_request(self, seq: int, verb: str, args: tuple[Value, ...], frame: Frame) -> None:
        """Handles an event, or a request that the server makes while a call is open."""
        from jaxd.connection.server_requests import (  # most calls cause none
            RequestWorkers,
            read_event,
        )

        if verb == "event":
            self._handler.event(self, *read_event(args))
            return
        # in another thread: an answer may be large, and the reading thread must go on
        if self._request_workers is None:
            self._request_workers = RequestWorkers(lambda: len(self.shared_reader.pending))
        self._request_workers.submit(self, self._handler, seq, verb, args, frame)

    def about(self, number: Any) -> Any:
        """What the open request of that number is for; None when it is for no call, or not open."""
        pending = self.shared_reader.pending.get(number)
        return None if pending is None else pending.about

    def after_fork(self) -> None:
        """In the child of a fork: the connection is the parent's."""
        self.abandon()
        self.shared_reader.after_fork()
        self._request_workers = None
