"""A connection's client, as the code that answers its calls uses it: questions and events."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from jaxd_protocol.errors import ConnectionLost, JaxdError, ProtocolError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recorded_reads import ProcessRead, RecordedRead, to_recorded_reads
from jaxd_protocol.pytree.literals import load_literal
from jaxd_protocol.wire import BulkConnection, Frame, Value
from jaxd_server.compilation.functions.function import Described
from jaxd_server.rpc.flow_control import ConnectionShare
from jaxd_server.rpc.send_queue import SendQueue
from jaxd_server.runtime.events import OUTPUT
from jaxd_server.user_code.callback_targets import CallbackTarget, pack_callback, read_callback


class ClientProxy:
    """A source of functions, a listener to the events of calls, and what calls back.

    Args:
        connection: where the client is.
        share: the calls of the connection.
        send_queue: sends the events.

    Attributes:
        owner: names the connection; see `FunctionSource`.
        questions: those that the client has not answered yet.
        called_back: those of them in which it runs a callback.
    """

    def __init__(
        self, connection: BulkConnection, share: ConnectionShare, send_queue: SendQueue
    ) -> None:
        self.owner = os.urandom(16)
        self.questions = PendingQuestions()
        self.called_back: set[int] = set()
        self._connection = connection
        self._share = share
        self._send_queue = send_queue

    def _ask(self, verb: str, *args: Value) -> tuple[Value, Frame]:
        """The client's answer; see `PendingQuestions.ask`."""
        connection = self._connection
        seq = next(connection.numbers)
        return self.questions.ask(seq, lambda: connection.send_request(seq, verb, args))

    def describe(self, key: bytes) -> Described:
        """What a key stands for."""
        (name, options, message), _ = self._ask("describe", key)
        manifest = FunctionManifest.from_message(message)
        return Described(manifest.recorded_fingerprint, name, Options.from_bytes(options), manifest)

    def code(self, fingerprint: bytes) -> bytes | memoryview:
        """The packed function.

        Raises:
            ProtocolError: when the client sends something else.
        """
        return self._only_buffer("code", fingerprint)

    def _only_buffer(self, verb: str, *args: Value) -> memoryview:
        _, frame = self._ask(verb, *args)
        if len(frame.buffers) != 1:
            raise ProtocolError(f"the client sent no {verb} for a function of its own.")
        return frame.buffers[0]

    def read(self, fingerprint: bytes, read: ProcessRead) -> Any:
        """What the client's process has: a literal; see `FunctionSource`.

        Raises:
            PackingError: when the function does not name it.
            ProtocolError: when the client sends something else.
        """
        with self.waiting():
            found = self._only_buffer("read", fingerprint, (tuple(read),))
        return load_literal(bytes(found), 0)[0]

    def confirm(
        self, fingerprint: bytes, reads: tuple[ProcessRead, ...]
    ) -> tuple[RecordedRead, ...]:
        """Digests of what the client's process has; see `FunctionSource`.

        Raises:
            PackingError: when the function does not name one of them.
            ProtocolError: when the client sends something else.
        """
        value, _ = self._ask("confirm", fingerprint, tuple(map(tuple, reads)))
        found = to_recorded_reads(value)
        if tuple(each.read for each in found) != tuple(sorted(reads)):
            raise ProtocolError("the client confirms other reads than those that it was asked for.")
        return found

    def call_back(
        self,
        number: int,
        callback_target: CallbackTarget,
        held: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        wants_result: bool,
        place: int = -1,
        has_lost_connection: bool = False,
    ) -> Any:
        """Has the client call a function of its own; its result, arrays as numpy's.

        Args:
            number: of the call whose program calls back.
            callback_target: names the function.
            held: the arrays that it refers to.
            args: its positional arguments.
            kwargs: its keyword arguments.
            wants_result: whether there is a result to wait for.
            place: see `callback_route.CallbackRoute`; -1: this is not asked again.
            has_lost_connection: whether the program has called back over another connection.

        Raises:
            ConnectionLost: when the client goes away first.
            Exception: what the function raises.
        """
        asked, buffers = pack_callback(callback_target, held, args, kwargs)
        question = (number, *asked, int(wants_result), place, int(has_lost_connection))
        seq = next(self._connection.numbers)
        send = partial(self._send_callback, seq, question, buffers)  # behind the call's output
        self.called_back.add(seq)
        try:
            with self.waiting():
                value, frame = self.questions.ask(
                    seq, lambda: self._send_queue.put(send), patiently=True
                )
        finally:
            self.called_back.discard(seq)
        return read_callback(value, frame.buffers) if wants_result else None

    def _send_callback(
        self, seq: int, question: tuple[Value, ...], buffers: Sequence[memoryview]
    ) -> None:
        try:
            self._connection.send_request(seq, "callback", question, buffers)
        except EOFError:
            return  # then the question fails as well
        except JaxdError as error:
            self.questions.answer(seq, str(error), True, Frame())

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within it a call waits for its client: whose messages are read, whatever the budget."""
        self._share.park()
        try:
            yield
        finally:
            self._share.unpark()

    def emit(self, number: int, kind: str, content: dict[str, Any]) -> None:
        """Sends the client an event of the call with that number: its progress, or its output."""
        send = self._send_queue.send if kind in _ORDERED_EVENTS else self._send_queue.notify
        send("event", number, kind, json.dumps(content))


_ORDERED_EVENTS: Final = OUTPUT | {"compiled"}
"""Events that are never dropped: the user waits for them."""


ANSWER_TIMEOUT_S: Final = 120.0
"""Seconds that a client has to describe its function; others may be waiting for the same one."""


class PendingQuestions:
    """The unanswered questions of one connection. Thread-safe: each step on the dict is atomic.

    Attributes:
        is_closed: whether the client is gone.
    """

    def __init__(self) -> None:
        self._open: dict[int, Future[tuple[Value, Frame]]] = {}
        self.is_closed = False

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
            if self.is_closed:
                raise ConnectionLost("the client went away")
            send()
            value, frame = question.result(None if patiently else ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise ConnectionLost(
                f"the client did not answer within {ANSWER_TIMEOUT_S:.0f} s what its function is. "
                "Call again."
            ) from error
        except EOFError as error:
            raise ConnectionLost("the client went away") from error
        finally:
            del self._open[seq]
        if value[:1] == (FAILED,):
            raise decode_failure(value[1])
        return value, frame

    def answer(self, seq: int, value: Value, failed: bool, frame: Frame) -> None:
        """The client answered question `seq`; does nothing when that is not pending."""
        question = self._open.get(seq)
        if question is None or question.done():
            return
        if failed:
            question.set_exception(ProtocolError(f"the client could not answer: {value}"))
        else:
            question.set_result((value, frame))

    def close(self) -> None:
        """The client is gone: fails all pending questions, and those that are asked later."""
        self.is_closed = True
        lost = ConnectionLost("the client went away")
        for question in list(self._open.values()):
            if not question.done():
                question.set_exception(lost)
