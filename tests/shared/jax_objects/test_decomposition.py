"""Taking jax objects apart: the same parts in every process, other parts for other content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from jaxd_protocol.errors import PackingError, TracerError
from jaxd_protocol.jax_objects.decomposition import (
    ObjectParts,
    array_content,
    decompose,
    jaxpr_parts,
)
from tests.ids import row
from tests.shared.jax_objects.samples_jax import product, samples
from tests.shared.jax_objects.shown import digest
from tests.shared.pickling.processes import run

ROOT = Path(__file__).resolve().parents[3]

DIGESTS = """
import json
from tests.shared.jax_objects.samples_jax import samples
from tests.shared.jax_objects.shown import digest
print(json.dumps({name: digest(value) for name, value in samples().items()}))
"""


@pytest.fixture(scope="module")
def digests() -> list[dict[str, str]]:
    """Digests of all samples, from two processes with different hash seeds."""
    return [json.loads(run(DIGESTS, cwd=ROOT, PYTHONHASHSEED=seed)) for seed in "12"]


@pytest.mark.parametrize("name", samples())
def test_two_processes_take_an_object_apart_alike(name: str, digests: list[dict[str, str]]) -> None:
    """Neither addresses nor the order of sets get into the parts."""
    assert digests[0][name] == digests[1][name]


def test_every_sample_has_parts_of_its_own(digests: list[dict[str, str]]) -> None:
    """No two different objects look alike."""
    assert len(set(digests[0].values())) == len(digests[0])


def _settings(object_parts: ObjectParts | None) -> list[Any]:
    assert object_parts is not None
    return [value for _, value in object_parts.settings]


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str, bytes)


def test_settings_are_plain_values() -> None:
    """They can be hashed as they are."""
    for name in samples():
        with row(name):
            object_parts = decompose(samples()[name])
            if object_parts is not None:
                assert all(map(_is_plain, _settings(object_parts)))


JITS: dict[str, Callable[[], Any]] = {
    "plain": lambda: jax.jit(product),
    "static_argnums": lambda: jax.jit(product, static_argnums=0),
    "static other": lambda: jax.jit(product, static_argnums=1),
    "donate": lambda: jax.jit(product, donate_argnums=0),
    "keep_unused": lambda: jax.jit(product, keep_unused=True),
    "inline": lambda: jax.jit(product, inline=True),
    "compiler_options": lambda: jax.jit(product, compiler_options={"xla_a": 1}),
    "compiler_options other": lambda: jax.jit(product, compiler_options={"xla_a": 2}),
    "out_shardings": lambda: jax.jit(product, out_shardings=samples()["named sharding"]),
    "in_shardings": lambda: jax.jit(product, in_shardings=samples()["named sharding"]),
    "layout": lambda: samples()["jit layout"],
}


def test_each_option_of_jit_changes_the_object_parts() -> None:
    """An option that is left out of the key would give somebody the wrong program."""
    found = {name: digest(make()) for name, make in JITS.items()}
    assert len(set(found.values())) == len(found), found


def test_an_attribute_that_was_set_on_a_jitted_function_is_a_part() -> None:
    """Code can read `step.rate`, so it counts."""
    first, second = jax.jit(product), jax.jit(product)
    second.rate = 3  # type: ignore[attr-defined]
    assert decompose(first) != decompose(second)


def test_what_jax_defines_is_its_name() -> None:
    """`jnp.sin` is the same in every version of the user's code."""
    found = decompose(jnp.sin)
    assert found == ObjectParts("jit", (("module", "jax.numpy"), ("name", "sin")))
    primitive = decompose(jax.lax.sin_p)
    assert primitive == ObjectParts("primitive", (("module", "jax.lax"), ("name", "sin_p")))


def test_the_rules_of_a_primitive_of_the_users_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the table that has each, under the name in the module that makes it, and in order."""
    from jax._src import dispatch
    from jax._src.interpreters import mlir
    from jax.interpreters import ad

    own = type(jax.lax.sin_p)("own")
    monkeypatch.setitem(ad.primitive_jvps, own, product)
    monkeypatch.setitem(mlir._platform_specific_lowerings["cuda"], own, product)
    needing = dispatch.prim_requires_devices_during_lowering
    needing.add(own)
    found = decompose(own)
    needing.remove(own)
    assert found is not None
    rules = {name: part for name, part in (*found.settings, *found.children) if "rule" in name}
    assert rules == {
        "rule jax._src.dispatch:prim_requires_devices_during_lowering": True,
        "rule jax._src.interpreters.ad:primitive_jvps": product,
        "rule jax._src.interpreters.mlir:_platform_specific_lowerings:cuda": product,
    }


def test_a_rule_of_a_primitive_that_cannot_be_named_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be missing on a server."""
    from jax._src.interpreters import mlir

    own = type(jax.lax.sin_p)("own")
    tables: Any = mlir._platform_specific_lowerings
    monkeypatch.setitem(tables, 7, {own: product})
    with pytest.raises(PackingError, match=r"under 7, which has no name"):
        decompose(own)


def test_a_rule_of_a_custom_derivative_is_a_part() -> None:
    """Two functions with one body and different derivatives are two functions."""

    def made(factor: int) -> Any:
        function = jax.custom_jvp(product)
        function.defjvps(lambda tangent, answer, x, n: tangent * factor, None)
        return function

    assert digest(made(2)) == digest(made(2)) != digest(made(3))


