"""The host's end of its channel to a worker: JSON objects, one a line, both ways."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from jaxd_server.runtime.json_lines import encode_line, messages

ANSWER_TIMEOUT_S: Final = 0.5
"""How long a worker may take to answer a question about itself before it counts as busy."""

_FINAL_READ_S: Final = 1.0


class WorkerChannel:
    """Receives messages of a worker and sends it orders. Belongs to the thread of the event loop.

    Args:
        host_channel: connected to the worker.
        limit: bytes of the longest line that is read.
        hear: told of each object that arrives; False: nothing more is to be heard.
        over: told once when nothing more will be, and why if what arrived could not be read.
    """

    def __init__(
        self,
        host_channel: socket.socket,
        limit: int,
        hear: Callable[[Mapping[str, Any]], bool],
        over: Callable[[ValueError | None], None],
    ) -> None:
        self._on_message = hear
        self._on_closed = over
        self._unsent: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._listening = asyncio.create_task(self._listen(host_channel, limit))

    @property
    def is_open(self) -> bool:
        """Whether what is said now can be answered."""
        return self._writer is not None and not self._writer.is_closing()

    def send(self, order: Mapping[str, Any]) -> None:
        """Sends an object, as soon as there is a line to send it on."""
        if self._writer is None:
            self._unsent.append(encode_line(order))
        else:
            self._writer.write(encode_line(order))

    async def read_remaining(self) -> None:
        """Reads what the worker sent before it ended; waits a second at most."""
        await asyncio.wait([self._listening], timeout=_FINAL_READ_S)

    def close(self) -> None:
        """Lets go of the line; a worker that still runs exits when it sees that."""
        self._listening.cancel()

    async def _listen(self, host_channel: socket.socket, limit: int) -> None:
        reader, writer = await asyncio.open_connection(sock=host_channel, limit=limit)
        self._writer = writer
        for line in self._unsent:  # what was said before there was a line to say it on
            writer.write(line)
        why = None
        try:
            async for message in messages(reader):
                if not self._on_message(message):
                    break  # what the worker has started may hold the other end, and go on
        except ValueError as error:
            why = error
        finally:
            writer.close()
            self._on_closed(why)


class PendingAnswer:
    """A request that is sent once, however many wait for its answer.

    So a worker that hangs finds one question when it wakes up.
    """

    def __init__(self) -> None:
        self._answer: asyncio.Future[str] | None = None

    @property
    def is_open(self) -> bool:
        """Whether an answer is awaited."""
        return self._answer is not None

    async def ask(self, say: Callable[[], None], patience_s: float) -> asyncio.Future[str]:
        """The answer, as far as it is there after `patience_s` seconds; cancelled: there is none.

        Args:
            say: asks, unless somebody has.
            patience_s: how long to wait at most.
        """
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            say()
        answer = self._answer
        await asyncio.wait([answer], timeout=patience_s)
        return answer

    def answered(self, answer: str = "") -> None:
        """Whoever waits has it; the next who wants to know asks again."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
        self._answer = None

    def drop(self) -> None:
        """Nobody has to wait for it any more."""
        if self._answer is not None:
            self._answer.cancel()
