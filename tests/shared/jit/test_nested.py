from __future__ import annotations

import functools
import pickle
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.fingerprint.function_wrapper import jit_options_of
from jaxd_protocol.jit.nested import call_jitted, nested


class Mode(Enum):
    UP = 1
    DOWN = -1


def double(x: Any, n: int = 2) -> Any:
    """Twice as much."""
    return x * n


class Model:
    step = nested(lambda self, x: x + 1.0, ())


def test_it_arrives_as_the_function_itself() -> None:
    """Or, when it says how it is jitted, as that function jitted."""
    assert nested(double, None) is double
    found: Any = nested(double, (("static_argnames", ("n",)),))
    assert found.__wrapped__ is double
    assert (found.__name__, found.__doc__) == ("double", "Twice as much.")
    assert float(found(1.5, n=4)) == 6.0
    assert repr(found).startswith("<persistent <function double")


def test_it_travels_on_as_what_it_is() -> None:
    """A function that holds it may be packed where it has arrived."""
    options = (("static_argnums", (1,)),)
    again = pickle.loads(pickle.dumps(nested(double, options)))
    assert (again.__wrapped__, jit_options_of(again)) == (double, options)


def test_found_on_an_instance_it_is_a_method() -> None:
    """As any function; found on the class it is itself."""
    assert float(Model().step(1.0)) == 2.0
    assert Model.step is vars(Model)["step"]


def signed(x: Any, mode: Any, n: int = 1) -> Any:
    return x * mode.value * n


def test_numbers_are_traced_as_under_jit() -> None:
    """Python would divide by zero, and never run out of digits."""
    divided = call_jitted(lambda a, b: a / b, (), (1, 0), {})
    assert (float(divided), divided.weak_type) == (jax.jit(lambda a, b: a / b)(1, 0), True)
    assert int(call_jitted(lambda a: a * a, (), (1 << 20,), {})) == 0


def test_what_is_declared_static_stays_what_it_is() -> None:
    """By position and by name; what cannot be hashed is refused."""
    power = functools.partial(call_jitted, lambda x, n: x**n, (("static_argnames", ("n",)),))
    assert float(power((2.0, 3), {})) == float(power((2.0,), {"n": 3})) == 8.0
    with pytest.raises(ValueError, match="Non-hashable static"):
        power((2.0, jnp.ones(3)), {})


def test_what_jax_cannot_trace_is_static() -> None:
    """Beside what is traced and what is declared, and under an outer trace as well."""
    assert float(call_jitted(signed, (), (2.0, Mode.DOWN), {"n": 3})) == -6.0
    options = (("static_argnums", (2,)),)
    found = jax.jit(lambda x: call_jitted(signed, options, (x, Mode.DOWN, 3), {}))(2.0)
    assert float(found) == -6.0
    tree = {"mode": "double", "x": np.float32(2), "none": None, "f": jnp.negative}
    found = call_jitted(lambda t: t["f"](t["x"] * len(t["mode"])), (), (tree,), {})
    assert float(found) == -12.0


def test_by_the_rule_of_jax_it_is_an_error() -> None:
    """As under `jax.jit`."""
    with pytest.raises(TypeError, match="as an abstract array"):
        call_jitted(signed, (("static", "jax"),), (2.0, Mode.UP), {})


def test_nothing_is_remembered_from_one_program_to_the_next() -> None:
    """Settings that jax does not look at may have changed between them."""
    traced: list[Any] = []

    def noting(x: Any) -> Any:
        traced.append(None)
        return x

    for _ in range(2):
        call_jitted(noting, (), (1.0,), {})
    assert len(traced) == 2
