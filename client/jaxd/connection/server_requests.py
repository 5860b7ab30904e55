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
    from jaxd.connection.pending import Answers
    from jaxd_protocol.wire import Frame, Value


_PER_CALL: Final = 64
"""Threads for each open call: what runs here may make calls, whose questions must have some too."""

_MOST_WAITING: Final = 4096
"""Questions without a thread. A server asks once for each of its threads that waits for us."""


class AskedOver(Protocol):
    """The connection that a server request came over."""

    def about(self, number: Any) -> Any:
        """What the open request of that number is for; None when it is for no call, or not open."""

    def send_reply(self, seq: int, value: Value, buffers: Sequence[memoryview] = ()) -> None:
        """Answers question `seq`."""

    def refuse(self, error: Exception) -> None:
        """Ends the connection: open requests fail with `error`, and nobody repeats them."""

    def shut(self) -> None:
        """Ends the connection at once."""


class NothingGiven(ProtocolError):
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


class Answerers:
    """The threads that handle server requests of one connection. Thread-safe.

    As many as there are questions, up to a number for each open call. A question that has none
    waits for one.

    Args:
        calls: how many calls are open.
    """

    def __init__(self, calls: Callable[[], int]) -> None:
        self._calls = calls
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._threads = 0
        self._coming = 0  # threads that have not taken their first question yet
        self._lock = threading.Lock()  # guards the three

    def take(self, *question: Any) -> None:
        """Queues a server request for a thread; see `answer`.

        Raises:
            ProtocolError: when more of them wait than an honest server asks.
        """
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                raise ProtocolError(
                    f"the server asks more than {_MOST_WAITING} things at once, which no honest "
                    "one does. The connection was ended; find out who runs the server."
                )
            self._waiting.append(question)
            room = _PER_CALL * (1 + self._calls()) - self._threads
            wanted = max(0, min(len(self._waiting) - self._coming, room))
            self._threads += wanted
            self._coming += wanted
        started = 0
        try:
            for _ in range(wanted):
                threading.Thread(target=self._work, name="jaxd-answer", daemon=True).start()
                started += 1
        finally:
            with self._lock:
                self._threads -= wanted - started
                self._coming -= wanted - started

    def _work(self) -> None:
        """Answers until nothing waits."""
        coming = 1
        while True:
            with self._lock:
                self._coming -= coming
                coming = 0
                if not self._waiting:
                    self._threads -= 1
                    return
                question = self._waiting.popleft()
            try:
                answer(*question)
            except BaseException:
                with self._lock:
                    self._threads -= 1
                question[0].shut()  # the server must not wait for an answer that does not come
                raise


def answer(
    connection: AskedOver,
    answers: Answers,
    seq: int,
    verb: str,
    args: tuple[Value, ...],
    frame: Frame,
) -> None:
    """Answers a server request, or ends the connection where it cannot be answered.

    Args:
        connection: on which it was asked.
        answers: who knows the answer.
        seq: the question's number.
        verb: what is asked: `callback`, or what `Answers.question` takes.
        args: plain values.
        frame: with the buffers beside them.
    """
    try:
        if verb == "callback":
            _call_back(connection, answers, seq, args, frame)
        else:
            connection.send_reply(seq, *_question(answers, verb, args))
    except (EOFError, IndexError, JaxdError, KeyError, TypeError):  # or it is no question
        connection.shut()  # the server must not wait for an answer that does not come


def _question(
    answers: Answers, verb: str, args: tuple[Value, ...]
) -> tuple[Value, Sequence[memoryview]]:
    try:
        return answers.question(verb, args)
    except PackingError as error:  # the call that it is asked for fails with it
        return _failed(error), ()


def _call_back(
    connection: AskedOver,
    answers: Answers,
    seq: int,
    args: tuple[Value, ...],
    frame: Frame,
) -> None:
    """Runs a callback; its result or any exception is the reply.

    A server that wants something called for a call that gives nothing is no honest one.
    """
    about = connection.about(args[0]) if args and type(args[0]) is int else None
    try:
        found = answers.call_back(connection, about, args, frame.buffers)
    except NothingGiven as error:
        connection.send_reply(seq, _failed(error), ())
        connection.refuse(error)
    except BaseException as error:  # noqa: BLE001  see above
        connection.send_reply(seq, _failed(error), ())
    else:
        connection.send_reply(seq, *found)


def _failed(error: BaseException) -> Value:
    """The answer that says so."""
    from jaxd_protocol.messages.failures import describe_failure  # most questions have an answer

    return FAILED, describe_failure(error)
