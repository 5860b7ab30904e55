"""Which object is written in which way, and that what was one object is one again."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.pickling.processes import (
    round_trip,
)

SHARED = [1]
PAIR = (SHARED, {"k": SHARED})


class Thing:
    pass


THING = Thing()
REFERENCE = weakref.ref(THING)
DEAD = weakref.ref(Thing())


def test_what_is_one_object_is_one_again() -> None:
    """Between globals, tuples and dicts."""
    assert round_trip(lambda: PAIR[0] is PAIR[1]["k"] is SHARED)()


def test_a_weak_reference_leads_to_its_object() -> None:
    """Which lives as long as the function."""
    assert round_trip(lambda: (REFERENCE() is not None, DEAD()))() == (True, None)


class Counted:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return Counted, (self.value + 1,)


class Saved:
    def __init__(self) -> None:
        self.kept = 1
        self.stream = (number for number in [1])

    def __getstate__(self) -> Any:
        return {"kept": self.kept}


@pytest.mark.parametrize(
    ("value", "attributes"), [(Counted(1), {"value": 2}), (Saved(), {"kept": 1})]
)
def test_a_class_that_says_how_it_travels_is_heard(value: Any, attributes: Any) -> None:
    """`__reduce__` and `__getstate__`."""
    assert vars(unpack(pack(value, "it"))) == attributes


def test_functions_that_jax_has_by_name_stay_small() -> None:
    """A ufunc, a jitted function, one with custom derivatives."""
    for value in (jnp.sin, jax.nn.relu, jnp.add, np.add, jax.Array, jax.lax.sin_p):
        data = pack([value], "it")
        assert unpack(data) == [value]
        assert len(data) < 150


def test_a_bound_method_is_of_the_function_that_it_had() -> None:
    """Not of whatever has its name."""

    def other(self: Thing) -> str:
        return "other"

    method = functools.partial(other.__get__(THING))
    assert unpack(pack(method, "it"))() == "other"


def test_a_set_that_is_met_twice_is_one_set() -> None:
    """Also through an object that it holds."""

    class Holder:
        pass

    holder: Any = Holder()
    holder.own = {holder}
    shared = {1, 2}
    found = unpack(pack([shared, shared, holder, frozenset(shared)], "it"))
    assert found[0] is found[1]
    assert found[0] == found[3] == shared
    assert type(found[3]) is frozenset
    assert found[2].own == {found[2]}


def test_subclasses_of_set_and_dict_are_left_to_pickle() -> None:
    """They may have more than their items."""
    kind = type("Kind", (set,), {})
    value = kind([1])
    value.note = "mine"
    found = unpack(pack(value, "it"))
    assert found == {1}
    assert found.note == "mine"
