"""What the arguments of a call look like, for people."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxd.request.arguments import encode_arguments
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.explain.argument_shapes import Argument, argument_shapes, shortened
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.pytree import TreeEncoder, dump_literal
from jaxd_protocol.pytree.decoder import COUNT
from tests.ids import row


class Point(NamedTuple):
    """A named tuple of this file, which no server could import."""

    x: Any
    y: Any


def forms(
    *args: Any, parameters: tuple[str, ...] = (), statics: StaticArgs | None = None, **kwargs: Any
) -> dict[str, Argument]:
    """Those of a call, encoded as the client does."""
    skeleton = encode_arguments(args, kwargs, statics or StaticArgs(), {}).skeleton
    return argument_shapes(skeleton, parameters)


def test_arguments_have_the_names_of_the_parameters() -> None:
    """By position, by name, of any number, and by number where there is no name."""
    found = forms(1, 2, 3, parameters=("x", "*rest"), scale=4)
    assert list(found) == ["x", "rest[0]", "rest[1]", "scale"]
    assert [argument.by_name for argument in found.values()] == [False, False, False, True]
    assert list(forms(1, 2, parameters=("x",))) == ["x", "1"]


def test_each_value_has_its_words() -> None:
    """Shape and dtype of arrays; kind and size of containers."""
    rows: list[tuple[Any, str]] = [
        (np.zeros((128, 8), np.float32), "float32[128,8]"),
        (np.float64(1), "float64[]"),
        (1, "int"),
        (1.0, "float"),
        (True, "bool"),
        (1j, "complex"),
        (None, "None"),
        ("sum", "'sum'"),
        ({1, 2}, "an object of set"),
        ({"a": 1, "b": [1, 2]}, "dict of 2"),
        ((), "tuple of 0"),
    ]
    for value, text in rows:
        with row((value, text)):
            assert str(forms(value)["0"].form) == text


def test_weak_arrays_and_keys_say_so() -> None:
    """Each makes another program."""
    encoder = TreeEncoder()
    encoder._skeleton.append(b"T\0\0\0\x02T\0\0\0\x02")
    encoder.array(np.zeros(3, np.float32), weak=True)
    encoder.key("threefry2x32", np.zeros((4, 2), np.uint32))
    encoder.node({})
    weak, key = argument_shapes(encoder.skeleton).values()
    assert weak.form.text == "float32[3] (weak)"
    assert key.form.text == "threefry2x32 keys, uint32[4,2]"


def test_leaves_have_their_path() -> None:
    """As code would write it."""
    encoder = TreeEncoder()
    encoder.node((({"w": [1, 2.0], "p": Point(0.5, "sum")},), {}))
    form = argument_shapes(encoder.skeleton)["0"].form
    assert [(path, leaf.text) for path, leaf in form.leaves()] == [
        ("['p'].x", "float"),
        ("['p'].y", "'sum'"),
        ("['w'][0]", "int"),
        ("['w'][1]", "float"),
    ]


def test_the_order_of_a_dict_does_not_count() -> None:
    """jax sorts its keys; those of an OrderedDict it does not."""
    assert forms({"a": 1, "b": 1.0}) == forms({"b": 1.0, "a": 1})
    first, second = OrderedDict(a=1, b=1.0), OrderedDict(b=1.0, a=1)
    assert forms(first) != forms(second)


def test_static_values_count_as_a_whole_and_are_shown_in_short() -> None:
    """Two long ones that begin alike are two, and an object's pickle stays closed."""
    statics = StaticArgs(frozenset({0}))
    one, other = "x" * 100 + "1", "x" * 100 + "2"
    first, second = (forms(value, statics=statics)["0"].form for value in (one, other))
    assert first.text == second.text
    assert first != second
    (form,) = (argument.form for argument in forms(frozenset({1}), statics=statics).values())
    assert (form.kind, form.text) == ("static", "an object")
    assert forms((1, 2), statics=statics)["0"].form.text == "(1, 2)"


def test_a_stock_clients_arguments_are_one() -> None:
    """They travel as two pickles."""
    skeleton = b"T\0\0\0\x02" + b"P\0\0\0\0" * 2
    assert argument_shapes(skeleton)["arguments"].form.text == "pickled objects"


@pytest.mark.parametrize("skeleton", [b"", b"N", b"T\0\0\0\x02N", b"?", b"T\0\0\0\x02NN", b"L" * 9])
def test_what_is_no_skeleton_is_refused(skeleton: bytes) -> None:
    """With the error that the peer's mistakes have."""
    with pytest.raises(ProtocolError):
        argument_shapes(skeleton)


def test_shortened_is_one_line() -> None:
    """Cut off where it gets long."""
    assert shortened("a\n  b") == "a b"
    assert shortened("x" * 100) == "x" * 60 + "…"


def template(outline: Any, content: bytes, *leaves: bytes) -> bytes:
    """The skeleton of a call with one object, as a client with jax writes it."""
    node = b"V" + dump_literal((outline, content)) + COUNT.pack(4) + b"code"
    head = b"T" + COUNT.pack(2) + b"T" + COUNT.pack(1)
    return head + node + COUNT.pack(len(leaves)) + b"".join(leaves) + b"D" + COUNT.pack(0)


def test_an_object_that_jax_takes_apart_has_the_paths_of_its_leaves() -> None:
    """What is packed of it stays closed."""
    outline = ("State", ((".step", None), (".params", ("dict", (("['w']", None),), ()))), ("a", 1))
    form = argument_shapes(template(outline, b"content", b"I", b"F"))["0"].form
    assert (str(form), form.text, form.identity) == ("State of 2", "('a', 1)", b"content")
    assert [(path, str(leaf)) for path, leaf in form.leaves()] == [
        (".step", "int"),
        (".params['w']", "float"),
    ]


def test_an_object_with_fewer_leaves_than_it_says_is_refused() -> None:
    """As anything else that cannot be read."""
    with pytest.raises(ProtocolError):
        argument_shapes(template(("State", ((".a", None), (".b", None)), ()), b"", b"I"))
