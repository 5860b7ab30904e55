from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.request.function_snapshot import FunctionSnapshot, FunctionSpec
from jaxd.tracing.export import exported_call, without_source_locations
from jaxd_protocol.errors import ArgumentError, NotPermitted
from jaxd_protocol.jit.options import Options

pytest.importorskip("flatbuffers")

CALLER: Any = Mock(session=Mock(platform="cpu"))
X = np.ones((2, 3), np.float32)


def spec_of(function: Callable[..., Any], **options: Any) -> FunctionSpec:
    """The function as a caller knows it."""
    given = Options(**options)
    return FunctionSpec(FunctionSnapshot(function, given), given)


def calling(spec: FunctionSpec, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What is called instead, and with what."""
    return exported_call(CALLER, spec, function, (), args, kwargs)


def scaled(x: Any, n: int = 1, *, mode: str = "up") -> Any:
    """With arguments of each kind."""
    return {"x": x["a"] * n if mode == "up" else x["a"], "y": jnp.zeros(n)}


def test_what_travels_are_arrays_only() -> None:
    """Static arguments, declared or not, are in the program."""
    spec = spec_of(scaled, static_argnames=("n",), static_argnums=(1,))
    made, leaves = calling(spec, scaled, {"a": X}, 3, mode="up")
    assert [leaf is X for leaf in leaves] == [True]
    opened = jax.export.deserialize(bytearray(made.code))
    assert [aval.shape for aval in opened.out_avals] == [(2, 3), (3,)]
    assert "mode" not in str(opened.mlir_module())


def test_one_program_for_each_kind_of_arguments() -> None:
    """Shapes, dtypes, static values, and the function as it is."""
    spec = spec_of(scaled, static_argnames=("n",), static_argnums=(1,))
    first = calling(spec, scaled, {"a": X}, 3)[0]
    assert calling(spec, scaled, {"a": X + 1}, 3)[0] is first
    for args in (({"a": X[:1]}, 3), ({"a": X.astype("i4")}, 3), ({"a": X}, 2), ({"a": 2.0}, 3)):
        assert calling(spec, scaled, *args)[0].key != first.key
    again = calling(
        spec_of(scaled, static_argnames=("n",), static_argnums=(1,)), scaled, {"a": X}, 3
    )
    assert (again[0].key, again[0].code) == (first.key, first.code)


@pytest.mark.filterwarnings("ignore:.*xplicitly requested dtype")
def test_an_array_of_jax_of_64_bits_has_a_program_of_its_own() -> None:
    """Outside of `enable_x64`, where one of numpy is narrowed; whichever comes first."""

    def itself(x: Any) -> Any:
        return x

    spec = spec_of(itself)
    with jax.enable_x64(True):
        of_jax = jnp.arange(3.0)
    for given, dtype in ((np.arange(3.0), "float32"), (of_jax, "float64")):
        opened = jax.export.deserialize(bytearray(calling(spec, itself, given)[0].code))
        assert [aval.dtype for aval in opened.in_avals] == [dtype]


def test_what_is_given_up_is_given_up_by_leaf() -> None:
    """By position from either end, and by name."""

    def step(a: Any, b: Any, *, c: Any, d: Any) -> Any:
        return a["x"] + a["y"] + b + c + d

    arguments = ({"x": X, "y": X}, X), {"c": X, "d": X}
    for given, wanted in (
        ({}, None),
        ({"donate_argnums": (0,)}, (0, 1)),
        ({"donate_argnums": (-1,)}, (2,)),
        ({"donate_argnames": ("d",)}, (4,)),
        ({"donate_argnums": (1,), "donate_argnames": ("c",)}, (2, 3)),
    ):
        made = calling(spec_of(step, **given), step, *arguments[0], **arguments[1])[0]
        assert Options.from_bytes(made.options).donate_argnums == wanted


def test_settings_and_the_extra_key_stay() -> None:
    """They decide about what is computed, or tell two functions apart."""
    config = (("jax_default_matmul_precision", "highest"),)
    made = calling(spec_of(jnp.sin, config=config, extra_key=7), jnp.sin, X)[0]
    options = Options.from_bytes(made.options)
    assert (options.config, options.extra_key, options.static) == (config, 7, "jax")


def prints(x: Any) -> Any:
    """Says something while it runs."""
    jax.debug.print("{}", x)
    return x


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [(prints, {}, "cannot be exported"), (lambda x: x, {"in_shardings": b"x"}, "in_shardings")],
)
def test_what_cannot_be_exported_is_said(
    function: Any, options: dict[str, Any], words: str
) -> None:
    """By name, with what to do."""
    with pytest.raises(NotPermitted, match=f"{words}.*use a server that takes code"):
        calling(spec_of(function, **options), function, X)


def test_an_argument_that_is_no_data_is_refused() -> None:
    """As elsewhere: it has no content."""
    with pytest.raises(ArgumentError):
        calling(spec_of(jnp.sin), jnp.sin, object())


def test_a_package_that_jax_needs_for_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what installs it."""
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization", raising=False)
    with pytest.raises(NotPermitted, match=r"pip install 'jaxd\[exported\]'"):
        calling(spec_of(jnp.cos), jnp.cos, X)


def lowered_here() -> str:
    """A program with all that it says of itself."""
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    return str(lowered.as_text(debug_info=True))


def lowered_there() -> str:
    """The same from other lines."""
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    return str(lowered.as_text(debug_info=True))


def test_a_program_does_not_say_where_it_stood() -> None:
    """Which notices when the name moves in jax: then every edit above a function counts."""
    assert "test_export.py" in lowered_here()
    with without_source_locations():
        here, there = lowered_here(), lowered_there()
    assert "test_export.py" not in here
    assert here == there
