"""A class is one on the server, whichever function it came with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

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


class Making:
    """The objects that are being made, as a library keeps them that freezes them afterwards."""

    def __init__(self) -> None:
        self.those: dict[int, Any] = {}


MAKING = Making()


class Frozen:
    """Puts itself on a list when it is made, and takes itself off when it is complete."""

    def __new__(cls, *args: Any) -> Self:
        del args
        made = super().__new__(cls)
        MAKING.those[id(made)] = made
        return made

    def __init__(self, rate: float) -> None:
        self.rate = rate
        del MAKING.those[id(self)]

    def is_open(self) -> bool:
        """Whether it can be changed."""
        return id(self) in MAKING.those


FROZEN = (Frozen(2.0), Frozen(3.0))


def made(x: Any) -> Any:
    """Has such objects."""
    return x * len(FROZEN) * FROZEN[0].is_open()


CODE = "3"


class Compiled:
    """Reads all that its module has."""

    def value(self) -> Any:
        return eval(CODE)


def compiled(x: Any) -> Any:
    """Has that class, and another part of the module."""
    return Compiled().value() + helper(x)


def compiled_again(x: Any) -> Any:
    """Has the same one."""
    return Compiled().value() * x


class Disguised(Exception):
    """Says of itself what it is not, for shorter error messages."""


Disguised.__module__ = "builtins"


def disguised(x: Any) -> Any:
    """Has that class."""
    if x is None:
        raise Disguised
    return x


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


def test_making_objects_again_leaves_no_trace_in_what_counts() -> None:
    """A table of those that are being made is empty there, as it is here."""
    before, after = fingerprints_around_trip(made)
    assert before == after


def test_a_change_of_such_a_table_counts() -> None:
    """Also of one that its `__new__` adds to; where it is as before, so is the key."""
    before = walk(made, "it").fingerprint.digest
    MAKING.those[3] = 4
    try:
        assert walk(made, "it").fingerprint.digest != before
    finally:
        MAKING.those.clear()
    assert walk(made, "it").fingerprint.digest == before


@pytest.mark.parametrize("function", [compiled, compiled_again])
def test_code_of_a_class_reads_the_modules_that_the_class_came_with(
    function: Callable[..., Any],
) -> None:
    """Not those of the function that has it now."""
    for other in (compiled, compiled_again):
        fingerprints_around_trip(other)
    before, after = fingerprints_around_trip(function)
    assert before == after


def test_a_class_may_say_that_it_is_one_of_pythons_own() -> None:
    """It travels as any other."""
    before, after = fingerprints_around_trip(disguised)
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
