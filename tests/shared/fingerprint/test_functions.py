"""Functions, and what binds arguments to them."""

from __future__ import annotations

import functools
import json
import random
from types import FunctionType
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from tests.shared.fingerprint.defining import define, digest_of, function, part_names, walk_of

optax = pytest.importorskip("optax")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x, a=1): pass", "def f(x, a=2): pass"),
        ("def f(x, a=1): pass", "def f(x, a=True): pass"),
        ("def f(x, *, a=1, b=2): pass", "def f(x, *, a=2, b=1): pass"),
        ("def f(x): pass\nf.note = 1", "def f(x): pass\nf.note = 2"),
        ("def f(x): pass\nf.note = 1", "def f(x): pass"),
        ("def m(a): return lambda x: a\nf = m(1)", "def m(a): return lambda x: a\nf = m(2)"),
        ("def f(x): return A\nA = 1", "def f(x): return A\nA = 2"),
        ("def f(x): return A\nA = 1", "def f(x): return A"),
    ],
)
def test_all_that_decides_what_it_does_counts(one: str, other: str) -> None:
    """Defaults, attributes, the closure and globals."""
    first, second = (define(source).f for source in (one, other))
    assert digest_of(first) != digest_of(second)


def test_a_variable_that_is_not_assigned_yet_counts_as_such() -> None:
    """A function that calls itself is met before its name is bound."""
    source = """
    def make(bind):
        def f(x): return later
        if bind: later = 1
        return f
    """
    module = define(source)
    assert digest_of(module.make(False)) == digest_of(module.make(False))
    assert digest_of(module.make(False)) != digest_of(module.make(True))


def test_an_installed_function_counts_by_its_name() -> None:
    """Its code is the same wherever its package is."""
    assert walk_of(json.dumps).fingerprint.parts == ()
    assert digest_of(json.dumps) != digest_of(json.loads)


def test_an_error_of_a_hook_is_not_an_empty_cell_of_an_installed_function() -> None:
    """It ends the walk, as for a function of the user's own."""

    class Kept:
        def __fingerprint__(self) -> int:
            raise ValueError("not now")

    def make(kept: Kept) -> Any:
        return lambda: kept

    made = make(Kept())
    installed = FunctionType(made.__code__, vars(optax), "update", None, made.__closure__)
    with pytest.raises(ValueError, match="not now"):
        walk_of(installed)


def test_a_function_that_a_library_made_counts_by_what_it_closes_over() -> None:
    """`optax.sgd` gives functions of its own."""
    one, same, other = (optax.sgd(rate).update for rate in (0.1, 0.1, 0.2))
    assert digest_of(one) == digest_of(same) != digest_of(other)
    assert set(walk_of(one).fingerprint.packages) >= {"optax"}


def test_an_installed_function_with_other_code_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has the original; the message says what to do."""

    def mine(obj: Any) -> Any:
        return obj

    patched = FunctionType(json.dumps.__code__, {"__name__": "json", "__builtins__": {}}, "dumps")
    monkeypatch.setattr(json, "dumps", patched)
    patched.__code__ = mine.__code__
    patched.__module__ = "json"
    with pytest.raises(PackingError, match=r"json\.dumps, whose code was replaced.*your own"):
        walk_of(patched)
    with pytest.raises(PackingError, match=r"json\.dumps, whose code was replaced"):
        walk_of(function("import json\nreturn json.dumps(x)"))


class Model:
    """With a method that reads one attribute, and one that may read all."""

    def __init__(self, rate: float, unread: float) -> None:
        self.rate, self.unread = rate, unread

    def run(self, x: Any) -> Any:
        """Reads the rate."""
        return x * self.rate

    def all(self, x: Any) -> Any:
        """Hands itself on."""
        return vars(self), x

    @classmethod
    def of_class(cls, x: Any) -> Any:
        """Has a class instead of an object."""
        return cls, x


def test_of_the_object_of_a_method_only_what_it_reads_counts() -> None:
    """Where that is certain; else all of it."""
    assert digest_of(Model(1, 1).run) == digest_of(Model(1, 2).run) != digest_of(Model(2, 1).run)
    assert digest_of(Model(1, 1).all) != digest_of(Model(1, 2).all)
    model = Model(1, 1)
    assert walk_of(model.run).reach.part_of(model) == {"rate"}
    assert walk_of(model.all).reach.part_of(model) is None


def test_a_method_of_a_class_counts_with_its_class() -> None:
    """Another subclass may do something else."""

    class Child(Model):
        pass

    assert digest_of(Model.of_class) != digest_of(Child.of_class)


def test_a_method_that_a_module_offers_as_a_function_counts_by_its_name() -> None:
    """The object behind `random.random` belongs to the module, whatever its state."""
    before = digest_of(random.gauss)
    random.random()
    assert digest_of(random.gauss) == before != digest_of(random.Random(1).gauss)


def test_a_method_written_in_c_counts_with_its_object() -> None:
    """`"a".join` is not `"b".join`."""
    assert digest_of("a".join) == digest_of("a".join) != digest_of("b".join)
    assert digest_of([1].count) != digest_of([2].count)
    assert digest_of([1].count) != digest_of([1].index)


def test_a_partial_names_the_parameters_that_it_binds() -> None:
    """And counts them in their order."""

    def step(x: Any, rate: float, *, steps: int) -> Any:
        return x, rate, steps

    bound = functools.partial(step, 1, 2.5, steps=3)
    assert {f"value: partial {name}" for name in ("x", "rate", "steps")} <= set(part_names(bound))
    assert digest_of(bound) != digest_of(functools.partial(step, 2.5, 1, steps=3))
    bound.keywords["steps"] = 4
    assert digest_of(bound) != digest_of(functools.partial(step, 1, 2.5, steps=3))


def test_a_change_of_what_a_partial_binds_is_noticed() -> None:
    """Its keywords are a dict that can be changed."""
    bound = functools.partial(json.dumps, indent=2)
    guards = walk_of(bound).guards
    bound.keywords["indent"] = 4
    assert not guards.hold()
