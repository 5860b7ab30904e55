from __future__ import annotations

import enum
import gc
import importlib
import os
import pickle
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes  # noqa: F401  as in a process that has jax
import numpy as np
import pytest

from jaxd.results.local_objects import LocalObjects, RemoteObject
from jaxd.results.reader import ResultReader
from jaxd_protocol.errors import JaxdError, ProtocolError, ResultError
from jaxd_protocol.fingerprint import content_id
from jaxd_protocol.pickling.unpack.object_tokens import keep_object
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.references import Reference


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: Any


class Model:
    loud = property(lambda self: sys.exit("a property was read"))
    number = 3

    def apply(self) -> Any:
        return self

    def quiet(self) -> None:
        """A method that the function does not ask for."""

    @classmethod
    def build(cls) -> Any:
        return cls()


def helper() -> Any:
    return MODEL.apply, Model.build, MODEL.loud, MODEL.number, MODEL.missing  # type: ignore[attr-defined]


MODEL = Model()
OBJECTS = (helper, MODEL, Model, Color, Point, 5)
MARK = b"m" * 16
N_MODEL = ("n", (((MARK, 1),),), b"", "")
N_CLASS = ("n", (((MARK, 2),),), b"", "")


@pytest.fixture
def own() -> LocalObjects:
    return LocalObjects("step", MARK, OBJECTS, ("optax",), installed=(np.float32, list, eval))


def get(own: LocalObjects, kind: str, *detail: Any, token: bytes = b"token") -> Any:
    return own.getter(Reference(kind, detail, token, "it"))()


def test_an_object_by_its_number(own: LocalObjects) -> None:
    """In the walk over the function itself, or over another one that shares it."""
    assert get(own, "n", ((b"?", 7), (MARK, 0))) is helper
    other = LocalObjects("other", b"o" * 16, [MODEL, os.system])
    assert get(own, "n", ((b"o" * 16, 0),)) is MODEL
    assert type(get(own, "n", ((b"o" * 16, 1),))) is RemoteObject
    del other
    gc.collect()
    assert type(get(own, "n", ((b"o" * 16, 0),))) is RemoteObject


_CONSTANTS = """
class Tag:
    def __init__(self, *parts):
        self.parts = parts

class Code(Tag):
    def __call__(self):
        pass

class Closing(Tag):
    def __del__(self):
        pass

token, number, code = type("token", (), {})(), 5, type("code", (), {"__call__": id})()
tag, holding, calling, closing = Tag("symmetric", 2), Tag([]), Code("x"), Closing("x")
"""


def test_a_constant_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the function reaches its package: all that it does is to be that one."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "zz_tokens.py").write_text(_CONSTANTS)
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, "zz_tokens", raising=False)
    module = importlib.import_module("zz_tokens")
    reaching = LocalObjects("step", packages=("zz_tokens",))
    for name in ("token", "tag"):
        assert get(reaching, "i", "zz_tokens", name) is getattr(module, name)
        assert type(get(LocalObjects("step"), "i", "zz_tokens", name)) is RemoteObject
    for name in ("number", "code", "holding", "calling", "closing", "missing"):
        assert type(get(reaching, "i", "zz_tokens", name)) is RemoteObject


@pytest.mark.parametrize("places", [((MARK, 6),), ((MARK, -1),), (1,), ((MARK, "0"),), ((MARK,),)])
def test_numbers_that_cannot_be(own: LocalObjects, places: Any) -> None:
    """Are no numbers of this function."""
    with pytest.raises(ProtocolError):
        get(own, "n", places)


def test_a_method_by_its_owner(own: LocalObjects) -> None:
    """Looked up without running anything."""
    assert get(own, "m", N_MODEL, "apply") == MODEL.apply
    assert get(own, "m", N_CLASS, "build") == Model.build
    for name in ("loud", "number", "missing", "__class__", "quiet"):
        assert type(get(own, "m", N_MODEL, name)) is RemoteObject
    with pytest.raises(ProtocolError):
        get(own, "m", ("n", 5), "apply")


def test_classes_and_members(own: LocalObjects) -> None:
    """Of the user's own by content; others by name, where the function's code has that name."""
    content = content_id(Color)
    assert get(own, "k", __name__, "Color", content) is Color
    assert get(own, "k", "elsewhere", "Color", content) is Color
    assert get(own, "e", __name__, "Color", content, "RED") is Color.RED
    assert type(get(own, "e", __name__, "Color", content, "BLUE")) is RemoteObject
    assert type(get(own, "e", __name__, "Model", content_id(Model), "apply")) is RemoteObject
    assert type(get(own, "k", __name__, "Color", b"")) is RemoteObject
    assert type(get(own, "k", __name__, "Color", b"?" * 16)) is RemoteObject
    assert get(own, "k", "numpy", "float32", b"") is np.float32
    assert get(own, "k", "builtins", "list", b"") is list
    assert type(get(own, "k", "numpy", "generic", b"")) is RemoteObject