def test_a_tree_structure_has_its_classes_among_its_children() -> None:
    """A user's class in it is walked like any other."""
    found = decompose(jax.tree.structure({"b": 1, "a": (None, 2)}))
    assert found is not None
    assert found.settings[0] == ("nodes", (2, 2, 0, "leaf", "leaf"))
    classes = [child for label, child in found.children if label.startswith("class")]
    assert classes == [dict, tuple, type(None)]


def test_the_order_of_devices_and_the_types_of_axes_are_parts_of_a_mesh() -> None:
    """Neither is in the text of a sharding."""
    devices = np.array(jax.devices()[:1])
    auto, explicit = (
        decompose(Mesh(devices, ("x",), axis_types=(kind,)))
        for kind in (AxisType.Auto, AxisType.Explicit)
    )
    assert auto != explicit
    assert auto is not None
    assert ("devices", ((jax.devices()[0].platform, 0),)) in auto.settings


def test_an_unconstrained_axis_is_not_an_axis_without_partition() -> None:
    """`None` means replicated, `UNCONSTRAINED` leaves it to the compiler."""
    spec: Any = PartitionSpec
    assert decompose(spec(spec.UNCONSTRAINED)) != decompose(spec(None))


def test_an_exported_program_is_its_module_and_types() -> None:
    """It has a content without being serialised, which needs another package."""
    from jax import export

    jitted = jax.jit(product)
    first, again, other = (export.export(jitted)(1.0, n) for n in (2.0, 3.0, 2))
    assert digest(first) == digest(again) != digest(other)


@pytest.mark.parametrize("value", [1, "text", len, np.ones(2), object(), product])
def test_what_is_not_of_jax_is_not_taken_apart(value: Any) -> None:
    """It is for the walk itself."""
    assert decompose(value) is None


WITHOUT_JAX = """
import json, sys
from jaxd_protocol.jax_objects.decomposition import array_content, decompose
from jaxd_protocol.jax_objects.decomposition import reduce_jax
from jaxd_protocol.jax_objects.registrations import class_registration
class Own: pass
found = [decompose(Own()), array_content(Own()), class_registration(Own)]
found.append(reduce_jax(Own()) is NotImplemented)
heavy = {"jax", "jaxlib", "numpy", "importlib.metadata", "flax", "equinox"}
print(json.dumps([found, sorted(heavy & set(sys.modules))]))
"""


def test_nothing_is_imported_where_there_is_nothing_of_jax() -> None:
    """A client that has not imported jax stays a light process."""
    assert json.loads(run(WITHOUT_JAX, cwd=ROOT)) == [[None, None, None, True], []]


def test_a_tracer_has_no_content() -> None:
    """The message names the way out."""

    def inside(x: Any) -> Any:
        with pytest.raises(TracerError, match="Pass the value as an argument"):
            array_content(x)
        return x

    jax.jit(inside)(1.0)


def test_a_deleted_array_says_so() -> None:
    """Instead of jax's message, which does not know that the array was captured."""
    array = jnp.ones(3)
    array.delete()
    with pytest.raises(PackingError, match="deleted or donated"):
        array_content(array)


def test_captured_keys_are_read_although_jax_traces_whoever_asks() -> None:
    """A persistent function that captures one may first be called there."""
    key = jax.random.key(3)
    found: list[Any] = []

    def traced(x: Any) -> Any:
        found.append(array_content(key))
        return x

    traced(0)
    jax.jit(traced)(1.0)
    assert found[0].data.tolist() == found[1].data.tolist()


def traced(function: Any, *arguments: Any) -> Any:
    return jax.make_jaxpr(function)(*arguments)


def test_programs_that_compute_the_same_way_are_equal() -> None:
    """Where they were written and what their variables are called does not count."""
    first = traced(lambda x: jnp.sin(x) * 2, 1.0)
    second = traced(lambda other: jnp.sin(other) * 2, 1.0)
    assert digest(first) == digest(second)


def test_a_literal_a_type_and_the_wiring_count() -> None:
    """Each of them is another program."""
    programs = [
        traced(lambda x, y: x - y * 2, 1.0, 1.0),
        traced(lambda x, y: x - y * 3, 1.0, 1.0),
        traced(lambda x, y: y - x * 2, 1.0, 1.0),
        traced(lambda x, y: x - y * 2, 1, 1),
        traced(lambda x, y: x + y * 2, 1.0, 1.0),
    ]
    assert len({digest(program) for program in programs}) == len(programs)


def test_constants_of_a_program_count() -> None:
    """They are arrays beside the equations."""
    first, second = jnp.arange(3), jnp.arange(3) + 1
    programs = traced(lambda x: x + first, 1.0), traced(lambda x: x + second, 1.0)
    assert digest(programs[0]) != digest(programs[1])


def test_variables_have_numbers_in_order_of_appearance() -> None:
    """So the numbers say how equations are connected."""
    parts = jaxpr_parts(traced(lambda x, y: (y, x + y), 1.0, 1.0).jaxpr)
    assert parts["invars"] == (0, 1)
    assert parts["outvars"] == (1, 2)
