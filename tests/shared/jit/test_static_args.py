"""Which arguments are static, and leaves that jax cannot trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import (
    NO_STATIC_ARGS,
    StaticArgs,
    infer_static_args,
    map_arguments,
)
from jaxd_protocol.jit.static_leaves import (
    StaticLeaf,
    content_of,
    unwrapping_arguments,
    wrap_untraceable,
    wrap_untraceable_arguments,
)
from tests.ids import row


def plain(x: Any, n: int, flag: bool = True) -> Any:
    """A function as they usually are."""


def mixed(x: Any, /, n: int, *rest: Any, flag: bool = True, **more: Any) -> Any:
    """One with every kind of parameter."""


def statics(positions: set[int], names: set[str]) -> StaticArgs:
    return StaticArgs(frozenset(positions), frozenset(names))


def test_positions_and_names_follow_from_each_other() -> None:
    """As in `jax.jit`."""
    rows: list[tuple[Callable[..., Any], Options, StaticArgs]] = [
        (plain, Options(), NO_STATIC_ARGS),
        (plain, Options(static_argnums=(1,)), statics({1}, {"n"})),
        (plain, Options(static_argnums=(-1, 0)), statics({0, -1}, {"x"})),
        (plain, Options(static_argnames=("flag",)), statics({2}, {"flag"})),
        (plain, Options(static_argnames=("flag", "n")), statics({1, 2}, {"flag", "n"})),
        (plain, Options(static_argnums=(0,), static_argnames=("n",)), statics({0}, {"n"})),
        (plain, Options(static_argnums=()), statics(set(), set())),
        (mixed, Options(static_argnums=(0, 1)), statics({0, 1}, {"n"})),
        (mixed, Options(static_argnums=(4,)), statics({4}, set())),
        (mixed, Options(static_argnames=("flag", "other")), statics(set(), {"flag", "other"})),
        (mixed, Options(static_argnames=("n",)), statics({1}, {"n"})),
    ]
    for function, options, expected in rows:
        with row((function, options, expected)):
            assert infer_static_args(function, options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(static_argnums=(1,)), statics({1}, set())),
        (Options(static_argnames=("key",)), statics(set(), {"key"})),
    ],
)
def test_without_a_signature_they_count_as_they_are(options: Options, expected: StaticArgs) -> None:
    """Some functions written in C have none."""
    assert infer_static_args(min, options) == expected


def test_negative_positions_count_from_the_last_argument_of_a_call() -> None:
    """And not from the last parameter, as in `jax.jit`."""
    found = infer_static_args(plain, Options(static_argnums=(-1, 0)))
    assert [sorted(found.at(count)) for count in (2, 3, 1)] == [[0, 1], [0, 2], [0]]
    assert statics({1}, set()).at(1) == {1}
    with pytest.raises(ValueError, match=r"got value -1 for len\(args\) == 0"):
        found.at(0)


def test_the_rule_of_jax_is_strict() -> None:
    """With and without static arguments."""
    assert infer_static_args(plain, Options(static="jax")).strict
    assert infer_static_args(plain, Options(static="jax", static_argnums=(1,))).strict
    assert not infer_static_args(plain, Options(static_argnums=(1,))).strict


@dataclass
class Setting:
    """Not hashable, and equal to whatever has the same width."""

    width: Any


class Scale:
    def __init__(self, by: int, unread: int) -> None:
        self.by, self.unread = by, unread

    def __call__(self, x: Any) -> Any:
        return x * self.by


class Colour(Enum):
    RED = 1
    BLUE = 2


class Size(IntEnum):
    TWO = 2


class Vague:
    """Equal to anything, as far as it is concerned."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_leaves_are_equal_when_their_contents_are() -> None:
    """Whatever the values think; type and exact value count."""
    for one, other in [("a", "a"), (Setting([1]), Setting([1])), (Colour.RED, Colour.RED)]:
        assert StaticLeaf(one) == StaticLeaf(other)
        assert hash(StaticLeaf(one)) == hash(StaticLeaf(other))
    for one, other in [("a", b"a"), (Setting(1), Setting(True)), (Setting(0.0), Setting(-0.0))]:
        assert StaticLeaf(one) != StaticLeaf(other)
    assert StaticLeaf(Vague(1)) != StaticLeaf(Vague(2))
    assert StaticLeaf(Colour.RED) != StaticLeaf(Colour.BLUE)
    assert StaticLeaf("a") != "a"
    assert repr(StaticLeaf("a")) == "'a'"


