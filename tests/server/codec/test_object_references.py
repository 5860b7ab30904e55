from __future__ import annotations

import enum
from typing import Any

import jax
import pytest

from jaxd_protocol.pickling.unpack.object_tokens import find_kept_object
from jaxd_protocol.pytree.references import function_mark
from jaxd_server.codec.object_references import (
    ObjectNumbers,
    class_name,
    object_numbers,
    opaque,
    reference_to,
)


class Thing:
    pass


A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_an_object_is_named_by_its_number() -> None:
    """In all functions that reach it, the last that arrived first."""
    homes, thing, data = ObjectNumbers(), Thing(), [1]
    homes.add(A, [data, thing, thing, 5])
    assert homes.of(thing) == ((function_mark(A), 1),)
    assert homes.of(data) == homes.of(5) == homes.of(Thing()) == ()
    homes, thing = ObjectNumbers(), Thing()
    homes.add(A, [thing])
    homes.add(B, [None, thing])
    assert homes.of(thing) == ((function_mark(B), 1), (function_mark(A), 0))


def test_only_the_last_functions_are_kept() -> None:
    """And of each its last arrival; the oldest goes first."""
    homes, old, new = ObjectNumbers(), Thing(), Thing()
    homes.add(A, [old])
    homes.add(A, [new])
    assert homes.of(old) == ()
    assert homes.of(new) == ((function_mark(A), 0),)
    homes, thing = ObjectNumbers(limit=2), Thing()
    for fingerprint in (A, B, C):
        homes.add(fingerprint, [thing])
    assert homes.of(thing) == ((function_mark(C), 0), (function_mark(B), 0))


def test_an_object_is_found_by_its_number() -> None:
    """In whichever of the functions is here."""
    homes, thing = ObjectNumbers(), Thing()
    homes.add(B, [None, thing])
    assert homes.at(((function_mark(A), 0), (function_mark(B), 1))) is thing
    for places in (
        (),
        ((function_mark(A), 0),),
        ((function_mark(B), 2),),
        ((function_mark(B), -1),),
    ):
        with pytest.raises(LookupError, match="no function is here"):
            homes.at(places)


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
    """It says what the object is; classes of nobody have no name."""
    thing = Prickly()
    reference = opaque(thing)
    assert find_kept_object(reference.token) is thing
    assert "Prickly" in reference.about
    assert class_name(Model) is None
    assert class_name(jax.ShapeDtypeStruct) is not None
