from __future__ import annotations

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.pickling.unpack.object_tokens import find_kept_object
from jaxd_server.codec.object_references import class_name, object_numbers, opaque, reference_to


class Model:
    def apply(self, x: Any) -> Any:
        return x


class Color(enum.Enum):
    RED = 1


def helper() -> None:
    pass


class Prickly:
    """Answers every question about itself with an error."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.parametrize(
    ("value", "kind", "detail"),
    [
        (jnp.float32, "k", ("jax.numpy", "float32", b"")),
        (dict, "k", ("builtins", "dict", b"")),
        (jax, "i", ("jax", "")),
        (np.dtype("int8"), "d", ("int8",)),
        (frozenset({2}), "v", ("builtins.frozenset", (("l", 2),))),
    ],
    ids=repr,
)
def test_what_every_client_may_have_is_named(value: Any, kind: str, detail: Any) -> None:
    """By module and name, or by what it is."""
    reference = reference_to(value)
    assert reference is not None
    assert (reference.kind, reference.detail) == (kind, detail)


@pytest.mark.parametrize(
    "make",
    [lambda: Color.RED, lambda: Model, Model, lambda: Model().apply, lambda: helper, Prickly],
)
def test_what_came_from_no_client_has_no_name(make: Any) -> None:
    """A module of the user's own on the server is nobody's on the client."""
    assert reference_to(make()) is None


def test_a_method_is_named_by_its_owner() -> None:
    """But not when it was put there under another name."""
    model = Model()
    object_numbers.add(b"r" * 16, [model])
    reference = reference_to(model.apply)
    assert reference is not None
    assert (reference.kind, reference.detail[1]) == ("m", "apply")
    assert reference.detail[0][0] == "n"
    assert reference_to(Prickly.__getattr__.__get__(model)) is None


def test_a_token_is_for_anything() -> None:
    """It says what the object is."""
    thing = Prickly()
    reference = opaque(thing)
    assert find_kept_object(reference.token) is thing
    assert "Prickly" in reference.about


def test_classes_of_nobody_have_no_name() -> None:
    """Those that are installed have one without content id."""
    assert class_name(Model) is None
    assert class_name(jax.ShapeDtypeStruct) is not None
