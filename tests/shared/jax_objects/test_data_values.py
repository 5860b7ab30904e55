"""Values that are nothing but data are taken apart, and made again of checked parts."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import types
import uuid
from collections import Counter, deque
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxd_protocol.jax_objects.data_values import NUMERIC_FUNCTIONS, find_kind, kind_name, parts_of
from jaxd_protocol.pytree.data_values import dump_parts, load_parts
from jaxd_protocol.pytree.literals import is_literal
from tests.ids import row

MESH = Mesh(np.array(jax.devices()[:1]), ("d",))
ZONE = datetime.timezone(datetime.timedelta(hours=2), "CEST")

VALUES: list[Any] = [
    NotImplemented,
    slice(1, None, 2),
    slice("a", (1, 2.5)),
    range(1, 9, 2),
    fractions.Fraction(-2, 3),
    decimal.Decimal("-1.50"),
    decimal.Decimal("Infinity"),
    pathlib.Path("/a/b"),
    pathlib.PurePosixPath("a/b"),
    pathlib.PureWindowsPath("c:/a"),
    datetime.timedelta(1, 2, 3),
    datetime.UTC,
    ZONE,
    datetime.date(2020, 1, 2),
    datetime.time(1, 2, 3, 4, fold=1),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6, ZONE),
    uuid.UUID(int=7),
    frozenset({1, ("a", 2)}),
    {1, "a"},
    bytearray(b"ab"),
    deque([1, [2]], 3),
    Counter("aab"),
    types.MappingProxyType({"a": {"b": [1, ()]}}),
    types.SimpleNamespace(a=1, b=slice(1)),
    jax.ShapeDtypeStruct((2, 0), jnp.float32),
    jax.ShapeDtypeStruct((), jnp.bfloat16, weak_type=True),
    jax.ShapeDtypeStruct((4,), jnp.int8, sharding=NamedSharding(MESH, PartitionSpec("d"))),
    jax.eval_shape(lambda: jax.random.key(0)),
    jax.core.ShapedArray((2,), np.dtype("int8"), weak_type=True),
    jax.random.key(0, impl="rbg").dtype,
    PartitionSpec("a", None, ("b", "c"), PartitionSpec.UNCONSTRAINED),
    PartitionSpec("a", unreduced={"b"}),
    MESH,
    NamedSharding(MESH, PartitionSpec("d", None)),
    SingleDeviceSharding(jax.devices()[0]),
    jax.devices()[0],
    jax.tree_util.DictKey("a"),
    jax.tree_util.SequenceKey(1),
    jax.tree_util.GetAttrKey("a"),
    jax.tree_util.FlattenedIndexKey(2),
]


def referred(value: Any) -> tuple[Any, ...]:
    """What stands for a part: here as a result's, and dtypes by their names."""
    if isinstance(value, np.dtype):
        return ("dtype", value.name)
    found = parts_of(value)
    if found is None:
        raise LookupError(value)
    return found[0], dump_parts(found[1], referred)


def resolved(reference: Any) -> Any:
    name, parts = reference
    if name == "dtype":
        return np.dtype(getattr(jnp, parts))
    kind = find_kind(name)
    assert kind is not None
    return kind.make(*load_parts(parts, resolved))


def test_a_value_comes_back() -> None:
    """Of the same type, by way of a literal."""
    for value in VALUES:
        with row(value):
            plain = referred(value)
            assert is_literal(plain)
            found = resolved(plain)
            assert type(found) is type(value)
            assert found == value
            assert repr(found) == repr(value) or isinstance(value, set | frozenset)


@pytest.mark.parametrize("module", NUMERIC_FUNCTIONS)
def test_functions_that_only_calculate_come_back(module: str) -> None:
    """As this process's own, and partials of them."""
    functions = vars(pytest.importorskip(module))
    for name in NUMERIC_FUNCTIONS[module]:
        plain = referred(functions[name])
        assert is_literal(plain)
        assert resolved(plain) is functions[name]
        found = resolved(referred(partial(functions[name], 1, axis=(0, 1))))
        assert (found.func, found.args) == (functions[name], (1,))
        assert found.keywords == {"axis": (0, 1)}


