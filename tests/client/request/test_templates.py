"""Objects that jax takes apart: what is packed of them, and when it is packed anew."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.example_libraries import optimizers

from jaxd.request import templates
from jaxd.request.arguments import encode_arguments
from jaxd_protocol.errors import ArgumentError, PackingError, TracerError
from jaxd_protocol.explain.argument_shapes import argument_shapes
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs
from jaxd_protocol.pytree import Leaf, parse_skeleton
from tests.client.fake_fetcher import FakeFetcher, single_array
from tests.client.fresh_process import in_a_fresh_process
from tests.client.packings import record_packings

SCALE = 2.0


@jax.tree_util.register_dataclass
@dataclass
class State:
    """As users and their libraries make them."""

    w: Any
    how: Any = field(default=None, metadata={"static": True})

    def doubled(self) -> Any:
        return self.w * 2


class Point(NamedTuple):
    x: Any
    y: Any


class Rule(NamedTuple):
    init: Any
    update: Any


@dataclass
class Setting:
    """Static, and equal to another with the same width."""

    width: Any
    more: Any = ()


class Plain:
    """Static, and equal to itself only."""

    def __init__(self, width: Any) -> None:
        self.width = width

    def apply(self, x: Any) -> Any:
        return x * self.width


class Slotted:
    """Keeps its attribute itself."""

    __slots__ = ("width",)

    def __init__(self, width: Any) -> None:
        self.width = width


def helper(x: Any) -> Any:
    return x * SCALE


def apply(x: Any, by: float = 1.0) -> Any:
    return helper(x) + by


def skeleton(*args: Any) -> bytes:
    """What says which program a call needs."""
    return encode_arguments(args, {}, NO_STATIC_ARGS, {}).skeleton


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that is packed from now on."""
    return record_packings(monkeypatch, templates, "_templates")


# what is sent -------------------------------------------------------------------------------------


def test_leaves_are_leaves_of_the_call() -> None:
    """In jax's order, as they would be in a dict; only the rest is packed."""
    large = np.ones(5000, np.float32)
    state = State({"b": large, "a": [1.5, None, jnp.ones(3)]}, "mean")
    encoded = encode_arguments((state,), {}, NO_STATIC_ARGS, {})
    sent, buffers = encoded.skeleton, encoded.buffers
    layout = parse_skeleton(sent, lambda *_: tuple, bytes)
    assert [(leaf.tag, leaf.shape) for leaf in layout.leaves] == [
        ("F", ()),
        ("A", (3,)),
        ("A", (5000,)),
    ]
    assert [buffer.nbytes for buffer in buffers] == [large.nbytes]
    assert np.shares_memory(np.frombuffer(buffers[0], np.float32), large)
    assert layout.build([1, 2, 3]) == (([1, 2, 3],), {})


def test_the_class_is_remembered_in_each_call() -> None:
    """So that a result can come back as its instance, also of another function."""
    for _ in range(2):
        known_objects: dict[Any, Any] = {}
        encode_arguments((State(1.0, helper),), {}, NO_STATIC_ARGS, known_objects)
        assert known_objects[__name__, "State"] is State
        assert helper in known_objects.values()


def test_people_are_told_of_its_leaves_and_its_plain_static_values() -> None:
    """By the names that they have in it."""
    state = State(Point(np.ones(2, np.float32), {"k": 1}), ("mean", 3))
    form = argument_shapes(skeleton(state))["0"].form
    assert str(form) == "State of 1"
    assert [(path, str(leaf)) for path, leaf in form.leaves()] == [
        (".w.x", "float32[2]"),
        (".w.y['k']", "int"),
    ]
    assert form.text == "('mean', 3)"


def test_a_class_by_which_jax_names_no_children_has_numbered_ones() -> None:
    """As jax itself prints them."""

    @jax.tree_util.register_pytree_node_class
    class Box:
        def tree_flatten(self) -> Any:
            return (1.0,), None

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls()

    ((path, _),) = argument_shapes(skeleton([Box()]))["0"].form.leaves()
    assert path == "[0][<flat index 0>]"


def test_what_jax_takes_for_a_leaf_is_static() -> None:
    """By its content; under jax's own rule it is pickled, and the server says why not."""
    leaves = parse_skeleton(skeleton(Setting(3)), lambda *_: tuple, bytes).leaves
    assert leaves == ()
    strict = encode_arguments((Setting(3),), {}, StaticArgs(strict=True), {}).skeleton
    leaves = parse_skeleton(strict, lambda *_: tuple, bytes).leaves
    assert [leaf.tag for leaf in leaves] == ["P"]


