"""Modules: the user's own in parts, installed ones by name."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.data_model import ReachedObjects
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack, unpack_function
from tests.identity.projects import needs
from tests.shared.pickling.processes import (
    call_in_subprocess,
    pack_in_subprocess,
    round_trip,
    run,
    write,
)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of the user's own."""
    module = types.ModuleType("made_by_hand", "its docstring")
    exec("FACTOR = 3\nUNREAD = 4\ndef times(x): return x * FACTOR", vars(module))
    monkeypatch.setitem(sys.modules, "made_by_hand", module)
    return module


def test_a_module_as_a_value_travels_as_a_whole(mine: types.ModuleType) -> None:
    """With what stands in it, and without Python's own names."""
    found = unpack(pack(mine, "it"))
    assert found is not mine
    assert found.times(5) == 15
    assert (found.__doc__, found.UNREAD) == ("its docstring", 4)


def test_of_a_module_only_what_is_read_travels(mine: types.ModuleType) -> None:
    """The attributes at the end of a chain."""
    scope: dict[str, Any] = {"mine": mine, "__name__": __name__}
    exec("def use(): return mine.times(2)", scope)
    copy: Any = round_trip(scope["use"])
    assert copy() == 6
    assert not hasattr(copy.__globals__["mine"], "UNREAD")


def test_a_module_and_its_functions_share_their_globals(mine: types.ModuleType) -> None:
    """What one writes the other reads."""
    scope: dict[str, Any] = {"mine": mine, "__name__": __name__}
    exec("def use(): return mine.times, mine.FACTOR", scope)
    times, _ = round_trip(scope["use"])()
    copy = round_trip(scope["use"])
    assert copy.__globals__["mine"].times.__globals__ is vars(copy.__globals__["mine"])
    assert times(2) == 6


def test_of_a_whole_module_what_cannot_travel_stays_behind(mine: types.ModuleType) -> None:
    """Something stands in its place that says so when it is touched."""
    mine.stream = (number for number in [1])  # type: ignore[attr-defined]
    found = unpack(pack(mine, "it"))
    assert found.times(5) == 15
    with pytest.raises(PackingError, match="cannot travel"):
        next(found.stream)


PATCHED = """
import optax, math
import jax.numpy as jnp
import jax.numpy
import os
def mine(rate):
    return "mine", rate, optax.__name__
optax.sgd = mine
jnp.extra = 3.5
os.environ["ONLY_HERE"] = "value"
def by_global():
    return optax.sgd(1), jnp.extra, jax.numpy.extra, math.pi, os.environ["ONLY_HERE"]
def by_import():
    import jax.numpy as again
    import optax as o
    from jax.numpy import extra
    from optax import sgd
    import jax.numpy
    import os
    return again.extra, extra, o.sgd(2)[:2], sgd(3)[0], jax.numpy.extra, os.getenv("ONLY_HERE")
def untouched():
    return jnp.sin(0.0).item()
"""


@pytest.mark.slow
def test_what_somebody_has_patched_travels_along(tmp_path: Path) -> None:
    """However the function gets at the module; the server's own stays as it is."""
    needs("optax")
    names = ["by_global", "by_import", "untouched"]
    packed = pack_in_subprocess(
        write(tmp_path / "author", {"patched.py": PATCHED}), "patched", names
    )
    assert call_in_subprocess(tmp_path, packed) == {
        "by_global": "(('mine', 1, 'optax'), 3.5, 3.5, 3.141592653589793, 'value')",
        "by_import": "(3.5, 3.5, ('mine', 2), 'mine', 3.5, 'value')",
        "untouched": "0.0",
    }


def test_a_patch_that_the_server_has_too_needs_no_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own module serves."""
    import json

    monkeypatch.setattr(json, "LIMIT", 7, raising=False)
    scope: dict[str, Any] = {"json": json, "__name__": __name__}
    exec("def use(): return json.LIMIT", scope)
    data = pack_function(scope["use"], "it", walk(scope["use"], "it").reach)
    assert unpack_function(data).function.__globals__["json"] is json
    monkeypatch.setattr(json, "LIMIT", 8)
    arrived = unpack_function(data)
    assert arrived.function() == 7
    assert arrived.patched_modules["json"] is arrived.function.__globals__["json"]
    assert json.LIMIT == 8


def test_a_compiled_module_of_the_users_is_refused(tmp_path: Path) -> None:
    """With its file, and the ways out."""
    module = types.ModuleType("compiled_by_me")
    module.__file__ = str(tmp_path / "compiled_by_me.so")
    with pytest.raises(PackingError) as caught:
        pack_function(lambda: None, "it", _whole(module))
    for part in (module.__file__, "Install its package", "extra_key"):
        assert part in str(caught.value)


def _whole(module: types.ModuleType) -> ReachedObjects:
    reach = ReachedObjects()
    reach.imports[module.__name__] = module
    return reach


def test_names_of_a_modules_own_getattr_arrive(mine: types.ModuleType) -> None:
    """They are not in its namespace."""
    mine.__getattr__ = lambda name: f"made {name}"  # type: ignore[method-assign]
    scope: dict[str, Any] = {"mine": mine, "__name__": __name__}
    exec("def use(): return mine.lazily", scope)
    assert round_trip(scope["use"])() == "made lazily"


def test_globals_of_no_module_travel_too() -> None:
    """Such as those of `exec`, or of a module that was reloaded since."""
    scope: dict[str, Any] = {"__name__": "nowhere", "FACTOR": 2}
    exec("def one(): return FACTOR\ndef use(): return one(), one", scope)
    copy = round_trip(scope["use"])
    value, one = copy()
    assert value == 2
    assert one.__globals__ is copy.__globals__


COMPILED = """
import xxlimited
from xxlimited import foo
def whole():
    return xxlimited
def attribute():
    return xxlimited.foo(1, 2)
def function():
    return foo(1, 2)
def body():
    import xxlimited
    return xxlimited.foo(1, 2)
"""

TRY = """
import sys
sys.path.insert(0, "")
import use
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.functions import pack_function
for name in ("whole", "attribute", "function", "body"):
    function = getattr(use, name)
    try:
        pack_function(function, name, walk(function, name).reach)
    except PackingError as error:
        print(name, "xxlimited" in str(error) and "extra_key" in str(error))
"""


def test_whatever_a_compiled_module_made_is_refused(tmp_path: Path) -> None:
    """The module, its functions, from wherever they are imported."""
    spec = importlib.util.find_spec("xxlimited")
    if spec is None or spec.origin is None:
        pytest.skip("this Python has no extension module to copy")
    shutil.copy(spec.origin, tmp_path)
    write(tmp_path, {"use.py": COMPILED})
    text = run(TRY, cwd=tmp_path)
    assert text.split("\n")[:-1] == ["whole True", "attribute True", "function True", "body True"]
