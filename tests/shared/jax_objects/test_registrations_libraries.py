"""Classes of jax's libraries by value: they work where the user's module has never been.

Each library has a module of samples here, which one process packs and another, that does not
have it, unpacks and runs. When a private name of a library moves, its test fails with the name.
"""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.shared.pickling.processes import call_in_subprocess, pack_in_subprocess, run

pytestmark = pytest.mark.soak

HERE = Path(__file__).parent
LIBRARIES = {
    "trees": ("jax",),
    "linen": ("flax", "optax"),
    "nnx": ("flax", "optax"),
    "equinox": ("equinox", "optax"),
}
AT_HOME = """
import importlib, json, sys
sys.path.insert(0, "")
modules = {name: importlib.import_module("samples_" + name) for name in sys.argv[1:]}
print(json.dumps({name: repr(module.check()) for name, module in modules.items()}))
"""


def needs_all(name: str) -> None:
    for library in LIBRARIES[name]:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")


@pytest.fixture(scope="module")
def at_home() -> dict[str, str]:
    """What the samples find where they were written."""
    installed = [name for name, needed in LIBRARIES.items() if all(map(find_spec, needed))]
    found: dict[str, str] = json.loads(run(AT_HOME, *installed, cwd=HERE).splitlines()[-1])
    return found


@pytest.mark.parametrize("name", LIBRARIES)
def test_classes_of_a_library_work_where_they_arrive(
    name: str, at_home: dict[str, str], tmp_path: Path
) -> None:
    """Training, jit, key paths, saving and equality give what they give at home."""
    needs_all(name)
    one, other = (
        pack_in_subprocess(HERE, f"samples_{name}", ["check"], PYTHONHASHSEED=seed) for seed in "12"
    )
    assert one == other, "equal classes are not equal bytes in every process"
    assert call_in_subprocess(tmp_path, one, PYTHONHASHSEED="7") == {"check": at_home[name]}


def test_private_names_of_equinox_are_where_they_are_looked_for() -> None:
    """The first thing to look at when equinox has a new version."""
    needs_all("equinox")
    from equinox._module import _flatten, _module

    assert _module._ModuleInfo._fields == ("names_tuple", "names_set")
    for table in ("_module_info", "_has_dataclass_init", "_abstract_module_registry"):
        assert hasattr(_module, table)
    assert callable(_flatten.generate_flatten_functions)


def test_private_names_of_flax_are_where_they_are_looked_for() -> None:
    """The first thing to look at when flax has a new version."""
    needs_all("linen")
    from jaxd_protocol.jax_objects.registrations import FLAX_HOOKS

    for module, name in FLAX_HOOKS.items():
        assert "__init_subclass__" in vars(getattr(importlib.import_module(module), name)), name
    assert hasattr(importlib.import_module("flax.serialization"), "_STATE_DICT_REGISTRY")


def test_what_a_library_knows_of_a_class_is_plain() -> None:
    """It goes into a key and onto the wire."""
    needs_all("equinox")
    program = """
import json
from jaxd_protocol.jax_objects.registrations import class_registration
from tests.shared.jax_objects import samples_equinox as samples
print(json.dumps([class_registration(samples.Layer), class_registration(samples.Deep)]))
"""
    found = json.loads(run(program, cwd=HERE.parents[2]).splitlines()[-1])
    assert found == [["equinox", [False, False], None], ["equinox", [True, False], None]]