def test_what_jax_cannot_take_apart_is_pickled() -> None:
    """The server, where it cannot either, says why."""
    leaves = parse_skeleton(skeleton(State({1: 1.0, "a": 2.0})), lambda *_: tuple, bytes).leaves
    assert [leaf.tag for leaf in leaves] == ["P"]


def test_a_process_without_jax_pickles() -> None:
    """It cannot know what is a leaf."""
    program = (
        "import json, sys\n"
        "from typing import NamedTuple\n"
        "from jaxd.request.arguments import encode_arguments\n"
        "from jaxd_protocol.jit.static_args import NO_STATIC_ARGS\n"
        "class Point(NamedTuple):\n    x: float\n"
        "buffers = encode_arguments((Point(1.0),), {}, NO_STATIC_ARGS, {}).buffers\n"
        "print(json.dumps([len(buffers), 'jax' in sys.modules]))"
    )
    assert in_a_fresh_process(program) == [1, False]


# refusals -----------------------------------------------------------------------------------------


def test_a_function_among_its_leaves_is_refused_by_the_rule_of_jax() -> None:
    """As anywhere else in the arguments; the message says what to do."""
    state = State({"activation": helper})
    with pytest.raises(ArgumentError, match="static_argnames"):
        encode_arguments((state,), {}, StaticArgs(strict=True), {})
    assert skeleton(state) == skeleton(State({"activation": helper}))


def test_a_tracer_among_its_leaves_is_refused() -> None:
    """As anywhere else."""
    with pytest.raises(TracerError):
        jax.jit(lambda x: skeleton(State(x)))(1.0)


def test_a_static_field_that_cannot_travel_is_named() -> None:
    """By its path."""
    with pytest.raises(PackingError, match=r"argument of type State.*\.how is a generator"):
        skeleton(State(1.0, (n for n in range(3))))


# when it is packed anew ---------------------------------------------------------------------------

PLAIN = Plain(3)
ARRAY = np.arange(3.0)
JITTED = jax.jit(apply)

SAME: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "plain values": lambda: (1, 0.5, "a", b"b", None, True, ...),
    "a list": lambda: [1, [2, 3]],
    "a dict": lambda: {"a": 1, "b": (2,)},
    "a function": lambda: apply,
    "a bound method": lambda: PLAIN.apply,
    "functions in a named tuple": lambda: Rule(helper, apply),
    "data of a result": lambda: Setting(3, (helper, Setting("a"))),
    "a class": lambda: Plain,
    "an object": lambda: PLAIN,
    "an array": lambda: ARRAY,
    "a jitted function": lambda: JITTED,
    "a dtype": lambda: jnp.bfloat16,
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same_is_packed_once(name: str, packed: list[Any]) -> None:
    """Other data, and static fields that are made anew with the same content."""
    first = skeleton(State({"a": jnp.ones(3)}, SAME[name]()))
    assert skeleton(State({"a": jnp.zeros(3)}, SAME[name]())) == first
    assert len(packed) == 1


class Edited(NamedTuple):
    """A static field, and what changes in it while nobody looks."""

    how: Any
    edit: Callable[[], Any]


def _list() -> Edited:
    value = [1, 2]
    return Edited(value, lambda: value.append(3))


def _dict() -> Edited:
    value: dict[Any, Any] = {"a": {1: 2}}
    return Edited(value, lambda: value["a"].update({1: True}))


def _set() -> Edited:
    value = {1, 2}
    return Edited(value, lambda: value.add(3))


def _data() -> Edited:
    value = Setting(3, Setting(1))
    return Edited(value, lambda: setattr(value.more, "width", 1.0))


def _object() -> Edited:
    value = Plain([1])
    return Edited(value, lambda: value.width.append(2))


def _slot() -> Edited:
    value = Slotted(1)
    return Edited((value,), lambda: setattr(value, "width", 2))


def _array(size: int) -> Edited:
    value = np.zeros(size)
    return Edited(value, lambda: value.fill(1.0))


def _bound() -> Edited:
    value = Plain(1)
    return Edited(value.apply, lambda: setattr(value, "width", 2))


def _closure() -> Edited:
    by = 1.0

    def edit() -> None:
        nonlocal by
        by = 2.0

    return Edited(lambda x: x * by, edit)


def _global() -> Edited:
    return Edited(apply, lambda: globals().update(SCALE=globals()["SCALE"] + 1))


def _code() -> Edited:
    def inner(x: Any) -> Any:
        return x + 1

    def edit() -> None:
        inner.__code__ = (lambda x: x + 2).__code__

    return Edited(Rule(lambda x: inner(x) * 2, None), edit)


def _default() -> Edited:
    def inner(x: Any, by: float = 1.0) -> Any:
        return x * by

    return Edited(inner, lambda: setattr(inner, "__defaults__", (2.0,)))


