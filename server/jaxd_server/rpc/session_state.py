"""The state of a session as one connection uses it: values, shared memory, and ordered calls."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

from jaxd_protocol.errors import JaxdError, ProtocolError
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import (
    BLOCK_PROBE_BYTES,
    DEFINING_SKELETON,
    INDEXED_SKELETON,
    MAX_INDEXED_BYTES,
    ResultPolicy,
    unpack_ids,
)
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.wire.stream import Descriptors
from jaxd_server.execution.call import Finish, Reply
from jaxd_server.rpc.sessions import Session
from jaxd_server.values.client_memory import ClientMemory
from jaxd_server.values.references import ReferencedData
from jaxd_server.values.store import ValueStore


class SessionState:
    """Values and shared blocks of one connection. For its reading thread.

    Args:
        session: whose connection it is.
        values: those of the whole worker.
        max_shared_bytes: of the client's memory that is mapped.

    Attributes:
        referenced_data: what the connection's calls may refer to.
    """

    def __init__(self, session: Session, values: ValueStore, max_shared_bytes: int) -> None:
        self._session = session
        self._values = values
        self._client_memory = ClientMemory(max_shared_bytes)
        self.referenced_data = ReferencedData(values, session.values, self._client_memory)

    @property
    def is_idle(self) -> bool:
        """Whether a call on values could start at once."""
        return self._session.call_queue.is_idle

    def enqueue(
        self,
        stay: ResultPolicy,
        start: Callable[[], Finish],
        send: Callable[[Reply], None],
        *,
        here: bool,
        is_short: bool,
    ) -> tuple[bool, Callable[[], None]]:
        """Gives a call on values its place: in order, and once, however often it is sent.

        Args:
            stay: says which call it is.
            start: starts it.
            send: sends its reply.
            here: whether to run it in the calling thread, if it can start at once.
            is_short: whether it may be started in the calling thread.

        Returns:
            Whether it is new: one that was sent before is answered when that one is. And what goes
            on with it: while that runs, another thread may read what comes behind it.
        """
        session = self._session

        def settle(reply: Reply) -> None:
            session.reply_cache.answer(stay.number, reply)

        again = partial(session.call_queue.put, start, settle, is_short=is_short)
        known = session.reply_cache.find_or_register(stay.number, stay.acked, send, again)
        if known is not None:
            return False, known
        return True, session.call_queue.enqueue(start, settle, is_short=is_short, at_once=here)

    def skeleton(self, told: bytes) -> bytes:
        """The skeleton that a call has.

        Args:
            told: what stands in the call; the skeleton itself, or its number in the session.

        Raises:
            ProtocolError: when there is none with that number, or it is too long for one.
        """
        known = self._session.skeletons
        if told.startswith(DEFINING_SKELETON) and 2 < len(told) <= MAX_INDEXED_BYTES:
            known[told[1]] = told[2:]
            return told[2:]
        if told.startswith(INDEXED_SKELETON) and len(told) == 2 and told[1] in known:
            return known[told[1]]
        if told.startswith((INDEXED_SKELETON, DEFINING_SKELETON)):
            raise ProtocolError("a call has a skeleton that nobody knows.")
        return told

    def drop(self, ids: bytes) -> None:
        """The client no longer holds some values; calls that came before may still need them."""
        if ids:
            gone, own = unpack_ids(ids), self._session.values
            self._session.call_queue.then(lambda: self._values.drop(own, gone))

    def share_block(self, descriptors: Descriptors, number: int, nbytes: int) -> tuple[Any, ...]:
        """Maps memory of the client's. Its first bytes show the client that it is the same."""
        if not descriptors:
            return (OK, b"")  # something in between does not pass them on
        try:
            self._client_memory.add(number, nbytes, descriptors.pop(0))
        except JaxdError as error:
            return (FAILED, encode_failure(error))
        return (OK, bytes(self._client_memory.view(number, 0, BLOCK_PROBE_BYTES)))

    def forget_blocks(self, numbers: tuple[int, ...]) -> None:
        """The client has given some blocks back to the system."""
        for number in numbers:
            self._client_memory.remove(number)

    def end_session(self) -> None:
        """The client has said that it ends: nobody comes back for what it has here."""
        self._session.is_over = True

    def close(self) -> None:
        """The connection ended: lets go of the client's memory; the values stay the session's."""
        self.referenced_data.close()
        self._session.call_queue.then(
            self._release_memory
        )  # calls in the call queue still read from them

    def _release_memory(self) -> None:
        self._client_memory.close()
        gc.collect(0)  # jax keeps what a program read until its next call, or until then
