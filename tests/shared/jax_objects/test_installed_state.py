"""What anybody has put into jax is found, told from what libraries have there, and undone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from jaxd_protocol.jax_objects.installed_state import InstalledState
from jaxd_protocol.jax_objects.registrations import rule_tables
from jaxd_protocol.packages.installed import is_local_module

jax = pytest.importorskip("jax")

from jax import lax  # noqa: E402
from jax._src import core  # noqa: E402
from jax.extend.core import Primitive  # noqa: E402
from jax.interpreters import ad, batching, mlir  # noqa: E402

pytestmark = pytest.mark.libraries("jax")

LIBRARIES = (
    *("chex", "diffrax", "equinox", "flax.linen", "flax.nnx", "haiku", "numpyro", "optax"),
    *("jax.experimental.checkify", "jax.experimental.jet", "jax.experimental.sparse"),
    *("jax.experimental.pallas", "jax.experimental.shard_map", "orbax.checkpoint"),
)


def mine(x: Any, **_: Any) -> Any:
    """A rule, or what one is made of."""
    return lax.cos(x)


def _lowering() -> Any:
    return mlir.lower_fun(mine, multiple_results=False)


CHANGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "lowering": ("_lowerings[sin]", lambda: mlir.register_lowering(lax.sin_p, _lowering())),
    "lowering for a platform": (
        "_platform_specific_lowerings['cpu'][sin]",
        lambda: mlir.register_lowering(lax.sin_p, _lowering(), platform="cpu"),
    ),
    "derivative": ("primitive_jvps[sin]", lambda: ad.defjvp(lax.sin_p, mine)),
    "transposition": (
        "primitive_transposes[mul]",
        lambda: ad.primitive_transposes.__setitem__(lax.mul_p, mine),
    ),
    "batching": (
        "primitive_batchers[sin]",
        lambda: batching.primitive_batchers.__setitem__(lax.sin_p, mine),
    ),
    "types": ("the primitive sin.abstract_eval", lambda: lax.sin_p.def_abstract_eval(mine)),
    "bind": ("the primitive sin.bind", lambda: setattr(lax.sin_p, "bind", mine)),
    "handler of a type": (
        "pytype_aval_mappings[float]",
        lambda: core.pytype_aval_mappings.__setitem__(float, mine),
    ),
    "method of all arrays": (
        "core.ShapedArray._add",
        lambda: setattr(core.ShapedArray, "_add", staticmethod(mine)),
    ),
    "method of tracers": (
        "core.Tracer.__add__",
        lambda: setattr(core.Tracer, "__add__", lambda one, _: one),
    ),
    "function of a module": ("jax.numpy.sin", lambda: setattr(jax.numpy, "sin", mine)),
}


def state() -> InstalledState:
    """One that calls foreign what stands in a test."""
    return InstalledState(lambda names: is_local_module(names.get("__name__")), for_others=True)


@pytest.fixture
def before() -> Iterator[InstalledState]:
    """One that has looked before; what is changed afterwards is undone."""
    looked = state()
    assert looked.changes() == []
    yield looked
    for each in looked.changes():
        each.undo()


@pytest.mark.parametrize("name", CHANGES)
def test_what_stands_in_jax_is_found_and_undone(name: str, before: InstalledState) -> None:
    """By whoever looks for the first time after it, and by whoever has looked before."""
    where, change = CHANGES[name]
    change()
    for each in (state(), before):
        found = each.changes()
        assert len(found) == 1
        assert found[0].where.endswith(where)
        assert found[0].code
        assert each.changes() == found
    found[0].undo()
    assert before.changes() == []
    assert state().changes() == []


def test_an_import_replaces_nothing_by_what_was_there(
    before: InstalledState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only moves jax's own rules is found also where it has imported something."""
    new = ModuleType("a_module_of_a_library")
    monkeypatch.setitem(sys.modules, new.__name__, new)
    mlir._lowerings[lax.sin_p] = mlir._lowerings[lax.cos_p]
    removed = ad.primitive_jvps.pop(lax.cos_p)
    monkeypatch.setattr(jax.numpy, "tan", jax.numpy.sin)
    found = before.changes()
    assert {each.where.rpartition(".")[2] for each in found} == {
        "_lowerings[sin]",
        "primitive_jvps[cos]",
        "tan",
    }
    for each in found:
        each.undo()
    assert ad.primitive_jvps[lax.cos_p] is removed
    assert before.changes() == []


def test_what_few_functions_use_counts_where_one_traces_for_others(
    before: InstalledState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a checkout of a library, which adds such rules, would have no function served."""
    from jax._src import ad_util
    from jax.experimental import jet

    library = ModuleType("a_library_with_primitives")
    library.solve_p = Primitive("solve")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, library.__name__, library)
    client = InstalledState(lambda names: is_local_module(names.get("__name__")))
    assert client.changes() == before.changes() == []
    monkeypatch.delitem(ad.primitive_transposes, ad_util.stop_gradient_p, raising=False)  # lineax'
    monkeypatch.setitem(ad.primitive_transposes, ad_util.stop_gradient_p, mine)
    monkeypatch.setitem(jet.jet_rules, lax.sin_p, mine)
    monkeypatch.setitem(ad.primitive_jvps, library.solve_p, mine)
    monkeypatch.setattr(jax.Array, "__repr__", mine)
    assert client.changes() == []
    assert len(before.changes()) >= 2
    monkeypatch.setattr(jax.numpy, "tan", jax.numpy.sin)
    monkeypatch.setattr(jax.numpy, "a_new_name", mine, raising=False)
    monkeypatch.setattr(jax, "device_put_replicated", mine, raising=False)  # jax has removed it
    assert client.changes() == []
    monkeypatch.setitem(ad.primitive_jvps, lax.sin_p, mine)
    monkeypatch.setattr(jax.numpy, "tan", mine)
    assert [each.where for each in client.changes()] == [
        "jax._src.interpreters.ad.primitive_jvps[sin]",
        "jax.numpy.tan",
    ]
    monkeypatch.undo()
    assert before.changes() == []


def test_a_primitive_of_ones_own_has_its_rules(before: InstalledState) -> None:
    """They are a part of it, and nobody else meets them."""
    own = Primitive("own")
    own.def_impl(mine)
    ad.primitive_jvps[own] = mine
    mlir.register_lowering(own, _lowering())
    assert before.changes() == []
    assert state().changes() == []
    del ad.primitive_jvps[own], mlir._lowerings[own]
    assert before.changes() == []


def test_libraries_and_the_work_of_jax_change_nothing(before: InstalledState) -> None:
    """Each library registers rules for its primitives; jax keeps what it has traced."""
    for each in LIBRARIES:
        pytest.importorskip(each)
    assert before.changes() == []
    assert state().changes() == []
    jax.jit(jax.grad(lambda x: jax.nn.gelu(x) * jax.numpy.sort(jax.numpy.ones(3))[0]))(1.0)
    jax.vmap(jax.random.normal)(jax.random.split(jax.random.key(0), 3))
    jax.clear_caches()
    assert before.changes() == []


def test_each_table_of_rules_is_looked_at(before: InstalledState) -> None:
    """Those in which jax has the rules of a primitive of the user's."""
    importlib.import_module("jax.experimental.sparse")
    before.changes()
    tables = [each for each in rule_tables(lax.sin_p) if each.names[0][0].startswith("jax.")]
    missing = [each.names[0] for each in tables if id(each.content) not in before._holders]
    assert not missing
    assert len(tables) > 20
