from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import pytest

from jaxd.aims import find, function_at
from jaxd_protocol.errors import CallbackError, ProtocolError

FACTOR = 2


def maker(held: list[Any]) -> Any:
    """Makes a function inside of a function."""

    def outer() -> Any:
        scale = 10

        def inner(value: float, more: int = 1, *, sign: int = 1) -> float:
            held.append(value)
            return sign * FACTOR * scale * (value + more)

        return inner

    return outer


def says_items_append() -> None:
    """Gives `box.items.append` to be called back, as far as its names tell."""
    Box().items.append(0)


class Box:
    def __init__(self) -> None:
        self.items: list[Any] = []


def test_objects_are_this_process_own() -> None:
    """By number, of what the function reaches or only gives away; and attributes of them."""
    box = Box()
    assert find(("object", 1), [len, box], []) is box
    assert find(("live", 0, ()), [], [box]) is box
    find(("live", 0, ("items", "append")), [says_items_append], [box])(3)
    find(("get", ("object", 0), "extend"), [box.items], [])([4])
    assert box.items == [3, 4]


def test_functions_are_made_of_this_process_own_code() -> None:
    """With its globals, and with the cells that it shares; what else they hold came along."""
    held: list[Any] = []
    outer = maker(held)
    cells = (("cell", ("object", 0), 0), ("value", 5))
    aim = ("made", ("object", 0), (0,), cells, ("items", "tuple", (("value", 1),)), None)
    made = find(aim, [outer], [])
    assert any(made.__code__ is each for each in outer.__code__.co_consts)
    assert made.__code__.co_freevars == ("held", "scale")
    made.__kwdefaults__ = {"sign": -1}
    assert made(2) == -1 * FACTOR * 5 * 3
    assert held == [2]


def test_partials_and_containers() -> None:
    """Are made of what they are made of there."""
    aim = ("partial", ("object", 0), (("value", 1),), {"b": ("items", "list", (("value", 2),))})
    found = find(aim, [lambda *args, **named: (args, named)], [])
    assert found(0) == ((1, 0), {"b": [2]})
    pairs = ("items", "dict", (("items", "tuple", (("value", "k"), ("value", 1))),))
    assert find(pairs, [], []) == {"k": 1}
    array = find(("array", np.ones(2)), [], [])
    assert type(array) is np.ndarray


@pytest.mark.parametrize(
    "aim",
    [
        ("object", 7),
        ("object", -1),
        ("live", 9, ()),
        ("odd", 1),
        (),
        ("get", ("object", 0), "__class__"),
        ("get", ("object", 1), "system"),
        ("get", ("object", 1), "path"),
        ("get", ("object", 2), "items"),
        ("get", ("get", ("object", 2), "items"), "append"),
        ("live", 0, ("system",)),
        ("live", 0, ("path", "os", "system")),
        ("live", 1, ("__class__",)),
        ("value",),
        ("cell", ("object", 0), 0),
        ("made", ("object", 1), (), (), None, None),
        [["object", 0]],
        None,
        7,
        ("made", ("object", 0), (9,), (), None, None),
        ("items", "set", ()),
    ],
)
def test_a_server_cannot_aim_at_anything_else(aim: Any) -> None:
    """It names what the function reaches, and nothing that lies behind."""
    with pytest.raises(ProtocolError, match="does not have"):
        find(aim, [maker([]), os, Box(), says_items_append], [os, Box()])


def says_hello(name: str) -> str:
    """A function of the user's own."""
    return f"hello {name}"


JITTED = jax.jit(lambda x: x + 1)
APPEND = list[Any]().append
OBJECTS: list[Any] = [says_hello, os.system, np.load, jax.jit, eval, JITTED, APPEND, Box, open]


@pytest.mark.parametrize("wrap", [lambda aim: aim, lambda aim: ("partial", aim, (), {})])
@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_what_python_offers_is_not_called_for_a_server(number: int, wrap: Any) -> None:
    """Though the function reaches it: an honest server would have called it itself."""
    for aim in (("object", number), ("value", OBJECTS[number])):
        if OBJECTS[number] in (says_hello, JITTED, APPEND, Box):
            assert callable(function_at(wrap(aim), OBJECTS, []))
        else:
            with pytest.raises(ProtocolError, match="no server may"):
                function_at(wrap(aim), OBJECTS, [])


def test_what_is_given_to_be_called_back_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Be it Python's own: it is the user who said so."""
    function_at(("live", 0, ()), [], [print])("called")
    assert capsys.readouterr().out == "called\n"


@pytest.mark.parametrize("aim", [("items", "list", ()), ("array", 1), ("partial", ("items",))])
def test_what_is_no_function_is_not_called(aim: Any) -> None:
    """Nor what holds one."""
    with pytest.raises(ProtocolError):
        function_at(aim, OBJECTS, [])


def test_what_is_gone_is_said() -> None:
    """An object of the user's may change while a program runs."""
    with pytest.raises(CallbackError, match="no attribute 'gone'"):
        find(("get", ("object", 0), "gone"), [Box()], [])
