"""Code of installed packages is found again in the server's own copy of them."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.pickling.code_objects import (
    find_code,
    locate_code,
)
from tests.shared.pickling.processes import round_trip

optax = pytest.importorskip("optax")

UPDATE: Any = optax.sgd(0.1).update


def place() -> Any:
    """That of a function which a library has made."""
    found = locate_code(UPDATE.__globals__["__name__"], UPDATE.__code__)
    assert found is not None
    return found


def test_a_function_that_a_library_made_is_found() -> None:
    """By module, qualified name and free variables."""
    assert find_code(place()) == UPDATE.__code__


def test_a_library_without_the_code_is_named() -> None:
    """With what to do."""
    module, _, free, digest = place()
    with pytest.raises(PackingError, match=r"optax.*no such code.*Install the same version"):
        find_code((module, "gone.<locals>.f", free, digest))


def test_code_that_differs_is_taken_when_there_is_only_one() -> None:
    """Another version of the library is what the user was warned about."""
    module, name, free, _ = place()
    assert find_code((module, name, free, b"other")) == UPDATE.__code__


def test_a_function_of_a_library_reads_the_librarys_own_globals() -> None:
    """Only what it closes over travels."""
    copy = round_trip(UPDATE)
    assert copy is not UPDATE
    assert copy.__globals__ is UPDATE.__globals__
    assert copy.__code__ == UPDATE.__code__


def test_a_generated_function_of_a_library_travels_with_its_code() -> None:
    """In the library's namespace."""
    namespace = vars(json)
    made: dict[str, Any] = {}
    exec("def generated(): return loads('[1]')", namespace, made)
    copy = round_trip(made["generated"])
    assert copy() == [1]
    assert copy.__globals__ is namespace


def test_a_closure_of_the_standard_library() -> None:
    """`singledispatch` returns one, with attributes that refer to it."""

    @functools.singledispatch
    def kind(value: object) -> str:
        return "object"

    @kind.register
    def _(value: int) -> str:
        return "int"

    copy = round_trip(kind)
    assert (copy(1), copy("x")) == ("int", "object")
