"""Classes of jax's libraries by value: they work where the user's module has never been.

Each library has a module of samples here, which one process packs and another, that does not
have it, unpacks and runs. When a private name of a library moves, its test fails with the name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.shared.jax_objects.by_value import run

pytestmark = pytest.mark.soak

LIBRARIES = {
    "trees": "jax",
    "linen": "flax",
    "nnx": "flax",
    "equinox": "equinox",
    "haiku": "haiku",
}
CLIENT = """
import importlib, json, sys
from pathlib import Path
from tests.shared.jax_objects.by_value import dumps
expected = {}
for name in sys.argv[2:]:
    module = importlib.import_module("tests.shared.jax_objects.samples_" + name)
    Path(sys.argv[1], name).write_bytes(dumps(module.check))
    expected[name] = module.check()
print(json.dumps(expected))
"""
SERVER = """
import json, pickle, sys, traceback
from pathlib import Path
found = {}
for name in sys.argv[2:]:
    try:
        found[name] = pickle.loads(Path(sys.argv[1], name).read_bytes())()
    except Exception:
        found[name] = traceback.format_exc()
assert not [name for name in sys.modules if name.startswith("tests.shared.jax_objects.samples")]
print(json.dumps(found))
"""


def installed() -> list[str]:
    """The samples whose libraries are here."""
    from importlib.util import find_spec

    needed = {"linen": ("flax", "optax"), "nnx": ("flax", "optax"), "equinox": ("equinox", "optax")}
    return [
        name
        for name, library in LIBRARIES.items()
        if all(find_spec(each) for each in needed.get(name, (library,)))
    ]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the samples find where they were written, and where they arrived."""
    folder = str(tmp_path_factory.mktemp("classes"))
    return run(CLIENT, folder, *installed()), run(SERVER, folder, *installed(), seed="7")


@pytest.mark.parametrize("name", LIBRARIES)
def test_classes_of_a_library_work_where_they_arrive(
    name: str, both: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """Training, jit, key paths, saving and equality give what they give at home."""
    if name not in installed():
        pytest.skip(f"{LIBRARIES[name]} or optax is not installed")
    assert both[1][name] == both[0][name]


def test_private_names_of_equinox_are_where_they_are_looked_for() -> None:
    """The first thing to look at when equinox has a new version."""
    pytest.importorskip("equinox", reason="equinox is not installed")
    from equinox._module import _flatten, _module

    assert _module._ModuleInfo._fields == ("names_tuple", "names_set")
    for table in ("_module_info", "_has_dataclass_init", "_abstract_module_registry"):
        assert hasattr(_module, table)
    assert callable(_flatten.generate_flatten_functions)


def test_private_names_of_flax_are_where_they_are_looked_for() -> None:
    """The first thing to look at when flax has a new version."""
    pytest.importorskip("flax", reason="flax is not installed")
    import importlib

    from jaxd_protocol.jax_objects.registrations import FLAX_HOOKS

    for module, name in FLAX_HOOKS.items():
        base = getattr(importlib.import_module(module), name)
        assert "__init_subclass__" in vars(base), name
    assert hasattr(importlib.import_module("flax.serialization"), "_STATE_DICT_REGISTRY")


def test_what_a_library_knows_of_a_class_is_plain(tmp_path: Path) -> None:
    """It goes into a key and onto the wire."""
    pytest.importorskip("equinox", reason="equinox is not installed")
    program = """
import json
from jaxd_protocol.jax_objects.registrations import class_registration
from tests.shared.jax_objects import samples_equinox as samples
print(json.dumps([class_registration(samples.Layer), class_registration(samples.Deep)]))
"""
    expected = [["equinox", [False, False], None], ["equinox", [True, False], None]]
    assert run(program, str(tmp_path)) == json.loads(json.dumps(expected))
