"""No more than what is read."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.access_paths import follow
from jaxd_protocol.fingerprint.dispatch import HANDLERS
from jaxd_protocol.fingerprint.process_view import LocalProcess
from jaxd_protocol.fingerprint.walk import Walk
from tests.shared.fingerprint.defining import define, digest_of, function, part_names, walk_of

HELPERS = "RATE, OTHER = 1, 2\nTABLE = {'a': {'b': 3}, 'c': 4}\ndef scale(x): return x * RATE"


def helpers(**names: Any) -> ModuleType:
    """A module of the user's."""
    module = define(HELPERS, name="made_helpers")
    vars(module).update(names)
    return module


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("return H.RATE", {"RATE"}),
        ("return H.RATE + H.OTHER", {"RATE", "OTHER"}),
        ("return H.scale(x)", {"scale"}),
        ("return H.TABLE['a']['b']", {"TABLE"}),
        ("return H.MISSING", {"MISSING"}),
    ],
)
def test_of_a_module_only_what_is_read_counts(body: str, names: set[str]) -> None:
    """And only that is shipped."""
    module = helpers()
    assert walk_of(function(body, H=module)).reach.part_of(module) == names
    unread = helpers(UNREAD=1)
    assert digest_of(function(body, H=unread)) == digest_of(function(body, H=module))


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
    ("body", "keys"),
    [
        ("return T['a']", {"a"}),
        ("return T['a'], T.get('b')", {"a", "b"}),
        ("return T.get('a', 0)", {"a"}),
        ("return T['z'] if x else 0", {"z"}),
        ("return T[x]", None),
        ("return T.items()", None),
        ("return T.get(x)", None),
        ("return T['a'], T", None),
    ],
)
def test_of_a_dict_only_the_entries_that_are_read_count(body: str, keys: Any) -> None:
    """Where it can be seen which."""
    table = {"a": 1, "b": 2, "c": 3}
    walked = walk_of(function(body, T=table))
    assert walked.reach.part_of(table) == keys
    table["c"] = 4
    assert walked.guards.hold() is (keys is not None)


def test_a_dict_of_another_class_counts_whole() -> None:
    """It may give something else than what it holds."""

    class Table(dict[str, int]):
        def __getitem__(self, key: str) -> int:
            return 0

    table = Table(a=1)
    assert walk_of(function("return T['a']", T=table)).reach.part_of(table) is None


def test_an_item_of_a_subclass_of_dict_counts_alone() -> None:
    """Where the class reads items as a dict does; what changes in the others is not looked at."""

    class Table(dict[str, int]):
        def __missing__(self, key: str) -> int:
            return 0

    table = Table(a=1, b=2)
    walked = walk_of(function("return T['a']", T=table))
    assert walked.reach.part_of(table) == {"a"}
    table["b"] = 3
    assert walked.guards.hold()
    table["a"] = 3
    assert not walked.guards.hold()
    assert walk_of(function("return T['c']", T=table)).reach.part_of(table) is None


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


@pytest.mark.parametrize(("body", "own"), [("return len(x)", 1), ("return missing(x)", 2)])
def test_a_name_that_gets_a_global_later_is_noticed(body: str, own: int) -> None:
    """Where there was a builtin, or nothing."""
    made = function(body)
    walked = walk_of(made)
    name = "len" if own == 1 else "missing"
    made.__globals__[name] = own
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


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


class Config:
    """A class as a name for settings."""

    rate = 1
    other = 2

    def method(self) -> None:
        """A function of it."""


def test_of_a_class_that_holds_settings_only_what_is_read_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Methods make it count whole."""
    walked = walk_of(function("return C.rate", C=Config))
    assert walked.reach.part_of(Config) == {"rate"}
    assert walk_of(function("return C.method", C=Config)).reach.part_of(Config) is None
    monkeypatch.setattr(Config, "other", 3)
    assert walked.guards.hold()
    monkeypatch.setattr(Config, "rate", 3)
    assert not walked.guards.hold()


def test_following_writes_what_the_steps_lead_to() -> None:
    """An attribute, an item, and nothing where there is none."""

    def followed(value: Any, *steps: tuple[str, Any]) -> bytes:
        walk = Walk(HANDLERS, LocalProcess())
        follow(walk, value, steps, written=False)
        return bytes(walk._stream)

    table = {"a": {"b": None}}
    assert followed(table, ("i", "a"), ("i", "b")) == followed({"a": None}, ("i", "a"))
    assert followed(table, ("i", "z")) == followed({}, ("i", "z")) != followed({"z": None})


def test_uses_of_a_value_are_all_that_counts_of_it() -> None:
    """None of them: all of it. The label is as before afterwards."""
    table = {"a": 1, "b": 2}
    walk = Walk(HANDLERS, LocalProcess())
    walk.label = "before"
    walk.emit_uses("closure T", table, {(("i", "a"),): 7})
    assert (walk.label, walk.line) == ("before", 7)
    assert walk.reach.part_of(table) == {"a"}
    walk.emit_uses("closure T", table, None)
    assert walk.reach.part_of(table) is None


def test_what_is_read_is_named_as_code_would_write_it() -> None:
    """The whole chain."""
    made = function("return H.TABLE['a']['b'], H.RATE", H=helpers())
    assert part_names(made)[1:] == ["value: global H.TABLE['a']['b']", "value: global H.RATE"]
