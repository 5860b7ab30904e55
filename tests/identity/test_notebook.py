"""Keys of functions in a real notebook's kernel."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from tests.identity.projects import needs
from tests.live_server import source_environment

CELL = """
import collections
RATE = 2
TAGS = {"a", "b", "c", "d"}
class Model:
    def __init__(self, width): self.width = width
    def run(self, x): return x * self.width
def helper(x): return x * RATE + ("a" in TAGS)
def step(x):
    model = Model(3)
    return helper(model.run(x))
"""
OTHER = CELL.replace("x * RATE", "x / RATE")
COMMENTED = "# a comment\n\n" + CELL.replace("    model =", "    # why\n    model =")
UNRELATED = "unrelated = 1\ndef more(x): return unrelated"
DIGEST_PROGRAM = """
from jaxd_protocol.fingerprint import walk
print([walk(f, f.__name__).fingerprint.digest.hex() for f in (step, helper, Model)])
"""
TIMEOUT_S = 30


class Notebook:
    """A kernel in a process of its own, spoken to over Unix sockets."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(transport="ipc", ip=str(folder / "kernel"))
        self.environment = source_environment(folder, IPYTHONDIR=str(folder), HOME=str(folder))
        self.manager.start_kernel(env=self.environment, cwd=str(folder))
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

    def run(self, cell: str) -> str:
        """What a cell prints."""
        printed: list[str] = []

        def hear(message: Any) -> None:
            content = message["content"]
            assert message["msg_type"] != "error", content
            if message["msg_type"] == "stream":
                printed.append(content["text"])

        try:
            self.client.execute_interactive(cell, timeout=TIMEOUT_S, output_hook=hear)
        except (TimeoutError, Empty):
            pytest.fail("the kernel does not answer")
        return "".join(printed)

    def close(self) -> None:
        """Ends the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def _session_digests(notebook: Notebook) -> Iterator[tuple[str, str]]:
    for name, cell in (
        ("first", CELL),
        ("run again", CELL),
        ("with comments", COMMENTED),
        ("beside other cells", UNRELATED),
        ("another helper", OTHER),
        ("the helper restored", CELL),
    ):
        notebook.run(cell)
        yield name, notebook.run(DIGEST_PROGRAM)
    notebook.restart()
    notebook.run("x = 1")
    notebook.run(CELL)
    yield "after a restart", notebook.run(DIGEST_PROGRAM)


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, str]]:
    """What the digests are as a session goes on."""
    needs("ipykernel")
    needs("jupyter_client")
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))  # sun_path has 107 bytes
    before = dict(os.environ)
    os.environ.update(JUPYTER_RUNTIME_DIR=str(folder), JUPYTER_DATA_DIR=str(folder / "data"))
    notebook = Notebook(folder)
    try:
        yield dict(_session_digests(notebook))
    finally:
        notebook.close()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "moment",
    ["run again", "with comments", "beside other cells", "the helper restored", "after a restart"],
)
def test_the_key_stays_in_a_notebook(moment: str, seen: dict[str, str]) -> None:
    """A cell has another file name each time that it is edited, and in each kernel."""
    assert seen[moment] == seen["first"]


def test_a_redefined_helper_is_seen(seen: dict[str, str]) -> None:
    """The cell that calls it need not be run again."""
    (before, after) = (eval(seen[moment]) for moment in ("first", "another helper"))
    assert [one != other for one, other in zip(before, after, strict=True)] == [True, True, False]
