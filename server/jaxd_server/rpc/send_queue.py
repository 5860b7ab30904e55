"""The send queue of one client: replies and the output of its calls, in order.

A send blocks while the client does not read. So that this delays no other client, threads that work
for others as well only put replies into this queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from jaxd_protocol.errors import InternalError, LimitExceeded
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.wire import BulkChannel, BulkConnection, Value
from jaxd_server.execution.call import Reply
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.runtime.call_trace import ConnectionTrace
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.executors import SerialExecutor

_MAX_HELD_S: Final = 0.0002
"""A reply waits for those to calls that came with its own: so long, and one short call more."""

MAX_WAITING_EVENTS: Final = 64
"""Messages to one client that wait to be sent; beyond that its events are dropped."""

_MAX_WAITING_OUTPUT: Final = 256
"""Messages of output that wait to be sent; beyond that the calls block."""

_MAX_WAIT_S: Final = 30.0
"""How long a call waits for a client that does not read, before its output is dropped."""


class SendQueue:
    """Sends replies and events to one client, in order. Thread-safe.

    Args:
        connection: to the client.
        channel: its channel.
        share: what its calls hold; given back with their replies.
        max_bytes: of a result.

    Attributes:
        trace: records what is sent; None: nobody looks.
    """

    def __init__(
        self,
        connection: BulkConnection,
        channel: BulkChannel,
        share: ConnectionShare,
        max_bytes: int,
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._share = share
        self._reader: int | None = None  # the thread whose replies may wait for one another
        self._sent_at = 0.0  # when replies were sent last
        self._max_bytes = max_bytes
        self._waiting = SerialExecutor("jaxd-send", is_vital=True)
        self._has_room_for_output = threading.BoundedSemaphore(_MAX_WAITING_OUTPUT)
        self.trace: ConnectionTrace | None = None
        self._is_closed = False

    @property
    def is_working(self) -> bool:
        """Whether something is being sent, or waits for that."""
        return self._waiting.is_working

    def close(self) -> None:
        """The client is gone: drops further output."""
        self._is_closed = True

    def begin_inline(self) -> None:
        """The thread that reads is about to answer a call itself.

        Of calls that have come together, the replies go together.
        """
        if self._channel.writer.held and time.monotonic() - self._sent_at >= _MAX_HELD_S:
            self.send_held()
        self._reader = threading.get_ident()

    def send_held(self) -> None:
        """Sends the replies that wait for the next one."""
        with suppress(EOFError):  # the client is gone; its reader notices that as well
            self._channel.writer.send_held()

    def _may_wait(self) -> bool:
        """Whether a reply may wait for the one to the next call, which is here already."""
        if self._reader != threading.get_ident():
            return False
        now = time.monotonic()
        waits: bool = self._channel.reader.has_message() and now - self._sent_at < _MAX_HELD_S
        self._sent_at = self._sent_at if waits else now
        return waits

    def put(self, send: Callable[[], None]) -> None:
        """Queues a function that sends something; it must not raise."""
        self._waiting.put(send)

    def now(self, seq: int, answer: Reply, nbytes: int) -> None:
        """Sends a reply from a thread that works for this client alone, and so may block."""
        if self._waiting.is_working:  # behind the output of the call
            self.later(seq, answer, nbytes)
        else:
            self._send_answer(seq, answer, nbytes)

    def later(self, seq: int, answer: Reply, nbytes: int) -> None:
        """Queues a reply, from any thread; does not block."""
        held = sum(map(len, answer[1]))
        self._share.hold(held)

        def send() -> None:
            try:
                self._send_answer(seq, answer, nbytes)
            finally:
                self._share.hold(-held)

        self._waiting.put(send)

    def _send_answer(self, seq: int, answer: Reply, nbytes: int) -> None:
        try:
            value, buffers = answer
            size = sum(map(len, buffers))
            if size > self._max_bytes:
                raise LimitExceeded(  # noqa: TRY301  sent as the errors of sending are
                    f"the result has {size:,} bytes; this server sends at most "
                    f"{self._max_bytes:,}. Return less, or start the server with a larger "
                    "--max-result-bytes."
                )
            started_ns = 0 if self.trace is None else time.monotonic_ns()
            self._connection.send_reply(seq, value, buffers, more=self._may_wait())
            if self.trace is not None:
                self.trace.add(seq, "send", started_ns)
        except EOFError:
            return  # the client is gone; its reader notices that as well
        except Exception as error:  # noqa: BLE001  whatever it is, the client must not wait for ever
            self._send_error(seq, error)
        finally:
            self._share.end_call(nbytes)

    def _send_error(self, seq: int, error: Exception) -> None:
        """Sends an error where the reply could not be sent."""
        if not isinstance(error, LimitExceeded):
            log_event("reply_failed")
            error = InternalError(
                f"the server could not send the result: {error!r}. Its log has the traceback; "
                "please report it."
            )
        with suppress(EOFError):
            self._connection.send_reply(seq, (FAILED, encode_failure(error)))

    def notify(self, verb: str, *args: Value) -> None:
        """Sends the client a message that it does not answer, without waiting for it to go out.

        Dropped when the client is gone, or too much waits for it already.
        """
        if len(self._waiting) < MAX_WAITING_EVENTS:
            self._waiting.put(partial(self._send_message, verb, args))

    def send(self, verb: str, *args: Value) -> None:
        """Sends a message that is not answered, behind those before it and before any reply.

        Waits while the client has too many before it. Dropped when the client is gone, or does
        not read.
        """
        if self._is_closed or not self._has_room_for_output.acquire(timeout=_MAX_WAIT_S):
            return

        def send() -> None:
            self._send_message(verb, args)
            self._has_room_for_output.release()

        self._waiting.put(send)

    def _send_message(self, verb: str, args: tuple[Value, ...]) -> None:
        with suppress(EOFError):
            self._connection.send_request(next(self._connection.numbers), verb, args)
