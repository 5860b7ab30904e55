"""What the server asks one client while a call of that client's waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from jaxd_protocol.calls import FAILED
from jaxd_protocol.errors import ConnectionLost, ProtocolError
from jaxd_protocol.failures import rebuild_failure
from jaxd_protocol.wire import Frame, Value

__all__ = ["QUESTION_S", "Questions"]

QUESTION_S: Final = 120.0
"""Seconds that a client has to say what its function is; others may be waiting for the same one."""


class Questions:
    """The open questions of one connection. Thread-safe: each step on the dict is atomic."""

    def __init__(self) -> None:
        self._open: dict[int, Future[tuple[Value, Frame]]] = {}
        self._closed = False

    def ask(
        self, seq: int, send: Callable[[], None], *, patiently: bool = False
    ) -> tuple[Value, Frame]:
        """The client's answer to question `seq`, and the frame with its buffers.

        Args:
            seq: its number.
            send: sends it.
            patiently: whether the client may take as long as it likes.

        For threads that answer a call, which is parked meanwhile; never for the reading one.

        Raises:
            ConnectionLost: when the client goes away first, or does not answer for too long.
            PackingError: when it cannot send what it is asked for.
        """
        question = self._open[seq] = Future()
        try:
            if self._closed:
                raise ConnectionLost("the client went away")
            send()
            value, frame = question.result(None if patiently else QUESTION_S)
        except TimeoutError as error:
            raise ConnectionLost(
                f"the client did not answer within {QUESTION_S:.0f} s what its function is. "
                "Call again."
            ) from error
        except EOFError as error:
            raise ConnectionLost("the client went away") from error
        finally:
            del self._open[seq]
        if value[:1] == (FAILED,):
            raise rebuild_failure(value[1])
        return value, frame

    def answer(self, seq: int, value: Value, failed: bool, frame: Frame) -> None:
        """The client answered question `seq`; nothing happens when nobody waits for that."""
        question = self._open.get(seq)
        if question is None or question.done():
            return
        if failed:
            question.set_exception(ProtocolError(f"the client could not answer: {value}"))
        else:
            question.set_result((value, frame))

    def close(self) -> None:
        """The client is gone: nobody waits any more."""
        self._closed = True
        lost = ConnectionLost("the client went away")
        for question in list(self._open.values()):
            if not question.done():
                question.set_exception(lost)
