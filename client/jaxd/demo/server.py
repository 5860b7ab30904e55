"""A server for the demo alone: in a directory of its own, gone when the demo is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from jaxd.background import start_background
from jaxd.control_client import stop_and_wait
from jaxd_protocol.addresses import Address
from jaxd_protocol.errors import ServerStartFailed
from jaxd_protocol.paths import LocalServerFiles

__all__ = ["JAX_CACHE_VARIABLES", "Counters", "counters_now", "private_server"]

Counters: TypeAlias = Mapping[str, int]

JAX_CACHE_VARIABLES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
)
"""What switches on jax's disk cache: neither the server nor "plain jax" may profit from it."""

_STARTING_PATIENCE_S = 5.0


@contextmanager
def private_server(directory: str) -> Iterator[str]:
    """Runs a server in `directory` and yields its address; the local server is not touched.

    It is stopped at the end of the block: after its running calls, at once when the block failed.

    Raises:
        ServerStartFailed: when it does not start; quotes the end of its log.
    """
    files = LocalServerFiles(os.path.join(directory, "server"))
    cache = os.path.join(directory, "cache")  # not what an earlier demo has left on disk
    try:
        with _environment(JAX_CACHE_VARIABLES, JAXD_CACHE_DIR=cache):
            start_background(files)
        yield str(Address.unix(files.socket))
    except ServerStartFailed:
        raise  # it ended by itself
    except BaseException:
        _stop_at_once(files)
        raise
    stop_and_wait(files.control)


def counters_now(address: str, names: Sequence[str]) -> Counters:
    """The named counters of the server at `address`."""
    import jaxd

    with jaxd.connect(address) as client:
        snapshot = client.statistics()
    return {name: getattr(snapshot, name) for name in names}


@contextmanager
def _environment(without: Sequence[str], **given: str) -> Iterator[None]:
    """For the processes that are started meanwhile: some variables hidden, some given."""
    names = (*without, *given)
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]
        os.environ.update(before)


def _stop_at_once(files: LocalServerFiles) -> None:
    """Stops the server, also one that was interrupted while it was starting."""
    deadline = time.monotonic() + _STARTING_PATIENCE_S
    while not stop_and_wait(files.control, now=True) and time.monotonic() < deadline:
        if not os.path.exists(files.log):
            return  # it was never spawned
        time.sleep(0.05)