def test_types_of_numbers_are_data(own: LocalObjects) -> None:
    """Whether the function's code names them or not: what they make is an array."""
    assert get(own, "k", "numpy", "float64", b"") is np.float64
    assert get(own, "i", "numpy", "int8") is np.int8
    for module, name in (("numpy", "load"), ("numpy", "object_"), ("os", "float64")):
        assert type(get(own, "i", module, name)) is RemoteObject


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("os", ""),
        ("builtins", "eval"),
        ("subprocess", "Popen"),
        ("pickle", "loads"),
        ("numpy", "os.system"),
        ("numpy", "sys.modules"),
        ("jaxd.dispatch.caller", "Caller"),
        ("missing", "x"),
        ("numpy", "missing.x"),
        ("numpy", "save"),
        ("numpy", "load"),
        ("functools", "partial"),
        ("builtins", "int"),
    ],
)
def test_what_the_function_does_not_deal_with_is_not_handed_out(
    own: LocalObjects, module: str, name: str
) -> None:
    """A caller may call what it gets, so a server must not choose freely."""
    assert callable(os.system)
    found = [get(own, "i", module, name), get(own, "k", module, name, b"")]
    assert [type(each) for each in found] == [RemoteObject, RemoteObject]


def test_what_nobody_has_and_nobody_keeps(own: LocalObjects) -> None:
    """Is an error that says what it was."""
    with pytest.raises(ResultError, match="holds something that this process does not have: it"):
        get(own, "c", b"content", token=b"")


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("builtins.set", (("l", 1, 2),)),
        ("builtins.mappingproxy", (("d", "log", ("l", 1)),)),
        ("builtins.slice", (("l", 1), None, None)),
    ],
)
def test_a_value_of_data_is_a_new_one_in_each_result(
    own: LocalObjects, kind: str, parts: Any
) -> None:
    """It can be changed, or what is in it."""
    getter = own.getter(Reference("v", (kind, parts), b"", ""))
    assert getter() == getter()
    assert getter() is not getter()


def test_a_structure_has_no_leaf_where_the_server_has_a_node(own: LocalObjects) -> None:
    """The tree would be another one."""
    assert own.structure([1, (2, None)]) == jax.tree.structure([0, (0, None)])
    with pytest.raises(ResultError, match="holds the structure of a tree with something in it"):
        own.structure([1, RemoteObject(b"t" * 16, "it", "step")])


def test_dtypes(own: LocalObjects) -> None:
    """Only those of numbers."""
    assert get(own, "d", "float32") == np.dtype("float32")
    assert get(own, "d", "bfloat16").name == "bfloat16"
    assert type(get(own, "d", "f4,f4")) is RemoteObject


def test_nothing_is_imported_to_look() -> None:
    """Not even a module that is there to be imported."""
    assert "this" not in sys.modules
    own = LocalObjects(packages=("this",))
    assert type(get(own, "i", "this", "s")) is RemoteObject
    assert own.class_of("this", "Zen") is None
    assert "this" not in sys.modules


def test_wild_skeletons_are_errors_of_ours(own: LocalObjects) -> None:
    """Whatever a hostile server writes, and however it was cut and mixed."""
    content, function = content_id(Model), b"f" * 16
    pieces = [
        dump_literal((__name__, "Model", content)),
        dump_literal((__name__, "Point", content_id(Point))),
        dump_literal((__name__, "Model", function)),
        dump_literal(("ast", "Name")) + dump_literal(("id", "ctx")),
        dump_literal(N_MODEL),
        dump_literal(("n", (((MARK, 99),),), b"", "")),
        dump_literal(("m", (N_CLASS, "build"), b"t", "")),
        dump_literal(("c", (function,), b"t", "")),
        dump_literal(("o", (), b"t", "it")),
        dump_literal(("x",)),
        *[tag.encode() for tag in "NTLDMUOSRGJQP"],
        b"\0\0\0\0",
        b"\0\0\0\1",
        b"\0\0\0\2",
    ]
    reader = ResultReader({function: helper}, own)
    choose = random.Random(5)
    read = 0
    for _ in range(20_000):
        skeleton = b"".join(choose.choices(pieces, k=choose.randint(1, 6)))
        try:
            reader.read(skeleton, b"", [], "numpy")
            read += 1
        except JaxdError:
            pass
    assert read > 0


def test_a_class_of_this_function_comes_before_its_twin_in_another(own: LocalObjects) -> None:
    """The server has one class for both; what this function or its arguments brought counts."""

    class Point(NamedTuple):
        x: Any

    content = content_id(Point)
    other = LocalObjects("other", b"o" * 16, (Point,))
    name = (Point.__module__, Point.__qualname__)

    class Twin(NamedTuple):
        x: Any

    Twin.__qualname__ = Point.__qualname__
    Twin.__name__ = "Point"
    assert content_id(Twin) == content
    places = ((b"o" * 16, 0),)
    assert own.class_of(*name, content, places) is None
    own.learn({("elsewhere", "Point"): Twin})
    assert own.class_of(*name, content, places) is Twin
    assert other.class_of(*name, content, places) is Point


ONE = RemoteObject(b"1" * 16, "function f of m", "step")


def test_it_is_equal_to_another_with_its_token() -> None:
    """So tree structures with it can be compared."""
    same = RemoteObject(b"1" * 16, "it", "other")
    other = RemoteObject(b"2" * 16, "it", "other")
    assert same == ONE
    assert hash(ONE) == hash(same)
    assert other != ONE
    assert ONE != b"1" * 16


def test_it_becomes_the_object_where_that_is() -> None:
    """It travels as its token."""
    thing = ["a", "b"]
    assert pickle.loads(pickle.dumps(RemoteObject(keep_object(thing), "list", "f"))) is thing


def test_code_is_looked_for_without_a_word_to_objects() -> None:
    """Their attributes are code of the user's, and may raise."""

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            raise ValueError(name)

    known = LocalObjects(others=(Refusing(), Model, Model().apply))
    known.find_code(b"")
    assert known._code is not None
    found = {code for codes in known._code.values() for code in codes}
    assert {Model.apply.__code__, Model.quiet.__code__} <= found
