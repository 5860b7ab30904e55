"""What the server says by itself while a call of ours is open: what it reports, and what it asks.

Most calls hear nothing of the kind: imported when the first such message comes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxd_protocol.calls import FAILED
from jaxd_protocol.errors import JaxdError, PackingError, ProtocolError

if TYPE_CHECKING:
    from jaxd.pending import Answers
    from jaxd.transport import ClientConnection
    from jaxd_protocol.wire import Frame, Value

__all__ = ["answer", "read_event"]


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


def answer(
    connection: ClientConnection,
    answers: Answers,
    seq: int,
    verb: str,
    args: tuple[Value, ...],
    frame: Frame,
) -> None:
    """Answers a question of the server's, or ends the connection where there is no answer.

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
            found = _called_back(connection, answers, args, frame)
        else:
            found = _question(answers, verb, args)
        connection.send_reply(seq, *found)
    except (EOFError, JaxdError, KeyError):
        connection.shut()  # the server must not wait for an answer that does not come


def _question(
    answers: Answers, verb: str, args: tuple[Value, ...]
) -> tuple[Value, Sequence[memoryview]]:
    try:
        return answers.question(verb, args)
    except PackingError as error:  # the call that it is asked for fails with it
        return _failed(error), ()


def _called_back(
    connection: ClientConnection, answers: Answers, args: tuple[Value, ...], frame: Frame
) -> tuple[Value, Sequence[memoryview]]:
    """Whatever happens in a function of the user's, the program that called it is told."""
    about = connection.about(args[0])
    try:
        return answers.call_back(connection, about, args, frame.buffers)
    except BaseException as error:  # noqa: BLE001  see above
        return _failed(error), ()


def _failed(error: BaseException) -> Value:
    """The answer that says so."""
    from jaxd_protocol.failures import describe_failure  # most questions have an answer

    return FAILED, describe_failure(error)
