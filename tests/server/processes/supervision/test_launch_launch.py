from __future__ import annotations

import errno
import os
import sys
import threading
from collections import Counter
from typing import Any, NoReturn

import pytest

from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.launch import launch
from jaxd_server.processes.supervision.tenant import Tenant
from tests.server.staging import until

ALICE = Tenant("account:alice", "none")


def files() -> Counter[str]:
    """What this process has open."""
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return Counter(os.readlink(path) for path in paths if os.path.lexists(path))


@pytest.mark.parametrize(
    "what",
    [
        "jaxd_server.runtime.flight_recorder.map_file",
        "socket.socketpair",
        "os.pipe",
        "os.eventfd",
        "os.memfd_create",
        "os.lseek",
        "threading.Thread.start",
        "subprocess.Popen",
    ],
)
def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Whatever there was not enough of, there is none the less of it afterwards."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        if what == "threading.Thread.start":
            raise RuntimeError("can't start new thread")
        raise OSError(errno.EMFILE, "Too many open files")

    before, threads = files(), {*threading.enumerate()}
    with monkeypatch.context() as patch:
        patch.setattr(what, fail)
        with pytest.raises(OSError, match=r"Too many|no thread"):
            launch([sys.executable], ServerOptions(), [], tenant=ALICE)
    until(lambda: threads.issuperset(threading.enumerate()))  # some may be about to end
    assert not files() - before
