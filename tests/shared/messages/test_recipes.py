"""Recipes of programs, on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from jaxd.request.arguments import encode_arguments
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.messages.recipes import Recipe, RecordedCall, dump_recipes, load_recipes
from jaxd_protocol.pickling.unpack.unpickler import unpack
from jaxd_protocol.pytree import parse_skeleton
from tests.ids import row

LARGE = np.arange(3000.0)


@dataclass
class Pair:
    a: Any
    b: Any


STRICT = StaticArgs(strict=True)


def recorded(*args: Any, statics: StaticArgs = STRICT) -> RecordedCall:
    """That of a call with these arguments."""
    encoded = encode_arguments(args, {}, statics, {})
    skeleton, buffers = encoded.skeleton, encoded.buffers
    layout = parse_skeleton(skeleton, lambda *_: tuple, lambda _: None)
    return RecordedCall.of(skeleton, layout.whole, buffers)


def recipe(name: str, *calls: RecordedCall) -> Recipe:
    """One of a function that there is not."""
    return Recipe(
        name, name.encode() * 16, b"options", (b"meaning", ("x", 1)), b"code", calls, ("x",)
    )


def test_arrays_are_not_recorded() -> None:
    """Their shapes stand in the skeleton."""
    assert recorded(LARGE, 1.0, [LARGE])[1:] == ((), ())
    assert recorded(LARGE).buffers() == []


def test_of_a_pickled_object_only_the_pickle_is_kept() -> None:
    """Its arrays come back as zeros of the same size."""
    call = recorded(LARGE, Pair(LARGE, 2), LARGE, Pair(1, [LARGE, LARGE + 1]))
    assert [len(pickle) for pickle in call.pickles] == [call.sizes[0], call.sizes[2]]
    assert call.sizes[1:2] + call.sizes[3:] == (LARGE.nbytes,) * 3
    first, beside, second, *others = call.buffers()
    pair = unpack(first, [beside])
    assert (pair.a.shape, pair.a.any(), pair.b) == (LARGE.shape, False, 2)
    assert [array.shape for array in unpack(second, others).b] == [LARGE.shape] * 2


def test_a_call_that_warmed_is_recorded_as_one_that_ran() -> None:
    """It brings only the buffers that are recorded."""
    call = recorded(LARGE, Pair(LARGE, 2), LARGE, Pair(1, [LARGE]))
    layout = parse_skeleton(call.skeleton, lambda *_: tuple, lambda _: None)
    assert RecordedCall.of_specification(call.skeleton, layout.leaves, call.buffers()) == call


def test_recipes_survive_the_wire() -> None:
    """Each with its own data."""
    recipes = [
        recipe("a", recorded(1.0), recorded(Pair(LARGE, 1)), recorded(Pair(1, 2), Pair(3, 4))),
        recipe("b"),
        recipe("c", recorded(Pair(5, LARGE))),
    ]
    messages, buffers = dump_recipes(recipes)
    assert load_recipes(messages, buffers) == recipes
    assert load_recipes((), ()) == []


def test_static_objects_stay_closed() -> None:
    """They stand in the skeleton, and nothing that reads a recipe unpickles."""
    call = recorded(Pair(1, 2), Bomb(), statics=StaticArgs(frozenset({1}), strict=True))
    messages, buffers = dump_recipes([recipe("a", call)])
    assert load_recipes(messages, buffers)[0].calls == (call,)


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


PICKLED = recorded(Pair(LARGE, 1))


def test_data_that_does_not_fit_is_refused() -> None:
    """Before anything is sent."""
    rows: list[RecordedCall] = [
        PICKLED._replace(sizes=()),
        PICKLED._replace(sizes=PICKLED.sizes[:1]),
        PICKLED._replace(sizes=(*PICKLED.sizes, 1)),
        PICKLED._replace(sizes=(PICKLED.sizes[0] + 1, PICKLED.sizes[1])),
        PICKLED._replace(sizes=(PICKLED.sizes[0], -1)),
        PICKLED._replace(pickles=()),
        PICKLED._replace(pickles=PICKLED.pickles * 2),
        RecordedCall(b"P"),
        RecordedCall(b"no skeleton P"),
    ]
    for call in rows:
        with row(call), pytest.raises(ProtocolError):
            call.buffers()


def test_what_is_no_recipe_is_refused() -> None:
    """In our own words."""
    rows: list[tuple[Any, int]] = [
        ((("a", b"k", b"o", (), ()),), 1),
        ((("a", b"k", b"o", (), (), ()),), 0),
        ((("a", b"k", b"o", (), (), ()),), 2),
        ((("a", "k", b"o", (), (), ()),), 1),
        ((("a", b"k", b"o", (), (), (1,)),), 1),
        ((("a", b"k", b"o", (), (1,), ()),), 1),
        ((("a", b"k", b"o", (), (("text", ()),), ()),), 1),
        ((("a", b"k", b"o", (), ((b"N", ("1",)),), ()),), 1),
        ((("a", b"k", b"o", (), ((b"P\0\0\0\0", (4,)),), ()),), 1),
        ((3,), 0),
    ]
    for messages, count in rows:
        with row((messages, count)), pytest.raises(ProtocolError):
            load_recipes(messages, [memoryview(b"data")] * count)
