from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jaxd_server.processes.tenants import os_users as module
from jaxd_server.processes.tenants.os_users import (
    end_processes,
    folders_of,
    living_processes,
    remove_folder,
)
from tests.server.staging import until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")

HERS = 200_000 + 3 * (os.getpid() % 1000)  # no other run of these tests ends what is ours
ENDER = HERS + 2
SAYS_WHEN_READY = "print('x', flush=True); sys.stdin.read()"


@contextmanager
def running(*words: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said that it is there."""
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, **how
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"x"
            yield process
        finally:
            process.kill()


def sleeping(uid: int) -> Any:
    """One of a user's, which waits."""
    return running("/bin/sh", "-c", "printf x; read -r line", user=uid, group=uid, extra_groups=[])


def signals(uid: int, pid: int, number: int) -> bool:
    """Whether a user may send one to a process."""
    words = ["/bin/sh", "-c", f"kill -{number} {pid}"]
    done = subprocess.run(
        words, user=uid, group=uid, extra_groups=[], check=False, capture_output=True
    )
    return done.returncode == 0


@as_root
def test_what_ends_processes_of_a_user_cannot_be_signalled_by_that_user() -> None:
    """Neither ended nor stopped; and it may itself do what it is there for."""
    words = (sys.executable, "-I", "-S", "-c", module._BECOME + SAYS_WHEN_READY)
    with running(*words, str(ENDER), str(HERS)) as killer, sleeping(HERS) as hers:
        assert signals(HERS, hers.pid, 0)
        assert not signals(HERS, killer.pid, 0)
        assert killer.pid in living_processes()[HERS], "it has its rights"


@as_root
def test_what_is_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the operator learns that somebody has not gone."""
    monkeypatch.setattr(module, "_END_ALL", "raise SystemExit(3)")
    with sleeping(HERS) as hers:
        why = end_processes(HERS, ENDER, patience_s=0.1)
    assert f"1 are left, such as {hers.pid}." in why
    assert "The process that ends them failed" in why


def test_living_processes_are_those_that_can_still_do_something() -> None:
    """One that has ended and was not asked after yet counts no more."""
    with subprocess.Popen(["/bin/sh", "-c", "exit 0"]) as ended:
        uid = os.getuid()
        assert os.getpid() in living_processes()[uid]
        until(lambda: ended.pid not in living_processes()[uid])
        assert os.path.exists(f"/proc/{ended.pid}")


def test_only_folders_are_listed(runtime: Path) -> None:
    """Not what links to one."""
    (runtime / "folder").mkdir()
    (runtime / "file").touch()
    (runtime / "link").symlink_to(runtime / "folder")
    assert folders_of(str(runtime)) == {f"{runtime}/folder": os.getuid()}


@as_root
def test_a_folder_is_removed_however_deep_it_is(runtime: Path) -> None:
    """Deeper than a path can be long, and than Python would go."""
    runtime.chmod(0o711)
    top = runtime / "hers"
    top.mkdir(0o700)
    os.chown(top, HERS, HERS)
    here = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("deep", 0o700, dir_fd=here)
        os.chown("deep", HERS, HERS, dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert remove_folder(str(top), HERS, ENDER) == ""
    assert not top.exists()
