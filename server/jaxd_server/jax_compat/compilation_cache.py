"""jax's own compilation cache, beneath everything else, kept in the checked files of our store.

It finds what has been compiled before when only the way there was another: a function that is
traced again, a small operation in between. The private names that this needs are all here; where
they have moved in a newer jax, there is no such cache.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_compilation_cache.py.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import jax
from jax import monitoring

from jaxd_server.runtime.logs import log_event

_COMPILED = "/jax/core/compile/backend_compile_duration"
_REQUESTED = "/jax/compilation_cache/compile_requests_use_cache"
_FOUND = "/jax/compilation_cache/cache_hits"


class Records(Protocol):
    """What is needed of the store."""

    def read(self, kind: Literal["xla"], name: bytes, /) -> Any:
        """A record with `content` and `payload`, or None."""

    def write(
        self, kind: Literal["xla"], name: bytes, content: Any, payload: bytes = b"", /
    ) -> None:
        """Keeps it; returns at once."""


def install(store: Records, folder: str) -> bool:
    """Makes jax keep whatever it compiles in `store`, from now on and for the whole process.

    Args:
        store: where the entries are.
        folder: an absolute path that does not change from start to start. jax wants one, and
            version 0.10 has it in its keys; nothing is written there.

    Returns:
        Whether it does. If not, which is logged, jax has no cache on disk.
    """
    try:
        _replace_jaxs_files(_Entries(store, folder))
        for name, value in _settings(folder).items():
            jax.config.update(name, value)
    except Exception as error:  # noqa: BLE001 - whatever a newer jax raises
        jax.config.update("jax_compilation_cache_dir", None)
        reason = f"{type(error).__name__}: {error}"
        log_event("jax_cache_off", reason=reason, jax=jax.__version__)
        return False
    return True


@contextmanager
def bypassed() -> Iterator[None]:
    """Within it, this thread finds nothing of what was compiled before, and keeps nothing.

    Nor does jax make a key for it, or write it: both take a tenth of the time of compiling, in
    which no other thread runs Python.
    """
    before, _thread_state.bypassed = _thread_state.bypassed, True
    try:
        yield
    finally:
        _thread_state.bypassed = before


def hits_in_thread() -> int:
    """How many programs this thread has found in the cache until now.

    Such a one cannot be kept as `programs.serialize` does it: XLA writes an executable that it
    has read itself without its code, which only a call after a restart shows.
    """
    return _thread_state.hits


class _ThreadState(threading.local):
    bypassed = False
    hits = 0


_thread_state = _ThreadState()


def _settings(folder: str) -> dict[str, Any]:
    return {
        "jax_compilation_cache_dir": folder,
        "jax_enable_compilation_cache": True,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        # XLA's own files would be neither checked nor within the budget of the disk
        "jax_persistent_cache_enable_xla_caches": "",
        "jax_raise_persistent_cache_errors": False,
    }


def _replace_jaxs_files(entries: _Entries) -> None:
    from jax._src import compilation_cache

    jaxs: Any = compilation_cache
    for name in ("get_file_cache", "is_cache_used"):
        if not callable(getattr(jaxs, name)):
            raise TypeError(f"{name} is something else now.")
    is_used = jaxs.is_cache_used
    jaxs.is_cache_used = lambda backend: not _thread_state.bypassed and is_used(backend)
    jaxs.get_file_cache = lambda path: (entries, path)
    jaxs.reset_cache()  # the first compilation had found that there is none


class _Entries:
    """What jax takes for its files. jax calls it from any thread."""

    def __init__(self, store: Records, folder: str) -> None:
        self._path = Path(folder)  # jax logs it
        self._store = store

    def get(self, key: str) -> bytes | None:
        record = self._store.read("xla", _name(key))
        if record is None or record.content != key:
            return None
        _thread_state.hits += 1
        return bytes(record.payload)

    def put(self, key: str, value: bytes) -> None:
        self._store.write("xla", _name(key), key, value)


def _name(key: str) -> bytes:
    """jax's key begins with the name of the function, which may be long."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


class Compilations:
    """Listens to jax, and distinguishes compilations from hits of its cache on disk.

    Both functions are called in the thread that compiles.

    Args:
        on_compile: called with the seconds of each true compilation.
        on_disk_hit: called for each one that the cache has saved.
    """

    def __init__(
        self, on_compile: Callable[[float], None], on_disk_hit: Callable[[], None]
    ) -> None:
        self._on_compile = on_compile
        self._on_disk_hit = on_disk_hit
        self._thread = _ThreadHits()
        monitoring.register_event_listener(self._on_event)
        monitoring.register_event_duration_secs_listener(self._on_duration)

    def close(self) -> None:
        """Stops listening."""
        monitoring.unregister_event_listener(self._on_event)
        monitoring.unregister_event_duration_listener(self._on_duration)

    def _on_event(self, event: str, **_: str | int) -> None:
        # A compilation that another one begins, from Python inside the compiler, ends before the
        # outer one is found or not; so one flag for each thread is enough.
        if event in (_REQUESTED, _FOUND):
            self._thread.found = event == _FOUND

    def _on_duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event != _COMPILED:
            return
        found, self._thread.found = self._thread.found, False
        if found and not _thread_state.bypassed:
            self._on_disk_hit()
        else:
            self._on_compile(duration_secs)


class _ThreadHits(threading.local):
    found = False
