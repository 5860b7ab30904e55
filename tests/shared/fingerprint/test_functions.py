"""Functions, and what binds arguments to them."""

from __future__ import annotations

import copy
import functools
import json
import random
from types import FunctionType, MethodType
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper, FunctionWrapper
from tests.shared.fingerprint.defining import digest_of, function, part_names, walk_of

optax = pytest.importorskip("optax")


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
        return x * self.rate

    def all(self, x: Any) -> Any:
        return vars(self), x

    @classmethod
    def of_class(cls, x: Any) -> Any:
        """Has a class instead of an object."""
        return cls, x


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


def test_a_partial_names_the_parameters_that_it_binds() -> None:
    """And counts them in their order."""

    def step(x: Any, rate: float, *, steps: int) -> Any:
        return x, rate, steps

    bound = functools.partial(step, 1, 2.5, steps=3)
    assert {f"value: partial {name}" for name in ("x", "rate", "steps")} <= set(part_names(bound))
    assert digest_of(bound) != digest_of(functools.partial(step, 2.5, 1, steps=3))
    bound.keywords["steps"] = 4
    assert digest_of(bound) != digest_of(functools.partial(step, 1, 2.5, steps=3))


class Persistent(FunctionWrapper):
    def __call__(self, *args: Any) -> Any:
        return args


class Stepping:
    step = Persistent()


def test_found_on_an_instance_it_is_a_method() -> None:
    """As any function; found on the class it is itself."""
    model = Stepping()
    assert model.step(1.0) == (model, 1.0)
    assert Stepping.step is vars(Stepping)["step"]


def test_bound_it_is_compared_copied_and_packed_as_a_bound_method() -> None:
    """Of the same function on the same instance; a deep copy is of a copy of the instance."""
    model = Stepping()
    bound = BoundWrapper(Stepping.step, model)
    assert (bound.__func__, bound.__self__) == (Stepping.step, model)
    assert bound == BoundWrapper(Stepping.step, model) != BoundWrapper(Stepping.step, Stepping())
    assert hash(bound) == hash(BoundWrapper(Stepping.step, model))
    assert copy.copy(bound) is bound
    assert copy.deepcopy(bound).__self__ is not model
    assert bound.__reduce__() == (MethodType, (Stepping.step, model))
