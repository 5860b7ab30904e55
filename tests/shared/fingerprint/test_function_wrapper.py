from __future__ import annotations

import copy
from types import MethodType
from typing import Any

from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper, FunctionWrapper


class Persistent(FunctionWrapper):
    def __call__(self, *args: Any) -> Any:
        return args


class Model:
    step = Persistent()


def test_found_on_an_instance_it_is_a_method() -> None:
    """As any function; found on the class it is itself."""
    model = Model()
    assert model.step(1.0) == (model, 1.0)
    assert Model.step is vars(Model)["step"]


def test_bound_it_is_compared_copied_and_packed_as_a_bound_method() -> None:
    """Of the same function on the same instance; a deep copy is of a copy of the instance."""
    model = Model()
    bound = BoundWrapper(Model.step, model)
    assert (bound.__func__, bound.__self__) == (Model.step, model)
    assert bound == BoundWrapper(Model.step, model) != BoundWrapper(Model.step, Model())
    assert hash(bound) == hash(BoundWrapper(Model.step, model))
    assert copy.copy(bound) is bound
    assert copy.deepcopy(bound).__self__ is not model
    assert bound.__reduce__() == (MethodType, (Model.step, model))
