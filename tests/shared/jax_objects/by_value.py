"""A small packer around the functions under test, and processes to unpack in.

The product's own packer does more; here a class and a jax object travel with as little as needs
to be, so that a failure is one of `jax_objects`.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from enum import EnumMeta
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from jaxd_protocol.jax_objects.reducers import reduce_jax
from jaxd_protocol.jax_objects.registrations import build_class, class_registration, finish_class
from jaxd_protocol.packages.importable import find_object, importable_name
from jaxd_protocol.packages.installed import is_local_module

ROOT = Path(__file__).resolve().parents[3]
_EARLY = ("__slots__", "__module__", "__qualname__")
_LEFT_OUT = {*_EARLY, "__dict__", "__weakref__", "_abc_impl", "__abstractmethods__"}


class Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with classes and jax objects as this package has them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and is_local_module(value.__module__):
            if not isinstance(value, EnumMeta):
                return _reduce_class(value)
            return super().reducer_override(value)
        reduced = reduce_jax(value)
        if reduced is not NotImplemented:
            return reduced
        name = importable_name(value) if callable(value) else None
        # What pickle finds by itself is left to it: `find_object` is such a thing.
        if name is not None and name != (value.__module__, value.__qualname__):
            return find_object, name
        return super().reducer_override(value)


def dumps(value: Any) -> bytes:
    """The value with everything of this folder's modules by value."""
    ours = [module for name, module in sys.modules.items() if _is_sample(name, module)]
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        file = io.BytesIO()
        Packer(file).dump(value)
        return file.getvalue()
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)


def run(program: str, *arguments: str, seed: str = "0") -> Any:
    """Runs a program in a process of its own; gives what it printed last, as JSON."""
    folders = [ROOT, ROOT / "client", ROOT / "server", ROOT / "shared"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "PYTHONHASHSEED": seed,
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _is_sample(name: str, module: Any) -> bool:
    here = __name__.rpartition(".")[0]
    return isinstance(module, ModuleType) and name.startswith(f"{here}.samples")


def _reduce_class(cls: type) -> Any:
    namespace = vars(cls)
    early = {name: namespace[name] for name in _EARLY if name in namespace}
    slots = namespace.get("__slots__", ())
    left_out = {*_LEFT_OUT, *((slots,) if isinstance(slots, str) else slots)}
    late = {name: value for name, value in namespace.items() if name not in left_out}
    made = (type(cls), cls.__name__, cls.__bases__, early)
    return build_class, made, (late, class_registration(cls)), None, None, _fill


def _fill(cls: type, state: tuple[dict[str, Any], Any]) -> None:
    namespace, registration = state
    for name, value in namespace.items():
        type.__setattr__(cls, name, value)
    finish_class(cls, registration)
