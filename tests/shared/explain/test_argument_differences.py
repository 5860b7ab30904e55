"""What differs between the arguments of two calls, in words."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest

from jaxd.request.arguments import encode_arguments
from jaxd_protocol.explain.argument_differences import argument_differences
from jaxd_protocol.explain.argument_shapes import Argument, argument_shapes
from jaxd_protocol.explain.key_differences import Difference
from jaxd_protocol.jit.static_args import StaticArgs
from tests.ids import row

PARAMETERS = ("x", "steps")
STEPS_STATIC = StaticArgs(frozenset({1}), frozenset({"steps"}))


def forms(*args: Any, statics: StaticArgs = STEPS_STATIC, **kwargs: Any) -> dict[str, Argument]:
    """Those of a call of f(x, steps)."""
    skeleton = encode_arguments(args, kwargs, statics, {}).skeleton
    return argument_shapes(skeleton, PARAMETERS)


def texts(before: dict[str, Argument], after: dict[str, Argument]) -> list[str]:
    return [difference.text for difference in argument_differences(before, after)]


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def test_a_change_is_one_sentence() -> None:
    """About the smallest thing that changed."""
    rows: list[tuple[Any, Any, str]] = [
        (array(128, 8), array(129, 8), "argument x: float32[128,8] → float32[129,8]"),
        (array(3), array(3, dtype=np.int8), "argument x: float32[3] → int8[3]"),
        (1, 1.0, "argument x: int → float"),
        (None, array(3), "argument x: None → float32[3]"),
        ("sum", "mean", "argument x (static): 'sum' → 'mean'"),
        ({"w": array(3)}, {"w": array(4)}, "argument x['w']: float32[3] → float32[4]"),
        ({"w": 1}, {"v": 1}, "argument x: structure changed (new: ['v'], gone: ['w'])"),
        ({"w": 1}, {"w": 1, "v": 1}, "argument x: structure changed (new: ['v'])"),
        ([1, 2], [1, 2, 3], "argument x: structure changed (list of 2 → list of 3)"),
        ([1, 2], (1, 2), "argument x: structure changed (list of 2 → tuple of 2)"),
        (1, {"w": 1}, "argument x: structure changed (int → dict of 1)"),
        ({}, {"w": 1}, "argument x: structure changed (new: ['w'])"),
        (
            {"a": {"b": [1]}},
            {"a": {"b": [1, 2]}},
            "argument x['a']['b']: structure changed (list of 1 → list of 2)",
        ),
        (
            OrderedDict(a=1, b=2),
            OrderedDict(b=1, a=2),
            "argument x: structure changed (OrderedDict of 2 → OrderedDict of 2)",
        ),
    ]
    for before, after, text in rows:
        with row((before, after, text)):
            assert texts(forms(before), forms(after)) == [text]


def test_static_values_are_told() -> None:
    """They are part of the program."""
    assert texts(forms(1, 10), forms(1, 12)) == ["argument steps (static): 10 → 12"]
    long = "x" * 100
    (text,) = texts(forms(1, long + "1"), forms(1, long + "2"))
    assert text.startswith("argument steps (static): another value, which begins with 'xxx")
    (text,) = texts(forms(1, frozenset({1})), forms(1, frozenset({2})))
    assert text == "argument steps (static): another object"


def test_arguments_come_and_go() -> None:
    """And are given in another way."""
    assert texts(forms(1), forms(1, 3)) == ["argument steps: now given (3)"]
    assert texts(forms(1, 3), forms(1)) == ["argument steps: no longer given (was 3)"]
    assert texts(forms(1, 3), forms(1, steps=3)) == [
        "argument steps: given by position → given by name"
    ]


def test_equal_calls_do_not_differ() -> None:
    """Whatever the order of their dicts."""
    assert texts(forms({"a": 1, "b": 2.0}, 3), forms({"b": 1.0, "a": 7}, 3)) == []


def test_many_leaves_of_one_argument_are_one_sentence() -> None:
    """With one of them as an example."""
    before, after = (
        {f"w{i}": array(3, dtype=dtype) for i in range(200)} for dtype in (np.float32, np.float16)
    )
    assert texts(forms(before), forms(after)) == [
        "argument x: 200 leaves changed, such as x['w0']: float32[3] → float16[3]"
    ]


def test_many_keys_are_not_all_told() -> None:
    """The first three, and how many more."""
    before = {f"w{i}": 1 for i in range(9)}
    (text,) = texts(forms(before), forms({"v": 1}))
    assert text == (
        "argument x: structure changed (new: ['v'], gone: ['w0'], ['w1'], ['w2'] and 6 more)"
    )


def test_a_difference_is_structured() -> None:
    """The same, for programs."""
    (found,) = argument_differences(forms(array(2)), forms(array(3)))
    assert found == Difference(
        "argument",
        "x",
        "changed",
        "float32[2]",
        "float32[3]",
        "",
        "argument x: float32[2] → float32[3]",
    )


@jax.tree_util.register_dataclass
@dataclass
class State:
    w: Any
    how: Any = field(default=None, metadata={"static": True})


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (State(array(3)), State(array(4)), "argument x.w: float32[3] → float32[4]"),
        (State(1, "a"), State(1, "b"), "argument x (static): ('a',) → ('b',)"),
        (State(1, len), State(1, max), "argument x (static): another object"),
        (State({"k": State(1, len)}), State({"k": State(1, max)}),
         "argument x (static): another object"),
        (State([State(1, 1)]), State([State(1, 2)]), "argument x.w[0] (static): (1,) → (2,)"),
        (State({}, 1), State({}, 2), "argument x (static): (1,) → (2,)"),
        (State(1), State({"a": 1}), "argument x.w: structure changed (int → dict of 1)"),
    ],
)  # fmt: skip
def test_what_differs_in_objects(before: Any, after: Any, text: str) -> None:
    """Leaves by their names; of what is static, plain values."""
    assert texts(forms(before), forms(after)) == [text]


def test_objects_of_equal_content_do_not_differ() -> None:
    """Though they were made one after the other."""
    assert texts(forms(State(1, lambda x: x + 1)), forms(State(2, lambda x: x + 1))) == []
