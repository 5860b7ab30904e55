"""Events and requests that the server sends while a call is open.

Most calls hear nothing of the kind: imported when the first such message comes.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd_protocol.errors import JaxdError, PackingError, ProtocolError
from jaxd_protocol.messages.calls import FAILED

if TYPE_CHECKING:
    from jaxd_protocol.wire import Frame, Value


_MAX_THREADS_PER_CALL: Final = 64
"""Threads for each open call: what runs here may make calls, whose questions must have some too."""

_MAX_WAITING: Final = 4096
"""Questions without a thread. A server asks once for each of its threads that waits for us."""


class ServerRequestHandler(Protocol):
    """Handles requests and events that the server sends.

    A `connection` tells the calls made over it from those of others, which have the same numbers.
    """

    def answer_request(
        self, verb: str, args: tuple[Value, ...]
    ) -> tuple[Value, Sequence[memoryview]]:
        """The answer to `describe` or `code`."""

    def call_back(
        self,
        connection: object,
        about: Any,
        question: tuple[Value, ...],
        buffers: Sequence[memoryview],
    ) -> tuple[Value, Sequence[memoryview]]:
        """Calls a function of this process for the open call `about`."""

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """Call `number` reports something; called by whoever reads, so it must be quick."""


class RequestSource(Protocol):
    """The connection that a server request came over."""

    def about(self, number: Any) -> Any:
        """What the open request of that number is for; None when it is for no call, or not open."""

    def send_reply(self, seq: int, value: Value, buffers: Sequence[memoryview] = ()) -> None:
        """Answers question `seq`."""

    def refuse(self, error: Exception) -> None:
        """Ends the connection: open requests fail with `error`, and nobody repeats them."""

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

    As many as there are questions, up to a number for each open call. A question that has none
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
            ProtocolError: when more of them wait than an honest server asks.
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
                threading.Thread(target=self._run, name="jaxd-answer", daemon=True).start()
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
        connection: on which it was asked.
        handler: who knows the answer.
        seq: the question's number.
        verb: what is asked: `callback`, or what `ServerRequestHandler.answer_request` takes.
        args: plain values.
        frame: with the buffers beside them.
    """
    try:
        if verb == "callback":
            _callback_reply(connection, handler, seq, args, frame)
        else:
            connection.send_reply(seq, *_lookup_reply(handler, verb, args))
    except (EOFError, IndexError, JaxdError, KeyError, TypeError):  # or it is no question
        connection.shut()  # the server must not wait for an answer that does not come


def _lookup_reply(
    handler: ServerRequestHandler, verb: str, args: tuple[Value, ...]
) -> tuple[Value, Sequence[memoryview]]:
    try:
        return handler.answer_request(verb, args)
    except PackingError as error:  # the call that it is asked for fails with it
        return _failure_reply(error), ()


def _callback_reply(
    connection: RequestSource,
    handler: ServerRequestHandler,
    seq: int,
    args: tuple[Value, ...],
    frame: Frame,
) -> None:
    """Runs a callback; its result or any exception is the reply.

    A server that wants something called for a call that gives nothing is no honest one.
    """
    about = connection.about(args[0]) if args and type(args[0]) is int else None
    try:
        found = handler.call_back(connection, about, args, frame.buffers)
    except NoCallbackExpected as error:
        connection.send_reply(seq, _failure_reply(error), ())
        connection.refuse(error)
    except BaseException as error:  # noqa: BLE001  see above
        connection.send_reply(seq, _failure_reply(error), ())
    else:
        connection.send_reply(seq, *found)


def _failure_reply(error: BaseException) -> Value:
    """The answer that says so."""
    from jaxd_protocol.messages.failures import encode_failure  # most questions have an answer

    return FAILED, encode_failure(error)
