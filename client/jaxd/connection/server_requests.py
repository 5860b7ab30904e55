"""Events and requests that the server sends while a call is open.

Most calls cause none: imported when the first such message arrives.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import JaxdError, PackingError, ProtocolError
from jaxd_protocol.messages.calls import FAILED

if TYPE_CHECKING:
    from jaxd_protocol.wire import Frame, Value


_MAX_THREADS_PER_CALL: Final = 64
"""Threads for each open call: what runs here may make calls, whose requests need some too."""

_MAX_WAITING: Final = 4096
"""Requests without a thread. A server sends one for each of its threads that waits for us."""


class ServerRequestHandler(Protocol):
    """Handles requests and events that the server sends."""

    def answer_request(
        self, verb: str, args: tuple[Value, ...]
    ) -> tuple[Value, Sequence[memoryview]]:
        """The answer to `describe` or `code`."""

    def call_back(
        self,
        about: Any,
        question: tuple[Value, ...],
        buffers: Sequence[memoryview],
    ) -> tuple[Value, Sequence[memoryview]]:
        """Calls a function of this process for the open call `about`."""

    def event(
        self, connection: RequestSource, number: int, kind: str, content: dict[str, Any]
    ) -> None:
        """Handles an event of call `number`, in the reading thread: it must be quick."""


class RequestSource(Protocol):
    """The connection that a server request came over."""

    def about(self, number: Any) -> Any:
        """What the open request of that number is for; None when it is for no call, or not open."""

    def send_reply(self, seq: int, value: Value, buffers: Sequence[memoryview] = ()) -> None:
        """Answers question `seq`."""

    def refuse(self, error: Exception) -> None:
        """Ends the connection: open requests fail with `error`, and are not repeated."""

    def shut(self) -> None:
        """Ends the connection at once."""


class NoCallbackExpected(ProtocolError):
    """The server requested a callback for a call that has none."""


def read_event(args: tuple[Value, ...]) -> tuple[int, str, dict[str, Any]]:
    """Number of the call, kind and content of an event.

    Raises:
        ProtocolError: when it is none.
    """
    try:
        number, kind, text = args
        content = json.loads(text)
    except (RecursionError, TypeError, ValueError) as error:
        raise ProtocolError("the server reports something that cannot be read.") from error
    if (type(number), type(kind), type(content)) != (int, str, dict):
        raise ProtocolError("the server reports something that is no event.")
    return number, kind, content


class RequestWorkers:
    """The threads that handle server requests of one connection. Thread-safe.

    As many as there are requests, up to a number for each open call. A request that has none
    waits for one.

    Args:
        calls: how many calls are open.
    """

    def __init__(self, calls: Callable[[], int]) -> None:
        self._open_calls = calls
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._threads = 0
        self._starting = 0  # threads that have not taken their first question yet
        self._lock = threading.Lock()  # guards the three

    def submit(self, *question: Any) -> None:
        """Queues a server request for a thread; see `answer_request`.

        Raises:
            ProtocolError: when more of them wait than an honest server sends.
        """
        with self._lock:
            if len(self._waiting) >= _MAX_WAITING:
                raise ProtocolError(
                    f"the server asks more than {_MAX_WAITING} things at once, which no honest "
                    "one does. The connection was ended; find out who runs the server."
                )
            self._waiting.append(question)
            room = _MAX_THREADS_PER_CALL * (1 + self._open_calls()) - self._threads
            wanted = max(0, min(len(self._waiting) - self._starting, room))
            self._threads += wanted
            self._starting += wanted
        started = 0
        try:
            for _ in range(wanted):
                start_thread(threading.Thread(target=self._run, name="jaxd-answer", daemon=True))
                started += 1
        finally:
            with self._lock:
                self._threads -= wanted - started
                self._starting -= wanted - started

    def _run(self) -> None:
        """Answers until nothing waits."""
        coming = 1
        while True:
            with self._lock:
                self._starting -= coming
                coming = 0
                if not self._waiting:
                    self._threads -= 1
                    return
                question = self._waiting.popleft()
            try:
                answer_request(*question)
            except BaseException:
                with self._lock:
                    self._threads -= 1
                question[0].shut()  # the server must not wait for an answer that does not come
                raise


def answer_request(
    connection: RequestSource,
    handler: ServerRequestHandler,
    seq: int,
    verb: str,
    args: tuple[Value, ...],
    frame: Frame,
) -> None:
    """Answers a server request, or ends the connection where it cannot be answered.

    Args:
        connection: on which it came.
        handler: gives the answer.
        seq: the request's number.
        verb: `callback`, or what `ServerRequestHandler.answer_request` takes.
        args: plain values.
        frame: with the buffers beside them.
    """
    try:
        if verb == "callback":
            return _callback_reply(connection, handler, seq, args, frame)
        try:
            reply = handler.answer_request(verb, args)
        except PackingError as error:  # the call that needs the answer fails with it
            reply = _failure_reply(error), ()
        connection.send_reply(seq, *reply)
    except (EOFError, IndexError, JaxdError, KeyError, TypeError):  # or it is no question
        connection.shut()  # the server must not wait for an answer that does not come


def _callback_reply(
    connection: RequestSource,
    handler: ServerRequestHandler,
    seq: int,
    args: tuple[Value, ...],
    frame: Frame,
) -> None:
    """Runs a callback; its result or any exception is the reply.

    No honest server requests a callback for a call that has none: then the connection is ended.
    """
    about = connection.about(args[0]) if args and type(args[0]) is int else None
    try:
        found = handler.call_back(about, args, frame.buffers)
    except NoCallbackExpected as error:
        connection.send_reply(seq, _failure_reply(error), ())
        connection.refuse(error)
    except BaseException as error:  # noqa: BLE001  see above
        connection.send_reply(seq, _failure_reply(error), ())
    else:
        connection.send_reply(seq, *found)


def _failure_reply(error: BaseException) -> Value:
    from jaxd_protocol.messages.failures import encode_failure  # most requests have an answer

    return FAILED, encode_failure(error)