class Hash(bytearray):
    """A subclass is another type."""


tagged = partial(jax.nn.relu)
tagged.more = 1  # type: ignore[attr-defined]


def test_what_is_more_than_data_is_of_no_kind() -> None:
    """Such as a subclass, or what can be called."""
    rows: list[Any] = [
        Hash(b"a"),
        print,
        1,
        [1],
        object(),
        jnp.load,
        jax.jit(jnp.sin),
        Mesh,
        jnp.ones(2),
        partial(print, end=""),
        partial(jnp.save),
        jax.custom_jvp(partial(jnp.sin)),
        tagged,
    ]
    for value in rows:
        with row(value):
            assert kind_name(value) is None
            assert parts_of(value) is None


def test_what_a_constructor_does_not_take_is_not_left_out() -> None:
    """A value of which the parts are not all is none of these kinds."""
    mesh = jax.sharding.AbstractMesh((1,), ("d",))
    spec = PartitionSpec("d")
    sharding = NamedSharding(mesh, spec)
    assert parts_of(jax.core.ShapedArray((2,), np.dtype("int8"), sharding=sharding)) is None


def test_wild_parts_are_refused() -> None:
    """With an error, and without much work."""
    rows: list[tuple[str, tuple[Any, ...]]] = [
        ("builtins.range", (1, "2", 3)),
        ("builtins.range", (1, 2, 0)),
        ("fractions.Fraction", (1, 0)),
        ("fractions.Fraction", (1 << 20000, 3)),
        ("decimal.Decimal", (0, "12x", 0)),
        ("decimal.Decimal", (0, "1", "x")),
        ("pathlib.PurePosixPath", (b"a",)),
        ("datetime.date", (2020, 13, 1)),
        ("datetime.datetime", ("UTC", 0, 2020, 1, 1)),
        ("uuid.UUID", (-1,)),
        ("builtins.set", (([],),)),
        ("builtins.bytearray", (1 << 40,)),
        ("collections.deque", ("a",)),
        ("types.SimpleNamespace", ({1: 2},)),
        ("shape", ((-1,), np.dtype("int8"), False, None)),
        ("shape", ((1,), "int8", False, None)),
        ("shape", ((1,), np.dtype("int8"), False, print)),
        ("shape", ((1,) * 65, np.dtype("int8"), False, None)),
        ("key type", ("none",)),
        ("partition spec", ((print, []), (), 1)),
        ("device", ("cpu", 1 << 20)),
        ("mesh", ((1,), ("device",), ("d",), ("Auto",))),
        ("mesh", ((1,), tuple(jax.devices()[:1]), ("d",), ("Wild",))),
        ("named sharding", (print, print, None)),
        ("SequenceKey", ("a",)),
        ("numeric function", ("jax.numpy", "load")),
        ("numeric function", ("os", "system")),
        ("numeric function", ("jax.nn", ["relu"])),
        ("functools.partial", (print, (), {})),
        ("functools.partial", (jax.nn.relu, [], {})),
        ("functools.partial", (jax.nn.relu, (), {1: 2})),
    ]
    for name, parts in rows:
        with row((name, parts)):
            kind = find_kind(name)
            assert kind is not None
            with pytest.raises((TypeError, ValueError, KeyError, OverflowError)):
                kind.make(*parts)


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "jit", "", "builtins.type"])
def test_no_other_kind_is_found(name: str) -> None:
    """Nothing is looked up outside of the table."""
    assert find_kind(name) is None


def test_without_jax_there_are_no_values_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is not imported for one."""
    monkeypatch.delitem(__import__("sys").modules, "jax")
    assert find_kind("shape") is None
    assert find_kind("builtins.slice") is not None


def _nested(depth: int) -> Any:
    return 1 if not depth else ("t", _nested(depth - 1))


@pytest.mark.parametrize(
    "part", [(), ("x", 1), ("d", 1), ("r",), ("r", 1, 2), ("d", ("l",), 1), _nested(100)]
)
def test_wild_literals_are_refused(part: Any) -> None:
    """As parts that nobody has written."""
    with pytest.raises((TypeError, ValueError)):
        load_parts((part,), lambda reference: reference)