def test_what_nobody_can_tell_apart_is_no_leaf() -> None:
    """The error says what to do."""
    with pytest.raises(ArgumentError, match=r"type object.*by its identity.*static_argnames"):
        StaticLeaf(object())


def test_content_is_the_same_for_equal_values_only() -> None:
    """Literals by themselves, others by a walk."""
    assert content_of((1, "a")) == content_of((1, "a")) != content_of((True, "a"))
    assert content_of(jnp.tanh) == content_of(jnp.tanh) != content_of(jnp.sin)


def test_all_of_an_object_that_can_be_called_counts() -> None:
    """Not only what its own call reads: a function may read the rest."""
    assert content_of(Scale(1, 2)) == content_of(Scale(1, 2))
    assert len({content_of(Scale(*args)) for args in ((1, 2), (1, 3), (2, 2))}) == 3


def test_what_jax_cannot_trace_is_closed() -> None:
    """Numbers and arrays stay what they are; those of classes of their own become plain."""
    tree = {"a": "text", "b": [Setting(1), np.ones(2), Size.TWO], "c": (True, None, jnp.sin)}
    found = wrap_untraceable(tree, strict=False)
    leaves = jax.tree.leaves(found)
    assert [type(leaf) for leaf in leaves] == [np.ndarray, int, bool]
    assert found["a"] == StaticLeaf("text")
    assert found["c"][2].value is jnp.sin
    assert wrap_untraceable(np.str_("a"), strict=False) == StaticLeaf(np.str_("a"))


def test_by_the_rule_of_jax_nothing_is_closed() -> None:
    """But numbers are numbers."""
    assert wrap_untraceable(["text", Size.TWO], strict=True) == ["text", 2]
    assert type(wrap_untraceable(Size.TWO, strict=True)) is int


def test_a_function_gets_what_was_closed_as_it_was() -> None:
    """By position and by name, traced as well; a declared static argument is left alone."""
    setting, declared = Setting(3), Setting("declared")

    def function(x: Any, how: Any, fixed: Any, *, options: Any) -> Any:
        assert how is setting
        assert fixed is declared
        return x * how.width if options["mode"] == "times" else x

    args: Any = (2.0, StaticLeaf(setting), declared)
    kwargs = {"options": {"mode": StaticLeaf("times"), "rate": 1.0}}
    statics = StaticArgs(frozenset({2}))
    opened = unwrapping_arguments(function, statics)
    assert opened(*args, **kwargs) == 6.0
    traced = jax.jit(lambda *args: opened(*args, declared, **kwargs))
    assert float(traced(*args[:2])) == 6.0
    assert opened.__name__ == "function"


def test_what_has_nothing_closed_in_it_is_passed_as_it_is() -> None:
    """No node of the user's is made anew for nothing."""
    tree = {"a": [1.0]}
    assert unwrapping_arguments(lambda x, y: (x is tree, y is tree), NO_STATIC_ARGS)(
        tree, y=tree
    ) == (True, True)


def test_all_arguments_of_a_call_are_closed() -> None:
    """But for those that are declared static."""
    statics = StaticArgs(frozenset({-1}), frozenset({"mode"}))
    args, kwargs = wrap_untraceable_arguments(
        ("a", ["b", 1.0], "c"), {"mode": "d", "x": "e"}, statics
    )
    assert args == (StaticLeaf("a"), [StaticLeaf("b"), 1.0], "c")
    assert kwargs == {"mode": "d", "x": StaticLeaf("e")}


def test_static_arguments_are_mapped_apart_from_traced_ones_in_their_order() -> None:
    """A negative position counts from the last one of the call."""
    arguments = (1, 2, 3), {"b": 4, "a": 5}
    mapped = map_arguments(arguments, statics({-1}, {"a"}), str, float)
    assert mapped == (("1", "2", 3.0), {"b": "4", "a": 5.0})
    assert list(mapped[1]) == ["b", "a"]
    assert map_arguments(arguments, statics({-1}, {"a"}), str)[0] == ("1", "2", 3)
