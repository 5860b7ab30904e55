from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxd_server.processes.tenants.os_users import folders_of, remove_folder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")

HERS = 220_000 + 2 * (os.getpid() % 1000)
ENDER = HERS + 1


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


@as_root
def test_nothing_is_removed_that_its_user_could_not_remove(runtime: Path) -> None:
    """And it is told that something is left."""
    runtime.chmod(0o711)
    top = runtime / "hers"
    (top / "roots").mkdir(parents=True)
    (top / "roots" / "file").touch()
    os.chown(top, HERS, HERS)
    assert "not empty" in remove_folder(str(top), HERS, ENDER)
    assert (top / "roots" / "file").exists()
