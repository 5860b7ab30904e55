"""Tokens of another process in a result form become tokens of this one."""

from __future__ import annotations

import enum
import sys
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.pickling.unpack.object_tokens import find_kept_object
from jaxd_protocol.pytree import TreeEncoder, dump_literal, parse_skeleton
from jaxd_protocol.pytree.references import Reference, load_reference
from jaxd_server.codec.object_references import object_numbers
from jaxd_server.codec.results import ResultLayout, rebind_form

THERE = bytes(range(16))


class Color(enum.Enum):
    RED = 1


class _Own:
    def __init__(self) -> None:
        self.found: list[Reference] = []

    def getter(self, reference: Reference, holders: Any, field: str) -> Any:
        self.found.append(reference)
        return lambda: None

    def instance(self, cls: type, state: dict[Any, Any], *, is_own: bool) -> Any:
        raise NotImplementedError

    def unflattener(self, cls: type) -> Any:
        raise AssertionError

    def structure(self, tree: Any) -> Any:
        raise AssertionError


def form_with(*references: Reference) -> ResultLayout:
    """A result that holds these and no data."""
    encoder = TreeEncoder()
    encoder.node([None] * len(references))
    assert encoder.skeleton.endswith(b"N" * len(references))
    head = encoder.skeleton[: -len(references) or None]
    return ResultLayout.of(head + b"".join(b"R" + dump_literal(r.plain()) for r in references), ())


def references_of(form: ResultLayout) -> list[Reference]:
    """Those in a form."""
    own = _Own()
    parse_skeleton(form.skeleton, lambda *_: object, None, own)
    return own.found


def adopted_one(kind: str, *detail: Any) -> Reference:
    """A reference as it stands in the adopted form."""
    form = rebind_form(form_with(Reference(kind, detail, THERE, "it")))
    (found,) = references_of(form)
    return found


HERE: dict[str, tuple[tuple[Any, ...], Any]] = {
    "an object": (("i", "json", "dumps"), __import__("json").dumps),
    "a nested one": (("i", "os", "path.join"), __import__("os").path.join),
    "a module": (("i", "json", ""), __import__("json")),
    "a class": (("k", "fractions", "Fraction", b""), __import__("fractions").Fraction),
    "a member": (("e", "socket", "AddressFamily", b"", "AF_UNIX"), None),
    "a dtype": (("d", "bfloat16"), None),
    "a set": (("v", "builtins.frozenset", (("l", 1, 2),)), frozenset({1, 2})),
    "a spec": (
        ("v", "shape", (("t", 2), ("r", ("d", ("int8",), b"", "")), False, None)),
        jax.ShapeDtypeStruct((2,), "int8"),
    ),
}


@pytest.mark.parametrize("case", HERE)
def test_a_token_that_comes_back_gives_the_object_of_this_process(case: str) -> None:
    """It is found by its name, and only then."""
    place, expected = HERE[case]
    reference = adopted_one(*place)
    assert reference.token != THERE
    assert len(reference.token) == 16
    found = find_kept_object(reference.token)
    if case == "a member":
        assert found is __import__("socket").AF_UNIX
    elif case == "a dtype":
        assert np.dtype(found).name == "bfloat16"
    else:
        assert found == expected


def test_an_object_of_a_function_is_found_once_the_function_is_here() -> None:
    """By its number, as the client finds its own."""
    thing = object()
    reference = adopted_one("n", ((b"m" * 16, 0), (b"o" * 16, 1)))
    with pytest.raises(ArgumentError, match="does not have"):
        find_kept_object(reference.token)
    object_numbers._arrived[b"o" * 16] = [None, thing]
    try:
        assert find_kept_object(reference.token) is thing
    finally:
        del object_numbers._arrived[b"o" * 16]


def test_a_method_is_bound_to_what_its_owner_leads_to() -> None:
    """Both have tokens of this process."""
    owner = Reference("i", ("string", "ascii_letters"), b"o" * 16, "letters")
    reference = adopted_one("m", owner.plain(), "upper")
    inner = load_reference(reference.detail[0])
    assert THERE != reference.token != inner.token != b"o" * 16
    assert find_kept_object(reference.token)() == find_kept_object(inner.token).upper()


@pytest.mark.parametrize(
    "place",
    [
        ("c", b"content"),
        ("k", "m", "C", b"content"),
        ("o",),
        ("i", "no_such_module", "it"),
        ("i", "json", "no_such_name"),
        ("e", "socket", "AddressFamily", b"", "NO_SUCH"),
    ],
)
def test_what_cannot_be_found_here_says_what_to_do(place: tuple[Any, ...]) -> None:
    """As for a token of a server that was started again."""
    with pytest.raises(ArgumentError, match="Call the function that returned it once more"):
        find_kept_object(adopted_one(*place).token)


def test_nothing_is_imported_before_a_token_comes_back() -> None:
    """A result of a library costs nothing; the same object has the same token in every form."""
    sys.modules.pop("this", None)
    adopted_one("i", "this", "s")
    assert "this" not in sys.modules
    assert adopted_one("i", "json", "loads").token == adopted_one("i", "json", "loads").token
    assert adopted_one("i", "json", "loads").token != adopted_one("i", "json", "dump").token


def test_everything_else_of_a_form_stays() -> None:
    """References without tokens, data, and forms without references."""
    plain = ResultLayout.of(form_with().skeleton, ())
    assert rebind_form(plain) is plain
    form = form_with(
        Reference("i", ("json", "loads"), THERE, "R"), Reference("d", ("int8",), b"", "")
    )
    first, second = references_of(rebind_form(form))
    assert (first.kind, first.detail, first.about) == ("i", ("json", "loads"), "R")
    assert second == Reference("d", ("int8",), b"", "")
