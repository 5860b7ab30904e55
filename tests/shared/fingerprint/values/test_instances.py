"""Objects that count whole, by what they say when they are pickled."""

from __future__ import annotations

import contextvars
import copyreg
import dataclasses
import fractions
import logging
import sys
import threading
import weakref
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.ids import row
from tests.shared.fingerprint.defining import digest_of, walk_of


class Plain:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


class Stated:
    """That says which part of it is its state."""

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b

    def __getstate__(self) -> Any:
        return {"a": self.a}


class Edited:
    """That puts something else in the place of what pickle cannot write."""

    c = 0

    def __init__(self, a: Any, b: Any, c: Any = 1) -> None:
        self.a, self.b, self.c = a, b, c

    def __getstate__(self) -> Any:
        return {"a": self.a, "b": None}


class Reduced:
    """That says how it is made."""

    def __init__(self, a: Any, b: Any = None) -> None:
        self.a, self.b = a, b

    def __reduce__(self) -> Any:
        return Reduced, (self.a,)


class Items(list[Any]):
    """A list of the user's."""


class Table(dict[str, Any]):
    """A dict of the user's."""


def test_attributes_that_a_class_replaces_when_it_is_pickled_count() -> None:
    """`__getstate__` puts None in the place of one, and a class's attribute in that of another."""
    assert digest_of([Edited(1, 2)]) == digest_of([Edited(1, 2)])
    for other in (Edited(3, 2), Edited(1, 3), Edited(1, 2, 3)):
        assert digest_of([Edited(1, 2)]) != digest_of([other])


def test_attributes_of_a_dict_that_pickles_as_itself_count() -> None:
    """They are no part of the state that its class gives."""

    class Itself(dict[str, int]):
        def __init__(self, missing: int) -> None:
            super().__init__(rate=1)
            vars(self)["missing"] = missing

        def __getstate__(self) -> Any:
            return self

    assert digest_of([Itself(1)]) == digest_of([Itself(1)]) != digest_of([Itself(2)])


@pytest.mark.parametrize("make", [Stated, Reduced])
def test_an_object_may_say_what_it_is(make: Any) -> None:
    """As to pickle."""
    assert digest_of([make(1, 2)]) == digest_of([make(1, 3)]) != digest_of([make(2, 2)])


def test_a_reducer_that_was_registered_says_it() -> None:
    """In place of the object's own."""

    class Foreign:
        def __init__(self, a: int, b: int) -> None:
            self.a, self.b = a, b

    copyreg.pickle(Foreign, lambda value: (Foreign, (value.a, 0)))
    try:
        assert digest_of([Foreign(1, 2)]) == digest_of([Foreign(1, 3)])
    finally:
        del copyreg.dispatch_table[Foreign]


def test_what_a_container_or_value_holds_counts() -> None:
    """Items, keys, and what else it is made of."""
    rows: list[tuple[Any, Any]] = [
        (Items([1]), Items([2])),
        (Items([1]), [1]),
        (Table(a=1), Table(a=2)),
        (Table(a=1), Table(b=1)),
        (Table(a=1), {"a": 1}),
        (defaultdict(list), defaultdict(dict)),
        (bytearray(b"a"), bytearray(b"b")),
        (Plain(1, 1), Stated(1, 1)),
    ]
    for one, other in rows:
        with row((one, other)):
            assert digest_of([one]) != digest_of([other])


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (Items([1]), lambda v: v.append(2)),
        (Table(a=1), lambda v: v.update(b=2)),
        (bytearray(b"a"), lambda v: v.append(2)),
    ],
)
def test_a_change_of_a_container_is_noticed(value: Any, change: Any) -> None:
    """In place."""
    walked = walk_of([value])
    assert walked.guards.hold()
    change(value)
    assert not walked.guards.hold()
    assert digest_of([value]) != walked.fingerprint.digest


OPAQUE: list[tuple[Any, Any]] = [
    (threading.Lock(), threading.Lock()),
    (threading.RLock(), threading.RLock()),
    (threading.Condition(), threading.Condition()),
    (threading.Semaphore(1), threading.Semaphore(2)),
    (logging.getLogger("a"), logging.getLogger("a")),
    (weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()),
]


