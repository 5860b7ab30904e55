"""No more than what is read."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from tests.shared.fingerprint.defining import define, digest_of, function, part_names, walk_of

HELPERS = "RATE, OTHER = 1, 2\nTABLE = {'a': {'b': 3}, 'c': 4}\ndef scale(x): return x * RATE"


def helpers(**names: Any) -> ModuleType:
    """A module of the user's."""
    module = define(HELPERS, name="made_helpers")
    vars(module).update(names)
    return module


class Plain:
    """Objects of it may have attributes of their own."""

    rate = 0.1


@pytest.mark.parametrize("made", [Plain, SimpleNamespace, Namespace], ids=lambda cls: cls.__name__)
def test_an_attribute_that_an_empty_object_gets_later_is_noticed(made: Callable[[], Any]) -> None:
    """Also one that its class has, and one that code asks for."""
    held = made()
    names = ["other"] + ["rate"] * (made is Plain)
    for name in names:
        reads = function(f"return getattr(held, {name!r}, 0.5)", held=held)
        walked = walk_of(reads)
        assert walked.guards.hold()
        setattr(held, name, 5.0)
        assert not walked.guards.hold()
        assert digest_of(reads) != walked.fingerprint.digest


def test_a_name_that_a_module_gets_later_is_noticed() -> None:
    """It was looked for."""
    module = helpers()
    guards = walk_of(function("return H.LATER if x else 0", H=module)).guards
    vars(module)["LATER"] = 1
    assert not guards.hold()


def test_of_a_module_that_makes_its_names_up_what_makes_them_counts() -> None:
    """Where a name is read that it does not have, and no more of the module than that reads."""
    module = helpers(__getattr__=function("return 1", "name"))
    assert walk_of(function("return H.MADE", H=module)).reach.part_of(module) == {"__getattr__"}
    assert walk_of(function("return H.RATE", H=module)).reach.part_of(module) == {"RATE"}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("if x not in M: M[x] = 1\nreturn M[x]", {}),
        ("M.append(x)", []),
        ("M.add(x)", set()),
        ("M['calls'] += 1", {"calls": 0}),
        ("del M[x]", {}),
    ],
)
def test_what_the_code_itself_fills_counts_as_it_was_found(body: str, value: Any) -> None:
    """Its changes are not looked for; the guards say that they are not complete."""
    walked = walk_of(function(body, M=value))
    assert walked.guards.hold()
    assert not walked.guards.complete
    if isinstance(value, dict):
        value["calls"] = 5
    elif isinstance(value, list):
        value.append(5)
    else:
        value.add(5)
    assert walked.guards.hold()


@pytest.mark.parametrize(
    "read", ["sum(T)", "T[0]", "C.table[0]"], ids=["whole", "an item", "in another way"]
)
def test_what_other_code_fills_is_looked_at(read: str) -> None:
    """A registry: the function that fills it is reached, the one that reads it does not fill it."""
    table = [1, 2]
    names: dict[str, Any] = {"T": table, "C": SimpleNamespace(table=table)}
    names["add"] = function("T.append(x); T[0] = x", **names)
    walked = walk_of(function(f"return add, {read}", **names))
    assert walked.guards.complete
    table[0] = 3
    assert not walked.guards.hold()


def test_a_global_that_the_code_assigns_counts_as_it_was_found() -> None:
    """Else each call would make another function of it."""
    made = function("global N\nN = N + 1\nreturn x", N=0)
    walked = walk_of(made)
    made(1)
    assert walked.guards.hold()
    assert not walked.guards.complete


@pytest.mark.parametrize("body", ["return globals()['A']", "return eval('A')"])
def test_code_that_looks_among_its_globals_has_the_module_whole(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any of them may be read."""

    def made(number: int) -> bytes:
        module = define(f"A = {number}\ndef f(x): {body}", name="made_globals")
        monkeypatch.setitem(__import__("sys").modules, "made_globals", module)
        return digest_of(module.f)

    assert made(1) == made(1) != made(2)


def test_names_that_say_where_code_is_do_not_count() -> None:
    """They differ from machine to machine."""
    one, other = (function("return __file__, __name__", __file__=file) for file in ("/a", "/b"))
    assert digest_of(one) == digest_of(other)


def test_a_hidden_import_is_refused_and_open_is_recorded_later() -> None:
    """Builtins whose results no key of a walk can hold."""
    assert not walk_of(function("return open(x)")).fingerprint.notes
    with pytest.raises(PackingError, match="uses __import__"):
        walk_of(function("return __import__(x)"))


def test_what_is_read_is_named_as_code_would_write_it() -> None:
    """The whole chain."""
    made = function("return H.TABLE['a']['b'], H.RATE", H=helpers())
    assert part_names(made)[1:] == ["value: global H.TABLE['a']['b']", "value: global H.RATE"]


class Settings:
    kind = "plain"

    def __init__(self, rate: float = 1.0, unread: float = 1.0) -> None:
        self.rate, self.unread = rate, unread

    def half(self) -> float:
        return self.rate / 2

    def quarter(self) -> float:
        return self.half() / 2

    def everything(self) -> Any:
        """May read all of it."""
        return vars(self)

    @property
    def double(self) -> float:
        return self.rate * 2

    @cached_property
    def square(self) -> float:
        return self.rate**2

    @staticmethod
    def fixed() -> float:
        return 1.0


def reader_of(body: str) -> Callable[[Any], Any]:
    """Makes functions that read a global in one way."""
    return lambda config: function(body, CONFIG=config)


@pytest.mark.parametrize("body", ["return CONFIG.kind", "return CONFIG.fixed()"])
def test_what_the_class_has_counts(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the object has its own."""
    config = Settings()
    make = reader_of(body)
    walked = walk_of(make(config))
    assert "rate" not in (walked.reach.part_of(config) or ())
    assert walked.guards.hold()
    name = "kind" if "kind" in body else "fixed"
    monkeypatch.setattr(config, name, lambda: 2.0, raising=False)
    assert not walked.guards.hold()
    assert digest_of(make(config)) != walked.fingerprint.digest


def test_what_the_code_assigns_counts_as_it_was_found() -> None:
    """A counter that a traced function keeps does not make it another one."""
    config = Settings(rate=1.0)
    walked = walk_of(function("CONFIG.rate += 1\nCONFIG.last = x", CONFIG=config))
    config.rate = 2.0
    assert walked.guards.hold()
    assert not walked.guards.complete
    assert digest_of(function("CONFIG.rate += 1", CONFIG=Settings(rate=1.0))) != digest_of(
        function("CONFIG.rate += 1", CONFIG=Settings(rate=2.0))
    )
