"""Objects by what is read of them."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import pytest

from tests.shared.fingerprint.defining import digest_of, function, part_names, walk_of


class Config:
    """Settings of many kinds."""

    kind = "plain"

    def __init__(self, rate: float = 1.0, unread: float = 1.0) -> None:
        self.rate, self.unread = rate, unread

    def half(self) -> float:
        """Reads the rate."""
        return self.rate / 2

    def quarter(self) -> float:
        """By another method."""
        return self.half() / 2

    def everything(self) -> Any:
        """May read all of it."""
        return vars(self)

    @property
    def double(self) -> float:
        """Reads the rate, too."""
        return self.rate * 2

    @cached_property
    def square(self) -> float:
        """Reads it once."""
        return self.rate**2

    @staticmethod
    def fixed() -> float:
        """Reads nothing."""
        return 1.0


def reading(body: str) -> Callable[[Any], Any]:
    """Makes functions that read a global in one way."""
    return lambda config: function(body, CONFIG=config)


@pytest.mark.parametrize(
    "body",
    [
        "return CONFIG.rate",
        "return CONFIG.half()",
        "return CONFIG.quarter()",
        "return CONFIG.double",
        "return CONFIG.square",
        "return [CONFIG.rate for _ in x]",
    ],
)
def test_only_what_is_read_counts(body: str) -> None:
    """Directly, by a method or by a property; and only that is shipped."""
    make = reading(body)
    config = Config()
    walked = walk_of(make(config))
    config.unread = 2.0
    assert walked.guards.hold()
    assert digest_of(make(Config(unread=3.0))) == walked.fingerprint.digest
    config.rate = 2.0
    assert not walked.guards.hold()
    assert digest_of(make(config)) != walked.fingerprint.digest
    assert walked.reach.part_of(config) is not None
    assert "unread" not in (walked.reach.part_of(config) or ())


@pytest.mark.parametrize(
    "body",
    [
        "return CONFIG",
        "return f(CONFIG), CONFIG.rate",
        "return CONFIG.everything()",
        "return getattr(CONFIG, x)",
        "return CONFIG.__dict__",
    ],
)
def test_what_may_be_read_whole_counts_whole(body: str) -> None:
    """Where it cannot be seen which attributes are read."""
    make = reading(body)
    assert digest_of(make(Config())) != digest_of(make(Config(unread=2.0)))


@pytest.mark.parametrize("body", ["return CONFIG.kind", "return CONFIG.fixed()"])
def test_what_the_class_has_counts(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the object has its own."""
    config = Config()
    make = reading(body)
    walked = walk_of(make(config))
    assert "rate" not in (walked.reach.part_of(config) or ())
    assert walked.guards.hold()
    name = "kind" if "kind" in body else "fixed"
    monkeypatch.setattr(config, name, lambda: 2.0, raising=False)
    assert not walked.guards.hold()
    assert digest_of(make(config)) != walked.fingerprint.digest


def test_a_method_that_is_replaced_in_the_class_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are as they were."""
    made = reading("return CONFIG.half()")(Config())
    walked = walk_of(made)

    def half(self: Any) -> float:
        return 0.0

    monkeypatch.setattr(Config, "half", half)
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


class Slotted:
    """One without a `__dict__`."""

    __slots__ = ("rate", "unread")

    def __init__(self, rate: float, unread: float) -> None:
        self.rate, self.unread = rate, unread


def test_slots_are_read_as_attributes_are() -> None:
    """One by one."""
    make = reading("return CONFIG.rate")
    config = Slotted(1.0, 1.0)
    walked = walk_of(make(config))
    assert walked.reach.part_of(config) == {"rate"}
    config.unread = 2.0
    assert walked.guards.hold()
    config.rate = 2.0
    assert not walked.guards.hold()
    del config.rate
    assert digest_of(make(config)) != walked.fingerprint.digest


class Computed:
    """Makes attributes up."""

    def __init__(self, rate: float) -> None:
        self.hidden = rate

    def __getattr__(self, name: str) -> Any:
        return vars(self)["hidden"]


class Intercepted(Config):
    """Decides about each read."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "unread" if name == "rate" else name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Computed(1.0), Computed(2.0)),
        (Intercepted(unread=1.0), Intercepted(unread=2.0)),
    ],
    ids=["__getattr__", "__getattribute__"],
)
def test_an_object_that_makes_its_attributes_up_counts_whole(one: Any, other: Any) -> None:
    """What `CONFIG.rate` reads then is not an attribute of that name."""
    make = reading("return CONFIG.rate")
    assert digest_of(make(one)) != digest_of(make(other))


@dataclass(frozen=True)
class Inner:
    """Settings below others."""

    width: int
    unread: int


@pytest.mark.parametrize("kind", [Config, SimpleNamespace])
def test_a_chain_of_objects_is_followed(kind: Any) -> None:
    """To the one value that is read."""

    def made(width: int, unread: int) -> Any:
        config = kind()
        config.model = Inner(width, unread)
        return function("return CONFIG.model.width", CONFIG=config)

    assert digest_of(made(8, 1)) == digest_of(made(8, 2)) != digest_of(made(9, 1))
    assert "value: global CONFIG.model.width" in part_names(made(8, 1))


def test_what_the_code_assigns_counts_as_it_was_found() -> None:
    """A counter that a traced function keeps does not make it another one."""
    config = Config(rate=1.0)
    walked = walk_of(function("CONFIG.rate += 1\nCONFIG.last = x", CONFIG=config))
    config.rate = 2.0
    assert walked.guards.hold()
    assert not walked.guards.complete
    assert digest_of(function("CONFIG.rate += 1", CONFIG=Config(rate=1.0))) != digest_of(
        function("CONFIG.rate += 1", CONFIG=Config(rate=2.0))
    )


def test_a_class_that_begins_to_answer_for_its_instances() -> None:
    """What was read is no longer what would be read."""

    class Parent:
        pass

    class Child(Parent):
        rate = 1.0

    made = function("return CONFIG.rate", CONFIG=Child())
    before, walked = digest_of(made), walk_of(made)
    Parent.__getattribute__ = lambda self, name: 2.0  # type: ignore[method-assign]
    assert not walked.guards.hold()
    assert digest_of(made) != before


def test_a_name_that_is_put_into_the_builtins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that catches the `NameError` reads it from then on."""
    walked = walk_of(function("return x * ADDED_LATER"))
    assert walked.guards.hold()
    monkeypatch.setattr(builtins, "ADDED_LATER", 2.0, raising=False)
    assert not walked.guards.hold()
