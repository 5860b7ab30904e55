"""What a transformed function is compiled with."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd.api.transforms import derive
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.transforms import decode_transformation

STATIC = Options(static_argnums=(1,), donate_argnums=(0,), extra_key="k", keep_unused=True)


def function(x: Any, mode: str, y: Any = 1.0) -> Any:
    """What is transformed."""
    return x


def test_all_options_but_donation_stay() -> None:
    """What is static is said in full: behind a transformation nobody could infer it."""
    made = derive(function, STATIC, "grad", {"argnums": 0})
    options = made.options
    assert (options.static_argnums, options.static_argnames) == ((1,), ("mode",))
    assert (options.donate_argnums, options.extra_key, options.keep_unused) == (None, "k", True)
    assert derive(function, Options(), "grad", {}).options.static_argnums is None


def test_one_comes_on_top_of_the_other() -> None:
    """Over the same base."""
    first = derive(function, STATIC, "grad", {"argnums": 0})
    second = derive(first.function, first.options, "vmap", {"in_axes": 0})
    names = [decode_transformation(one)[0] for one in second.options.transformations]
    assert (names, second.base, first.base) == (["grad", "vmap"], function, function)


def test_a_map_knows_what_has_no_axis() -> None:
    """By position and by name."""
    (vmap,) = derive(function, STATIC, "vmap", {"in_axes": 0}).options.transformations
    assert decode_transformation(vmap)[1] == {
        "in_axes": 0,
        "static_argnums": (1,),
        "static_argnames": ("mode",),
    }


@pytest.mark.parametrize("name", ["jvp", "vjp"])
def test_where_arguments_come_as_tuples_static_ones_come_by_name(name: str) -> None:
    """And are told their places among the others; the tuples are not static."""
    made = derive(function, STATIC, name, {"has_aux": False})
    (only,) = made.options.transformations
    assert decode_transformation(only)[1] == {"has_aux": False, "static": ((1, "mode"),)}
    assert (made.options.static_argnums, made.options.static_argnames) == ((), ("mode",))


def test_a_list_of_numbers_is_a_tuple_of_them() -> None:
    """To jax, and so in the key."""
    one, other = (derive(function, STATIC, "grad", {"argnums": n}) for n in ([0, 2], (0, 2)))
    assert one.options == other.options


def test_what_has_no_place_in_a_key_is_refused() -> None:
    """With the way that is left."""
    with pytest.raises(ConfigurationError, match=r"persistent_call\(jax.vmap\(f"):
        derive(function, STATIC, "vmap", {"in_axes": object()})


def method(self: Any, mode: str, x: Any, y: Any = 1.0) -> Any:
    """What is transformed on an instance."""
    return x


def test_on_an_instance_static_arguments_are_counted_without_it() -> None:
    """In what is done to the method; the function has the positions that it had."""
    static = Options(static_argnums=(0, 1))
    made = derive(method, static, "vmap", {"in_axes": 0}, on_instance=True)
    (only,) = decode_transformation(made.options.transformations[0])[1]["by"]
    assert decode_transformation(only)[1] == {
        "in_axes": 0,
        "static_argnums": (0,),
        "static_argnames": ("mode",),
    }
    assert made.options.static_argnums == (0, 1)
    made = derive(method, static, "jvp", {}, on_instance=True)
    (only,) = decode_transformation(made.options.transformations[0])[1]["by"]
    assert decode_transformation(only)[1] == {"static": ((0, "mode"),)}
    assert (made.options.static_argnums, made.options.static_argnames) == ((0,), ("mode", "self"))