@pytest.mark.parametrize(("one", "other"), OPAQUE, ids=lambda value: type(value).__name__)
def test_what_cannot_change_a_result_counts_as_such(one: Any, other: Any) -> None:
    """It has a content for nobody."""
    assert digest_of([one]) == digest_of([other])
    assert walk_of([one]).fingerprint.unshared == ()


def test_a_logger_is_told_by_its_name_and_an_event_by_its_state() -> None:
    """Both are seen by the function."""
    assert digest_of([logging.getLogger("a")]) != digest_of([logging.getLogger("b")])
    event = threading.Event()
    walked = walk_of([event])
    event.set()
    assert not walked.guards.hold()
    assert digest_of([event]) != walked.fingerprint.digest


def test_the_standard_streams_count_as_such() -> None:
    """Whatever they are replaced by."""
    assert walk_of([sys.stdout, sys.stderr]).fingerprint.unshared == ()


def test_a_context_variable_counts_by_what_it_holds() -> None:
    """In the context of the call."""
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("width", default=1)
    walked = walk_of([variable])
    token = variable.set(2)
    assert not walked.guards.hold()
    assert digest_of([variable]) != walked.fingerprint.digest
    variable.reset(token)
    assert walked.guards.hold()
    empty: contextvars.ContextVar[int] = contextvars.ContextVar("width")
    assert digest_of([empty]) != walked.fingerprint.digest


def test_a_thread_s_own_values_count() -> None:
    """Those of the thread that calls."""
    local = threading.local()
    local.width = 1
    walked = walk_of([local])
    local.width = 2
    assert not walked.guards.hold()
    assert digest_of([local]) != walked.fingerprint.digest


def test_a_field_of_a_dataclass_counts_without_its_type() -> None:
    """Names, defaults and how it is treated."""

    def field(**options: Any) -> Any:
        made = dataclasses.make_dataclass("Made", [("a", int, dataclasses.field(**options))])
        return dataclasses.fields(made)[0]

    assert digest_of([field(default=1)]) == digest_of([field(default=1)])
    assert digest_of([field(default=1)]) != digest_of([field(default=2)])
    assert digest_of([field(default=1)]) != digest_of([field(default=1, compare=False)])
    assert digest_of([field(metadata={"a": 1})]) != digest_of([field(metadata={"a": 2})])


class Hooked:
    """Says itself what it means."""

    def __init__(self, meaning: Any, other: Any = None) -> None:
        self.manifest, self.other = meaning, other

    def __fingerprint__(self) -> Any:
        return self.manifest


def test_an_object_may_say_what_it_means() -> None:
    """With `__fingerprint__`; nothing else of it counts."""
    assert digest_of([Hooked("a", 1)]) == digest_of([Hooked("a", 2)])
    assert digest_of([Hooked("a")]) != digest_of([Hooked("b")])
    stream = (number for number in [1])
    hooked = Hooked("a", stream)
    walked = walk_of([hooked])
    assert walked.fingerprint.unshared == ()
    hooked.manifest = "b"
    assert not walked.guards.hold()


def test_what_an_object_means_may_be_an_array() -> None:
    """Such as the weights it was made from."""
    one, same, other = Hooked(np.arange(3)), Hooked(np.arange(3)), Hooked(np.ones(3))
    assert digest_of([one]) == digest_of([same]) != digest_of([other])
    assert walk_of([one]).guards.hold()


def test_a_hook_that_fails_later_is_a_change() -> None:
    """No exception of it reaches whoever calls the function: the walk says what is wrong."""
    hooked = Hooked("a")
    guards = walk_of([hooked]).guards
    del hooked.manifest
    assert not guards.hold()


def test_which_constant_of_a_library_it_is_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It travels by its name, and code compares it by identity."""
    cls = type("Sentinel", (), {"__module__": "fractions"})
    for name, value in (("Sentinel", cls), ("ONE", cls()), ("TWO", cls())):
        monkeypatch.setattr(fractions, name, value, raising=False)
    one, two = vars(fractions)["ONE"], vars(fractions)["TWO"]
    assert digest_of([one]) == digest_of([one]) != digest_of([two])


def test_a_function_of_an_extension_counts_with_its_own_module() -> None:
    """Its type says nothing of that: Cython makes one for all."""
    cls: Any = type("function", (), {"__module__": "fractions", "__reduce__": lambda _: "run"})
    one, two = cls(), cls()
    one.__module__, two.__module__ = "decimal", "numbers"
    assert digest_of([one]) == digest_of([one]) != digest_of([two])
