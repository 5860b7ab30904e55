"""A pool of jaxd's own servers on this machine: members that run already, and a director."""

from __future__ import annotations

import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.own_server import OwnServer

_START_S: Final = 60.0
_END_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class OwnPool:
    """A running pool.

    Attributes:
        address: of its director, for clients.
        token_file: holds the token that the director asks for.
        members: by name.
    """

    address: str
    token_file: str
    members: dict[str, OwnServer]

    @property
    def environment(self) -> dict[str, str]:
        """What a client of it needs."""
        return {"JAXD_TOKEN_FILE": self.token_file}


@contextmanager
def own_pool(run: BenchmarkRun, count: int) -> Iterator[OwnPool]:
    """A pool of so many members, which share a store of programs and nothing else; then its end.

    Raises:
        RuntimeError: when it does not get ready; quotes its last words.
    """
    folder = run.directory / f"pool-{time.monotonic_ns()}"
    folder.mkdir(mode=0o700)
    key = secrets.token_hex(32)
    members = {
        f"m{number}": run.another_server(
            JAXD_STORE=str(folder / "store"),
            JAXD_STORE_KEY=key,
            JAXD_CACHE_DIR=str(folder / f"cache-{number}"),
        )
        for number in range(1, count + 1)
    }
    token_file, settings = folder / "token", folder / "pool.toml"
    token_file.touch(mode=0o600)
    token_file.write_text(secrets.token_hex(32) + "\n")
    rows = [
        f'[[static]]\nname = "{name}"\naddresses = ["{server.unix}"]\n'
        for name, server in members.items()
    ]
    head = 'listen = "tls://127.0.0.1:0"\nadvertise = "127.0.0.1"\n'
    settings.write_text("\n".join([head, *rows]), encoding="utf-8")
    environment = run.environment(
        JAXD_TOKEN_FILE=str(token_file), XDG_RUNTIME_DIR=str(folder), XDG_CONFIG_HOME=str(folder)
    )
    log = folder / "director.log"
    with log.open("wb") as errors:
        director = subprocess.Popen(
            [sys.executable, "-m", "jaxd_server.pool", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
    try:
        address = _address(director)
        if address is None:
            words = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the director did not get ready; its last words:\n{words}")
        yield OwnPool(address, str(token_file), members)
    finally:
        _end(director)


def _address(director: subprocess.Popen[bytes]) -> str | None:
    """What it tells clients to connect to, once it listens; None: it has ended, or is silent."""
    assert director.stdout is not None
    until = time.monotonic() + _START_S
    while (left_s := until - time.monotonic()) > 0:
        if not select.select([director.stdout], [], [], left_s)[0]:
            break
        line = director.stdout.readline().decode()
        if not line:
            break
        if found := re.search(r"pool://[^\s'\"]+", line):
            return found[0]
    return None


def _end(director: subprocess.Popen[bytes]) -> None:
    director.send_signal(signal.SIGTERM)
    try:
        director.wait(_END_S)
    except subprocess.TimeoutExpired:
        director.kill()
        director.wait()
    assert director.stdout is not None
    director.stdout.close()
