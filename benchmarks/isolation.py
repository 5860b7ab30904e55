"""A network namespace with nothing but loopback, for peers that would open ports to others."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_numbers = itertools.count()


@contextmanager
def loopback_only() -> Iterator[tuple[str, ...]]:
    """The command prefix that runs a program in a namespace of its own.

    The prefix is empty where such a namespace cannot be made: without root, without `ip`, or
    in a container that does not allow it. The namespace is removed at the end.
    """
    name = f"jaxd-bench-{os.getpid()}-{next(_numbers)}"
    if not _make(name):
        yield ()
        return
    try:
        _ip("netns", "exec", name, "ip", "link", "set", "lo", "up")
        yield ("ip", "netns", "exec", name)
    finally:
        _ip("netns", "delete", name)


def _make(name: str) -> bool:
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    return _ip("netns", "add", name)


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0
