"""Real kernels of notebooks, in processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any, Final, NamedTuple

import pytest

from tests.identity.projects import needs

TIMEOUT_S: Final = 30

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

Message = tuple[str, Mapping[str, Any]]
"""Its type and its content."""


class Output(NamedTuple):
    """What the execution of a cell has sent.

    Attributes:
        messages: of it, in order.
        reply: to it.
    """

    messages: list[Message]
    reply: Mapping[str, Any]

    @property
    def printed(self) -> str:
        """The text of its streams."""
        return "".join(content["text"] for kind, content in self.messages if kind == "stream")

    @property
    def error(self) -> str:
        """The traceback as it is shown, without colours; empty where there was none."""
        found = [content["traceback"] for kind, content in self.messages if kind == "error"]
        return _COLOUR.sub("", "\n".join(found[0])) if found else ""

    def data(self, *kinds: str, of: str = "text/plain") -> list[str]:
        """What messages of these kinds show."""
        return [content["data"][of] for kind, content in self.messages if kind in kinds]

    @property
    def result(self) -> Mapping[str, str]:
        """The value of its last expression, by MIME type."""
        return next(content["data"] for kind, content in self.messages if kind == "execute_result")


class Kernel:
    """A kernel that is spoken to over Unix sockets.

    Args:
        folder: a short one, for its files.
        environment: of its process.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(transport="ipc", ip=str(folder / "kernel"))
        own = {"IPYTHONDIR": str(folder), "HOME": str(folder)}
        self.manager.start_kernel(env={**environment, **own}, cwd=str(folder))
        self.client = self._connect()

    def _connect(self) -> Any:
        client = self.manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT_S)
        return client

    def restart(self) -> None:
        """Ends the process and starts another."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.client = self._connect()

    def run(self, cell: str, heard: Callable[[Message], object] | None = None) -> Output:
        """What a cell sends; it may fail.

        Args:
            cell: its source.
            heard: called with each message as it comes.
        """
        messages: list[Message] = []

        def hear(message: Any) -> None:
            messages.append((message["msg_type"], message["content"]))
            if heard is not None:
                heard(messages[-1])

        try:
            reply = self.client.execute_interactive(cell, timeout=TIMEOUT_S, output_hook=hear)
        except (TimeoutError, Empty):
            pytest.fail("the kernel does not answer")
        return Output(messages, reply["content"])

    def run_in_thread(self, cell: str, heard: Callable[[Message], object] | None = None) -> Output:
        """As `run`, in a thread that ends with it, and so does the event loop that it has there."""
        from jupyter_core.utils import ensure_event_loop

        try:
            return self.run(cell, heard)
        finally:
            ensure_event_loop().close()

    def print(self, cell: str) -> str:
        """What a cell prints; it does not fail."""
        output = self.run(cell)
        assert not output.error, output.error
        return output.printed

    def completions(self, text: str) -> list[str]:
        """What it completes a line to."""
        sent, end = self.client.complete(text), time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            reply = self.client.get_shell_msg(timeout=TIMEOUT_S)
            if reply["parent_header"].get("msg_id") == sent:
                return list(reply["content"]["matches"])
        pytest.fail("the kernel does not answer")

    def close(self) -> None:
        """Ends it."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@contextmanager
def kernel(environment: Callable[[Path], Mapping[str, str]]) -> Iterator[Kernel]:
    """One that ends with the block; skips the test where there can be none.

    Args:
        environment: gives that of its process, from a folder of its own.
    """
    needs("ipykernel")
    needs("jupyter_client")
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))  # sun_path has 107 bytes
    before = dict(os.environ)
    os.environ.update(JUPYTER_RUNTIME_DIR=str(folder), JUPYTER_DATA_DIR=str(folder / "data"))
    made = None
    try:
        made = Kernel(folder, environment(folder))
        yield made
    finally:
        if made is not None:
            made.close()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder)
