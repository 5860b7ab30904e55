"""A class is one on the server, whichever function it came with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack_function


def helper(x: Any) -> Any:
    """Reached from classes and from functions."""
    return Model().scale(x) if x is None else x + 1


class Base:
    """Refers to its own subclass."""

    def other(self) -> Any:
        return Model()


class Model(Base):
    """Refers to a function that refers to it."""

    kept: frozenset[Any] = frozenset()

    def scale(self, x: Any) -> Any:
        return helper(x)


class Holder:
    """Has a class as its value, and is an element of a set that the class has."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return 1


Model.kept = frozenset([Holder(Base)])


def first(x: Any) -> Any:
    """Shares a class and a helper with `second`."""
    return Model().scale(helper(x))


def second(x: Any) -> Any:
    """Shares a class and a helper with `first`."""
    return helper(x) + len(Model.kept) + isinstance(x, Model)


MODEL = Model()


def third(x: Any) -> Any:
    """Refers to an instance."""
    return helper(x) + len(MODEL.kept)


def fingerprints_around_trip(function: Callable[..., Any]) -> tuple[bytes, bytes]:
    """The fingerprint before and after the way to a server that has seen other functions."""
    walked = walk(function, "it")
    manifest = FunctionManifest.of(walked.fingerprint)
    found = unpack_function(pack_function(function, "it", walked.reach))
    there = manifest.there({**found.patched_modules, **found.modules}, found.sources)
    return manifest.fingerprint, walk(found.function, "it", there).fingerprint.digest


@pytest.mark.parametrize("function", [first, second, third, MODEL.scale, MODEL.other])
def test_a_class_that_is_there_already_changes_no_fingerprint(
    function: Callable[..., Any],
) -> None:
    """Although what the class refers to came with another function, and the helper twice."""
    for other in (first, second, third):
        fingerprints_around_trip(other)
    before, after = fingerprints_around_trip(function)
    assert before == after


def test_classes_that_refer_to_each_other_have_one_content() -> None:
    """However the walk comes to them."""
    assert walk(first, "it").fingerprint.digest == walk(first, "it").fingerprint.digest
    assert walk(first, "it").fingerprint.digest != walk(second, "it").fingerprint.digest


def test_a_long_chain_of_classes_is_walked_to_its_end() -> None:
    """Each refers to the next one in a method."""

    def chain(last: int) -> Any:
        found: Any = last
        for number in range(150):
            names: dict[str, Any] = {"NEXT": found, "__name__": "__main__"}
            exec(f"class Link{number}:\n    def next(self): return NEXT\n", names)
            found = names[f"Link{number}"]
        return found

    def use(cls: Any) -> Callable[..., Any]:
        return lambda x: cls()

    one, same, other = (walk(use(chain(n)), "it").fingerprint.digest for n in (1, 1, 2))
    assert one == same
    assert one != other