def _class() -> Edited:
    class Local:
        factor = 1

    return Edited(Local, lambda: setattr(Local, "factor", 2))


def _hidden() -> Edited:
    value = random.Random(0)
    return Edited(value, value.random)


EDITS: dict[str, Callable[[], Edited]] = {
    "a list": _list,
    "a dict, by the type of a value": _dict,
    "a set": _set,
    "data": _data,
    "an object": _object,
    "a slot": _slot,
    "an array": lambda: _array(3),
    "a large array": lambda: _array(1 << 18),
    "the object of a bound method": _bound,
    "a closure": _closure,
    "a global of a helper": _global,
    "the code of a helper": _code,
    "a default": _default,
    "a class": _class,
    "what only C code sees": _hidden,
}


@pytest.mark.parametrize("name", EDITS)
def test_a_change_in_place_is_noticed(name: str) -> None:
    """Each would make another program."""
    how, edit = EDITS[name]()
    state = State(1.0, how)
    before = skeleton(state)
    assert skeleton(state) == before
    edit()
    after = skeleton(state)
    assert after != before
    assert skeleton(state) == after


def test_a_change_of_the_class_itself_is_noticed() -> None:
    """Its methods may be what the function calls."""
    before = skeleton(State(1.0))
    original = State.doubled
    try:
        State.doubled = lambda self: self.w * 3  # type: ignore[method-assign]
        assert skeleton(State(1.0)) != before
    finally:
        State.doubled = original  # type: ignore[method-assign]
    assert skeleton(State(1.0)) == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ((1, ("a", 2)), (1, ("a", 2.0))),
        ([1], (1,)),
        ({"a": 1}, {"a": True}),
        ({1: "a"}, {True: "a"}),
        (Setting(1), Setting(1.0)),
        (Point(1, 2), (1, 2)),
        (Point(1, 2), Rule(1, 2)),
        (b"a", "a"),
        (None, ()),
    ],
    ids=str,
)
def test_static_values_count_by_type_and_value(one: Any, other: Any) -> None:
    """Also where Python takes them for equal."""
    assert skeleton(State(1.0, one)) != skeleton(State(1.0, other))
    assert skeleton(State(1.0, one)) == skeleton(State(2.0, one))


def test_keys_count_by_type_and_value() -> None:
    """Those of the dicts in it."""
    assert skeleton(State({1: 1.0})) != skeleton(State({True: 1.0}))
    assert skeleton(State({"a": 1.0})) != skeleton(State({"b": 1.0}))


def test_another_of_equal_objects_is_another() -> None:
    """Only the object itself could say that it is the same; the server compares contents."""

    class Equal(Plain):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    assert skeleton(State(1.0, Equal(1))) != skeleton(State(1.0, Equal(2)))


def test_objects_that_are_new_each_time_do_not_pile_up(packed: list[Any]) -> None:
    """They are packed in each call, and forgotten."""
    for n in range(40):
        skeleton(State(1.0, Plain(n)))
    assert len(packed) == 40
    assert sum(map(len, templates._templates.values())) < 20


def test_many_versions_of_what_is_static_are_packed_once_each(packed: list[Any]) -> None:
    """As in a long notebook: old ones give way to new ones."""
    for n in range(40):
        state = State(1.0, Plain(n))
        assert skeleton(state) == skeleton(state)
    assert len(packed) == 40
    assert sum(map(len, templates._templates.values())) < 20


def test_arrays_on_the_server_are_leaves_like_any_others() -> None:
    """They do not move, and the skeleton is that of the arrays."""
    fetcher = FakeFetcher()
    kept = single_array(fetcher, 7, Leaf("A", "float32", (3,)))
    state = State({"a": 1.0, "b": kept})
    encoded = encode_arguments((state, kept), {}, NO_STATIC_ARGS, {}, fetcher)
    assert [(each.row.leaf, each.row.a) for each in encoded.values] == [(1, 7), (2, 7)]
    array = np.ones(3, np.float32)
    assert encoded.skeleton == skeleton(State({"a": 2.0, "b": array}), array)


def test_structures_in_aux_data_count_by_content() -> None:
    """They are made anew each time that a tree is taken apart: an optimizer's states are alike."""
    start, update, _ = optimizers.momentum(0.1, 0.9)
    first = start({"w": jnp.ones(3)})
    found = [
        templates.flatten_object(each) for each in (first, update(0, {"w": jnp.ones(3)}, first))
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0][0] is found[1][0]
    other = templates.flatten_object(start({"v": jnp.ones(3)}))
    assert other is not None
    assert other[0] is not found[0][0]
