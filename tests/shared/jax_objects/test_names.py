"""Private names of jax: this test is the one to look at after an upgrade."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import jax
import jax.export
import pytest

from jaxd_protocol.jax_objects.names import (
    JAX_TYPES,
    attribute,
    is_of_jax,
    kind_of,
    name_of_jax_object,
)
from tests.ids import row
from tests.shared.jax_objects.samples_jax import samples


def test_a_type_of_jax_is_where_the_table_says() -> None:
    """A name that has moved in a new jax fails here, with the name."""
    for kind in JAX_TYPES:
        with row(kind):
            assert isinstance(attribute(*JAX_TYPES[kind]), type), JAX_TYPES[kind]


@pytest.mark.slow
def test_import_jax_loads_every_module_of_the_table() -> None:
    """A module that is loaded later would leave the kind of an object that is there unknown."""
    modules = sorted({module for module, _ in JAX_TYPES.values()})
    code = f"import jax, sys\nprint(*(name for name in {modules!r} if name not in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Extension modules are attributes of others.
    assert set(done.stdout.split()) <= {"jaxlib._jax.pytree"}


def test_what_jit_tells_about_itself_are_the_fields_that_are_known() -> None:
    """Options are read from a private record; a new one would be missing from the key."""
    read = {"static_argnums", "static_argnames", "donate_argnums", "donate_argnames"}
    read |= {"keep_unused", "inline", "device", "backend", "compiler_options_kvs"}
    described = ("shardings_treedef", "shardings_leaves", "layouts_leaves")
    read |= {f"{end}_{what}" for end in ("in", "out") for what in described}
    known = {"fun_sourceinfo", "fun_signature", "user_specified_in_shardings", "use_resource_env"}
    known |= {"in_layouts_treedef", "out_layouts_treedef"}
    jitted: Any = jax.jit(lambda x: x)
    fields = set(jitted._jit_info._fields)
    assert read - fields == set()
    assert fields - read - known == set()


@pytest.mark.parametrize("name", ["jit", "custom_vjp", "ufunc", "device", "mesh", "key type"])
def test_an_object_is_of_the_kind_that_its_sample_is_named_after(name: str) -> None:
    """Kinds are found by type, whatever jax calls the type's module."""
    assert kind_of(samples()[name]) == name


def test_a_subclass_of_jaxs_own_counts_and_a_users_does_not() -> None:
    """A tracer is of many types of jax; a user's class is an ordinary one."""
    seen: list[Any] = []
    jax.jit(lambda x: seen.append(kind_of(x)))(1.0)
    assert seen == ["tracer"]

    class Own(jax.ShapeDtypeStruct):
        pass

    assert kind_of(Own((), "float32")) is None  # type: ignore[no-untyped-call]
    assert not is_of_jax(Own)


def test_a_primitive_of_another_installed_package_is_found_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rules say which package it may be from; one without any is looked for in all."""
    module = ModuleType("installed_one")
    module.__spec__ = jax.__spec__
    module.__file__ = jax.__file__
    monkeypatch.setitem(sys.modules, "installed_one", module)

    def rule() -> None: ...

    rule.__module__ = "installed_one"
    module.own_p = type(jax.lax.sin_p)("own")  # type: ignore[attr-defined]
    module.own_p.def_impl(rule)
    assert name_of_jax_object(module.own_p) == ("installed_one", "own_p")
    module.bare_p = type(jax.lax.sin_p)("bare")  # type: ignore[attr-defined]
    assert name_of_jax_object(module.bare_p) == ("installed_one", "bare_p")
