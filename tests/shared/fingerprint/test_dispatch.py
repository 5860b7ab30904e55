"""Each kind of object is told from every other, and counts by what is in it."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from tests.shared.fingerprint.defining import digest_of, function, walk_of


def one(x: Any) -> Any:
    return x


def other(x: Any) -> Any:
    return -x


class Target:
    """Something that weak references lead to."""

    def __init__(self, rate: int) -> None:
        self.rate = rate


class Called:
    """An object that is called."""

    def __init__(self, rate: int, unread: int) -> None:
        self.rate, self.unread = rate, unread

    def __call__(self, x: Any) -> Any:
        return x * self.rate


class Reading(Called):
    """One whose call may read all of it."""

    def __call__(self, x: Any) -> Any:
        return vars(self), x


KINDS: dict[str, Callable[[Any], Any]] = {
    "list": lambda v: [v],
    "tuple": lambda v: (v,),
    "dict": lambda v: {1: v},
    "dict's key": lambda v: {v: 1},
    "frozenset": lambda v: frozenset({v}),
    "set": lambda v: {v},
    "partial": functools.partial,
    "partial's argument": lambda v: functools.partial(print, v),
    "property": property,
    "setter": lambda v: property(None, v),
    "staticmethod": staticmethod,
    "classmethod": classmethod,
    "cached_property": functools.cached_property,
    "lru_cache": functools.lru_cache,
    "method": lambda v: types.MethodType(v, 1),
    "cell": types.CellType,
    "mappingproxy": lambda v: types.MappingProxyType({1: v}),
    "weak reference": weakref.ref,
    "slice": slice,
    "slice's step": lambda v: slice(None, None, v),
    "code": lambda v: v.__code__,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_inside_counts(kind: str) -> None:
    """And nothing else: made again it is the same."""
    make = KINDS[kind]
    assert digest_of([make(one)]) == digest_of([make(one)]) != digest_of([make(other)])


def test_no_kind_is_like_another() -> None:
    """With the same inside."""
    found = {kind: digest_of([make(one)]) for kind, make in KINDS.items()}
    assert len({*found.values(), digest_of([one])}) == len(found) + 1


def test_a_persistent_function_is_the_function() -> None:
    """Inside of another one."""

    class Persistent(FunctionWrapper):
        def __init__(self, wrapped: Any, options: Any = None) -> None:
            self.__wrapped__ = wrapped
            self._jit_options = options

    assert digest_of([Persistent(one)]) == digest_of([one])
    jitted = [(), (("static_argnums", (0,)),), (("static_argnums", (1,)),)]
    found = {digest_of([Persistent(one, options)]) for options in jitted}
    assert len({*found, digest_of([one])}) == 4


def test_what_a_cache_has_kept_does_not_count() -> None:
    """It follows from the function."""
    cached = functools.lru_cache(one)
    before = digest_of(cached)
    cached(1)
    assert digest_of(cached) == before


def test_a_weak_reference_whose_object_is_gone() -> None:
    """Is like None."""
    target = Target(1)
    reference = weakref.ref(target)
    before = digest_of([reference])
    del target
    assert digest_of([reference]) != before


def test_an_empty_cell_is_no_cell_with_none() -> None:
    """A variable that is not assigned yet."""
    assert digest_of([types.CellType()]) != digest_of([types.CellType(None)])


def test_of_an_object_that_is_called_only_what_its_call_reads_counts() -> None:
    """As the function to run; in a list it counts whole."""
    assert digest_of(Called(1, 1)) == digest_of(Called(1, 2)) != digest_of(Called(2, 1))
    assert digest_of([Called(1, 1)]) != digest_of([Called(1, 2)])
    walked = walk_of(called := Called(1, 1))
    assert walked.reach.part_of(called) == {"rate"}


def test_an_object_whose_call_may_read_all_of_it_counts_whole() -> None:
    """Where it cannot be seen what it reads."""
    assert digest_of(Reading(1, 1)) != digest_of(Reading(1, 2))


def test_a_slot_is_told_by_its_name() -> None:
    """What the interpreter makes for a class has no other content."""

    class Slotted:
        __slots__ = ("a", "b")

    assert digest_of([vars(Slotted)["a"]]) != digest_of([vars(Slotted)["b"]])
    assert digest_of([str.upper]) != digest_of([str.lower])


def test_an_installed_thing_is_told_by_its_name() -> None:
    """A module, a class and a function of the same package."""
    import json

    things = [json, json.dumps, json.loads, json.JSONDecoder, json.JSONEncoder]
    assert len({digest_of([thing]) for thing in things}) == len(things)
    assert digest_of(function("return 1", json=json)) == digest_of(function("return 1"))
