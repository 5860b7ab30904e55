"""Places where a function on the server waits for the test, and ways for a test to wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.another_server import own_server_needed
from tests.server.staging import until

if TYPE_CHECKING:
    from jaxd import Client


R = TypeVar("R")


class Gate:
    """A named pipe. A function that comes to it stops until the test lets it go on.

    Attributes:
        path: what the function opens.
    """

    def __init__(self, path: Path) -> None:
        own_server_needed()  # another one may not see our files
        os.mkfifo(path)
        self.path = str(path)

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Waits until a function stands at the gate; it goes on at the end of the block."""
        with open(self.path, "wb"):
            yield

    def let_pass(self) -> None:
        """Lets who stands at the gate now go on; does not wait for anybody to come."""
        with suppress(OSError):  # nobody stands there
            os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))

    def let_leave(self, client: Client) -> None:
        """Waits until nothing runs on the server; what comes to the gate goes on.

        A call that nobody waits for any more may or may not have come there when it is interrupted.
        And jax has who traces the same meanwhile wait for it, and then perhaps trace twice.
        """

        def nothing_runs() -> bool:
            self.let_pass()
            now = client.caller.session.ask("statistics")
            return not now["running_calls"] and not now["left_behind"]

        until(nothing_runs)


def stop_at(path: str) -> Callable[[Any], Any]:
    """A function of one argument that stops at the gate while it is traced, then adds one."""

    def stopping(x: Any) -> Any:
        Path(path).read_bytes()  # no plain open(): that is warned of
        return x + 1

    return stopping


def stop_when_run(path: str) -> Callable[[Any], Any]:
    """A function that stops at the gate when it is run with a negative number, then adds one."""

    def stopping(x: Any) -> Any:
        import jax

        def look(value: Any) -> Any:
            if value < 0:
                Path(path).read_bytes()
            return value + 1

        return jax.pure_callback(look, jax.typeof(x), x)

    return stopping


def in_thread(function: Callable[..., R], *args: Any) -> Future[R]:
    """Runs it in a thread of its own, which keeps nobody waiting if it never ends."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:  # noqa: BLE001  the future has it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def advice(error: BaseException | str) -> str:
    """The last sentence of a message: what to do next."""
    text = str(error).strip()
    assert text.endswith((".", ")")), text
    return text.rstrip(".").rpartition(". ")[2]
