"""What happens inside of a program of the corpus: the hook, its calls, jax's own events."""

from __future__ import annotations

import atexit
import hashlib
import json
import mmap
import os
import re
import struct
import sys
import threading
from pathlib import Path
from typing import Any

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": 0,
    "/jax/core/compile/jaxpr_to_mlir_module_duration": 1,
    "/jax/core/compile/backend_compile_duration": 2,
    "/jax/compilation_cache/cache_hits": 3,
}
"""Events of jax that are counted, each with its place in the file of counts."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MAX_REASONS = 3


def begin(mode: str, directory: str) -> None:
    """Prepares this process.

    Args:
        mode: `jaxd`, `plain` or `count`.
        directory: where the process writes what it has counted.
    """
    from jaxd.api.launch import process
    from jaxd.api.launch.jit_hook import JitHook
    from jaxd.interop.after_import import AfterImport

    sys.meta_path.insert(0, AfterImport({"jax"}, lambda _: _count_events(directory)))
    if mode == "count":
        return

    recorder = Recorder()
    if mode == "jaxd":
        hook = process.begin().hook
        recorder.watch_persistent_functions()
    else:
        hook = JitHook(make=recorder.plain)
        hook.install()
    path = Path(directory) / f"calls-{os.getpid()}.json"
    atexit.register(recorder.save, path, hook.not_served)


# events of jax ----------------------------------------------------------------------------------


def _count_events(directory: str) -> None:
    """Counts in a file in memory, which is complete however the process ends."""
    from jax import monitoring

    file = Path(directory) / f"events-{os.getpid()}"
    file.write_bytes(bytes(8 * len(EVENTS)))
    with file.open("r+b") as opened:
        counts = mmap.mmap(opened.fileno(), 0)
    lock = threading.Lock()  # of the counts

    def count(event: str, *_: Any, **__: Any) -> None:
        place = EVENTS.get(event)
        if place is not None:
            with lock:
                (before,) = struct.unpack_from("q", counts, 8 * place)
                struct.pack_into("q", counts, 8 * place, before + 1)

    monitoring.register_event_listener(count)
    monitoring.register_event_duration_secs_listener(count)


# calls ------------------------------------------------------------------------------------------


class Recorder:
    """What became of the calls of each function, and what some of them returned.

    A function is known by where it was written. Functions of one place are one entry: its calls are
    numbered through.
    """

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Any]] = {}
        self._lock = threading.RLock()  # of the entries
        self._local = threading.local()
        self._process = os.getpid()

    def entry(self, function: Any) -> dict[str, Any]:
        """The entry of a function."""
        label = label_of(function)
        with self._lock:
            return self._entries.setdefault(
                label,
                {"served": 0, "local": 0, "raised": 0, "inside": 0, "reasons": {}, "results": {}},
            )

    def save(self, path: Path, not_served: Any) -> None:
        """Writes it, in the process in which it began."""
        if os.getpid() != self._process:
            return  # a fork
        path.write_text(json.dumps({"functions": self._entries, "not_served": dict(not_served)}))

    # plain jax

    def plain(self, function: Any, *, static: str, **options: Any) -> Any:
        """A function in plain jax whose calls are recorded."""
        import jax

        if static == "auto":
            from flax import nnx

            original: Any = nnx.jit
        else:
            original = jax.jit
        return Recorded(original.__wrapped__(function, **options), function, self)

    # persistent functions

    def watch_persistent_functions(self) -> None:
        """Records all calls of persistent functions from now on."""
        from jaxd.api.function import PersistentFunction
        from jaxd.api.launch.jit_hook import HookedFunction
        from jaxd.interop.after_import import AfterImport

        def watch(kind: Any) -> None:
            call = kind.__call__

            def recorded(persistent: Any, *args: Any, **kwargs: Any) -> Any:
                return self.call(persistent, call, args, kwargs)

            kind.__call__ = recorded

        watch(PersistentFunction)
        watch(HookedFunction)

        def watch_local_runs(module: Any) -> None:
            ask = module.LocalRun.ask

            def asked(run: Any, *args: Any) -> Any:
                result = ask(run, *args)
                self._local.reason = run.reason[:600]
                return result

            module.LocalRun.ask = asked

        sys.meta_path.insert(0, AfterImport({"jaxd.tracing.fallback"}, watch_local_runs))

    def call(self, persistent: Any, call: Any, args: Any, kwargs: Any) -> Any:
        """One call of a persistent function, which may fall back to plain jax."""
        if getattr(self._local, "is_in_call", False):  # as the one that takes nnx objects apart
            return call(persistent, *args, **kwargs)
        self._local.is_in_call = True
        try:
            return self._outermost(persistent, call, args, kwargs)
        finally:
            self._local.is_in_call = False

    def _outermost(self, persistent: Any, call: Any, args: Any, kwargs: Any) -> Any:
        entry = self.entry(persistent.__wrapped__)
        if has_tracers((args, kwargs)):
            entry["inside"] += 1
            return call(persistent, *args, **kwargs)
        self._local.reason = None
        try:
            result = call(persistent, *args, **kwargs)
        except Exception:
            entry["raised"] += 1
            raise
        self._count(entry, result, self._local.reason)
        return result

    def _count(self, entry: dict[str, Any], result: Any, reason: Any) -> None:
        if has_tracers(result):  # of a call without arguments, while jax traces the caller
            entry["inside"] += 1
            return
        with self._lock:
            number = entry["served"] + entry["local"]
            entry["served" if reason is None else "local"] += 1
            reasons = entry["reasons"]
            if reason is not None and (reason in reasons or len(reasons) < _MAX_REASONS):
                reasons[str(reason)] = reasons.get(str(reason), 0) + 1
        self.keep(entry, number, result)

    def keep(self, entry: dict[str, Any], number: int, result: Any) -> None:
        """Keeps what a call returned: of the first eight, and then of each power of two."""
        if number < 8 or number & (number - 1) == 0:
            entry["results"][str(number)] = digest_of(result)


class Recorded:
    """A function under plain `jax.jit`, whose calls are recorded."""

    def __init__(self, jitted: Any, function: Any, recorder: Recorder) -> None:
        import functools

        functools.update_wrapper(self, function, updated=())
        self.__wrapped__ = function
        self._jitted = jitted
        self._recorder = recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        entry = self._recorder.entry(self.__wrapped__)
        if has_tracers((args, kwargs)):
            entry["inside"] += 1
            return self._jitted(*args, **kwargs)
        try:
            result = self._jitted(*args, **kwargs)
        except Exception:
            entry["raised"] += 1
            raise
        self._recorder._count(entry, result, None)
        return result

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        from types import MethodType

        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_jitted":
            raise AttributeError(name)
        return getattr(self._jitted, name)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def label_of(function: Any) -> str:
    """Where a function was written."""
    code = None
    for _ in range(20):
        code = getattr(function, "__code__", None)
        inner = getattr(function, "func", None) or getattr(function, "__func__", None)
        inner = inner or getattr(function, "__wrapped__", None)
        if inner is None or isinstance(function, type):
            break
        function = inner
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}.{name}:{code.co_firstlineno if code else 0}"


def has_tracers(tree: Any) -> bool:
    """Whether jax traces what calls with these arguments."""
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def digest_of(result: Any) -> list[Any]:
    """A digest of all bits, and sums that say how far two results are apart that are not equal."""
    import jax
    import numpy as np

    leaves, structure = jax.tree.flatten(result)
    whole = hashlib.blake2b(_ADDRESS.sub("", str(structure)).encode(), digest_size=12)
    sums: list[float] = []
    for leaf in leaves:
        if not hasattr(leaf, "dtype"):
            whole.update(_ADDRESS.sub("", repr(leaf)).encode())
            continue
        is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        try:
            data = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        except NotImplementedError:  # partial sums on several devices, which jax does not add up
            data = np.asarray(leaf.addressable_shards[0].data)
        whole.update(f"{data.dtype}{data.shape}".encode())
        whole.update(data.tobytes())
        is_number = data.dtype.kind in "fcV" and data.dtype.names is None  # of `float0`, no numbers
        if is_number and len(sums) < 2000:
            wide = data.astype(np.complex128 if data.dtype.kind == "c" else np.float64)
            sums += [float(abs(wide).sum())]
    return [whole.hexdigest(), sums]
