"""That `make pauses` does what it says, in the processes of tests and in those that they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live_server import run_client, source_environment

PROGRAM = """
import sys, threading, time
from jaxd_protocol.base.buffers import allocate
paused, sleep = [], time.sleep
time.sleep = paused.append
threads = [threading.Thread(target=allocate, args=(8,)) for _ in range(2)]
for thread in threads:
    thread.start()
    thread.join()
allocate(8)
print(len(paused))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("share", "least"), [("1", 12), (None, 0)])
def test_every_thread_pauses_between_lines_of_jaxd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str | None, least: int
) -> None:
    """Only where it is asked for."""
    monkeypatch.delenv("PAUSES", raising=False)
    if share:
        monkeypatch.setenv("PAUSES", share)
    found = run_client(PROGRAM, environment=source_environment(tmp_path))
    assert (int(found.stdout) >= least) if least else (int(found.stdout) == 0)
