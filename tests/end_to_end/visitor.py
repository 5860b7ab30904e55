"""A program that calls the function of each project it is told, as a user's process would.

With `jit` the function runs under plain `jax.jit` in this process; with `server` each project is
imported and called in a child of its own, which starts with nothing of a project loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.identity.traveller import in_child_process


def call_as_client(place: dict[str, Any], call: Callable[[Any], Any]) -> dict[str, Any]:
    """Imports a project and calls `step` of its main module with an array of its own length."""
    import numpy as np

    os.chdir(place["folder"])
    sys.path.insert(0, place["folder"])
    sys.argv = ["main.py"]
    step = importlib.import_module("main").step
    x = np.arange(1, place["length"] + 1, dtype=np.float32)
    return call(step)(x)  # type: ignore[no-any-return]


def _on_the_server(step: Any) -> Callable[[Any], Any]:
    from jaxd import persistent_call, statistics
    from jaxd.errors import CompileAdvice

    def compiled(seen: Any) -> int:
        # A later jax finds programs with callbacks in its own cache.
        return int(seen.compiles + seen.xla_cache_hits)

    def call(x: Any) -> dict[str, Any]:
        before = statistics()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            value = persistent_call(step, results="numpy")(x)
        after = statistics()
        return {
            "value": value.tolist(),
            "built": [after.traces - before.traces, compiled(after) - compiled(before)],
            "heard": [str(w.message) for w in heard if w.category is not CompileAdvice],
        }

    return call


def _by_jit(step: Any) -> Callable[[Any], Any]:
    import jax

    return lambda x: {"value": jax.jit(step)(x).tolist()}


def _by_jit_here(place: dict[str, Any]) -> Any:
    modules, path = set(sys.modules), list(sys.path)
    try:
        return call_as_client(place, _by_jit)
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if _is_in(sys.modules[name], place["folder"]):
                del sys.modules[name]


def _is_in(module: Any, folder: str) -> bool:
    files = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(str(file).startswith(folder) for file in files)


def main() -> None:
    """Visits the places on the standard input."""
    order = json.load(sys.stdin)
    for name in order["preload"]:
        importlib.import_module(name)
    found = []
    for place in order["places"]:
        if order["how"] == "server":
            found.append(in_child_process(partial(call_as_client, place, _on_the_server)))
        elif place["alone"]:
            found.append(in_child_process(partial(call_as_client, place, _by_jit)))
    # A child must not inherit jax's threads: what runs here comes last.
    if order["how"] == "jit":
        here = iter([_by_jit_here(p) for p in order["places"] if not p["alone"]])
        away = iter(found)
        found = [next(away if p["alone"] else here) for p in order["places"]]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
