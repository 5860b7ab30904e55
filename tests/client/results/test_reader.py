"""From what came home to what the caller gets."""

from __future__ import annotations

import gc
import importlib
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxd import PRNGKeys
from jaxd.results.local_objects import LocalObjects, RemoteObject
from jaxd.results.reader import InlineLeaves, ResultReader, ResultsAs, check_reply
from jaxd_protocol.errors import JaxdError, ProtocolError, ResultError
from jaxd_protocol.fingerprint import content_id
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.data_locations import ResultPolicy
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pytree import TreeEncoder, dump_literal
from jaxd_protocol.pytree.decoder import COUNT
from tests.fake_packages import FakeSite


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Pair:
    a: Any
    b: Any


class Node:
    """A class of the user's own that is no dataclass."""

    weights: Any


class Writer(TreeEncoder):
    """Writes results as a server does, objects included."""

    def other(self, value: Any) -> None:
        if isinstance(value, np.ndarray | np.generic):
            self.array(np.ascontiguousarray(value).reshape(value.shape))
        elif isinstance(value, PRNGKeys):
            self.key(value.impl, value.data)
        elif isinstance(value, Pair | Node):
            self._skeleton += (b"O", self.class_name(type(value)))
            self.node(dict(vars(value)))
        else:
            super().other(value)

    def class_name(self, cls: type) -> bytes:
        return dump_literal((cls.__module__, cls.__qualname__, content_id(cls)))


def sent(value: Any) -> tuple[bytes, bytes, list[memoryview]]:
    """Skeleton, blob and buffers of a result; the blob read-only, the buffers writable."""
    writer = Writer()
    writer.node(value)
    buffers = [memoryview(bytearray(buffer)) for buffer in writer.buffers]
    return writer.skeleton, writer.blob, buffers


MET = {(cls.__module__, cls.__qualname__): cls for cls in (Point, Pair)}


def received(value: Any, results: ResultsAs = "numpy", known_objects: Any = MET) -> Any:
    """The result as a caller gets it."""
    return ResultReader(known_objects).read(*sent(value), results)


@pytest.mark.parametrize("size", [3, 1 << 14])
def test_numpy_results_can_be_written(size: int) -> None:
    """Small ones, which arrive together, do not share memory with each other."""
    first, second = received([np.zeros(size), np.zeros(size)])
    first += 1
    assert second.sum() == 0


@pytest.mark.parametrize("has_another", [False, True], ids=["unknown", "with other fields"])
def test_a_named_tuple_that_is_not_here(monkeypatch: Any, has_another: bool) -> None:
    """Comes home as one with the same name and fields."""
    message = sent(Point(np.float32(1), None))
    known_objects: dict[Any, Any] = {}
    monkeypatch.delattr(sys.modules[__name__], "Point")
    if has_another:

        class Other(NamedTuple):
            z: Any

        Other.__qualname__ = "Point"
        known_objects = {(__name__, "Point"): Other}
    found = ResultReader(known_objects).read(*message, "numpy")
    assert type(found).__name__ == "Point"
    assert found._fields == ("x", "y")
    assert (float(found.x), found.y) == (1.0, None)


def test_two_classes_of_one_name_are_told_apart() -> None:
    """A notebook's class before and after an edit: by what they mean."""

    def make(default: int) -> Any:
        class Config(Node):
            def width(self) -> int:
                return default

        return Config

    old, new = make(1), make(2)
    reader = ResultReader({(old.__module__, old.__qualname__): old})
    reader.learn({(new.__module__, new.__qualname__): new})
    for cls in (old, new):
        node = cls()
        node.weights = np.ones(1)
        assert type(reader.read(*sent(node), "numpy")) is cls


def test_a_class_of_equal_content_comes_from_the_right_module() -> None:
    """Two modules may hold the same text."""

    def make(module: str) -> Any:
        return type("Twin", (Node,), {"__module__": module, "__qualname__": "Twin"})

    twins = [make("one"), make("two")]
    reader = ResultReader({(cls.__module__, "Twin"): cls for cls in twins})
    for cls in twins:
        assert type(reader.read(*sent(cls()), "numpy")) is cls


def test_a_class_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is named, with what to do; nothing is imported to find it."""
    message = sent(Pair(np.float32(1), None))
    monkeypatch.delattr(sys.modules[__name__], "Pair")
    with pytest.raises(ResultError, match=r"Pair.*Import the class and use it in the function"):
        ResultReader({}).read(*message, "numpy")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        (__name__, "Node"),
        (__name__, "Pair"),
    ],
)
def test_a_server_cannot_have_anything_called(module: str, name: str) -> None:
    """Only installed data classes, and classes that this process has itself sent."""
    skeleton = b"O" + dump_literal((module, name)) + b"D\0\0\0\0"
    with pytest.raises(JaxdError):
        ResultReader({}).read(skeleton, b"", [], "numpy")


def instance(module: str, name: str, /, **state: bytes) -> bytes:
    """An object of an installed class with these attributes."""
    pairs = [dump_literal(key) + value for key, value in state.items()]
    return b"O" + dump_literal((module, name)) + b"D" + COUNT.pack(len(pairs)) + b"".join(pairs)


def registered(module: str, name: str, aux: bytes, *children: bytes) -> bytes:
    """A node of an installed class."""
    count = COUNT.pack(len(children))
    return b"".join((b"G", dump_literal((module, name)), aux, count, *children))


def named(kind: str, *detail: Any) -> bytes:
    """Something of this process, by a name that the server chose."""
    return b"R" + dump_literal((kind, detail, b"token", "it"))


def literal(value: Any) -> bytes:
    return b"S" + dump_literal(value)


@pytest.mark.parametrize(
    "skeleton",
    [
        instance("numpy.lib._npyio_impl", "NpzFile", files=literal(("x",))),
        instance("jax._src.compilation_cache", "CompilationCache"),
        instance("logging", "FileHandler", baseFilename=literal("/nowhere")),
        instance("tempfile", "TemporaryDirectory", name=literal("/nowhere")),
        registered("jax.tree_util", "Partial", named("i", "numpy", "savetxt"), b"T\0\0\0\0", b"N"),
        registered("functools", "partial", named("i", "os", "system"), b"T\0\0\0\0", b"N"),
    ],
    ids=["npz file", "jax's cache", "stdlib", "deletes itself", "Partial", "partial"],
)
def test_what_is_no_data_is_not_made(skeleton: bytes) -> None:
    """Whatever the function deals with."""
    for packages in ((), ("numpy", "jax")):
        with pytest.raises(JaxdError):
            ResultReader({}, LocalObjects(packages=packages)).read(skeleton, b"", [], "numpy")


@pytest.mark.parametrize("method", ["__del__", "__reduce__", "__setstate__", "__post_init__"])
def test_a_class_of_a_package_that_runs_code_of_its_own_is_not_made(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Only data is a server's to fill: a base class counts too, a decorator's method does not."""
    toolbox = types.ModuleType("toolbox_installed")
    own: Any = {"__name__": toolbox.__name__}
    exec(f"class Base:\n def {method}(self, *a): pass\n", own)

    @dataclass
    class Plain:
        x: Any

    runs: Any = dataclass(type("Runs", (own["Base"],), {"x": 1, "__module__": toolbox.__name__}))
    plain = type("Made", (), {"__annotations__": {"x": int}})
    made: Any = dataclass(frozen=True, slots=True)(plain)
    for cls in (Plain, runs, made):
        cls.__module__, cls.__qualname__ = toolbox.__name__, cls.__name__
        setattr(toolbox, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, toolbox.__name__, toolbox)
    monkeypatch.setattr("jaxd_protocol.packages.installed.is_local_module", lambda name: False)
    for cls, packages in ((Plain, ()), (runs, (toolbox.__name__,))):
        reader = ResultReader({}, LocalObjects(packages=packages))
        with pytest.raises(ResultError, match="may not make"):
            reader.read(instance(cls.__module__, cls.__name__, x=literal(1)), b"", [], "numpy")
    for cls in (Plain, made):
        reader = ResultReader({}, LocalObjects(packages=[toolbox.__name__]))
        found = reader.read(instance(cls.__module__, cls.__name__, x=literal(1)), b"", [], "numpy")
        assert (type(found), found.x) == (cls, 1)


@pytest.mark.parametrize("requires", [True, False])
def test_a_decorator_may_be_of_a_package_that_the_class_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requires: bool
) -> None:
    """Such as chex' dataclass in a library of which the function alone is seen."""
    site = FakeSite(tmp_path)
    site.install(
        "zz-decorators",
        "1.0",
        {
            "zz_decorators/__init__.py": "import dataclasses\n"
            "def data(cls):\n"
            "    cls.__setstate__ = lambda self, state: self.__dict__.update(state)\n"
            "    return dataclasses.dataclass(cls)\n"
        },
    )
    source = "from zz_decorators import data\n@data\nclass Sample:\n    x: int\n"
    needs = ["zz_Decorators"] if requires else []
    site.install("zz-library", "1.0", {"zz_library/__init__.py": source}, requires=needs)
    monkeypatch.syspath_prepend(site.path)
    cls = importlib.import_module("zz_library").Sample
    reader = ResultReader({}, LocalObjects(packages=["zz_library"]))
    sample = instance("zz_library", "Sample", x=literal(1))
    try:
        if requires:
            found = reader.read(sample, b"", [], "numpy")
            assert (type(found), found.x) == (cls, 1)
        else:
            with pytest.raises(ResultError, match="may not make"):
                reader.read(sample, b"", [], "numpy")
    finally:
        del sys.modules["zz_library"], sys.modules["zz_decorators"]


def test_a_callable_is_none_that_the_server_names() -> None:
    """In a field stands what the function brought, or the default that the class itself has."""

    @dataclass
    class Net:
        act: Any = len
        how: Any = None

    known_objects = {(Net.__module__, Net.__qualname__): Net}
    name = (Net.__module__, Net.__qualname__, content_id(Net))
    default = named("p", Net.__module__, Net.__qualname__, "act")

    def read(act: bytes, how: bytes) -> Any:
        state = dump_literal("act") + act + dump_literal("how") + how
        skeleton = b"O" + dump_literal(name) + b"D" + COUNT.pack(2) + state
        own = LocalObjects(packages=["numpy", "jax"], installed=[np.sin])
        return ResultReader(known_objects, own).read(skeleton, b"", [], "numpy")

    brought = read(default, named("i", "numpy", "sin"))
    assert (brought.act, brought.how) == (len, np.sin)
    refused = read(named("i", "numpy", "save"), default)
    assert type(refused.act) is type(refused.how) is RemoteObject
    assert type(read(named("k", "numpy", "ndarray", b""), literal(1)).act) is RemoteObject


def test_what_a_library_calls_is_held_by_arguments_as_well() -> None:
    """Its own partials, and what lies inside of something that calls."""
    eqx = pytest.importorskip("equinox")
    sin = named("i", "numpy", "sin")
    own = LocalObjects(
        packages=["equinox", "numpy"], installed=[np.sin, eqx.Partial, eqx.nn.Lambda]
    )
    name = eqx.Partial.__module__
    state = {"func": sin, "args": literal(()), "keywords": b"D\0\0\0\0"}
    held = ResultReader({}, own).read(instance(name, "Partial", **state), b"", [], "numpy")
    assert type(held.func) is RemoteObject
    inner = instance(eqx.nn.Lambda.__module__, "Lambda", fn=sin)
    state["func"] = inner
    outer = ResultReader({}, own).read(instance(name, "Partial", **state), b"", [], "numpy")
    assert type(outer.func.fn) is RemoteObject


def test_a_class_of_a_package_is_not_made_by_its_content(tmp_path: Path) -> None:
    """A server can compute the id of a class that an argument holds; it is still installed."""
    import numpy.lib.npyio

    data_source: Any = numpy.lib.npyio.DataSource
    kept = tmp_path / "kept"
    kept.mkdir()
    module, name = data_source.__module__, data_source.__qualname__
    cls = dump_literal((module, name, content_id(data_source)))
    state = dump_literal("_istmpdest") + literal(True)
    state += dump_literal("_destpath") + literal(str(kept))
    reader = ResultReader({(module, name): data_source})
    for skeleton in (
        b"O" + cls + b"D" + COUNT.pack(2) + state,
        instance(module, name, _istmpdest=literal(True), _destpath=literal(str(kept))),
    ):
        with pytest.raises(ResultError):
            reader.read(skeleton, b"", [], "numpy")
    gc.collect()
    assert kept.exists()


@pytest.mark.parametrize(
    "argument",
    [
        lambda: lambda x: x,
        lambda: __import__("optax").adam(1e-3),
        lambda: np.random.default_rng(0),
        Node,
        lambda: np.sin,
        lambda: np,
        lambda: type(None),
        lambda: __import__("jax").jit(len),
    ],
    ids=["lambda", "optax", "generator", "own class", "ufunc", "module", "type", "jit"],
)
def test_what_pickle_calls_to_make_an_argument_again_is_not_brought(argument: Any) -> None:
    """A server could have it unpickle, or import: only what the argument holds is brought."""
    found = pack([argument()], "an argument").installed
    roots = {module.partition(".")[0] for module, _ in found}
    assert roots.isdisjoint({"jaxd", "jaxd_protocol", "pickle", "_pickle", "copyreg"})
    assert not any(name.startswith("_reconstruct") for _, name in found)


def test_keys_that_jax_does_not_have_are_an_error_of_ours() -> None:
    """Whatever the server says of them."""
    spec = dump_literal("no such kind") + b"".join(sent(np.zeros(2, "u4"))[:1])[1:]
    with pytest.raises(ProtocolError):
        ResultReader({}).read(b"K" + spec, bytes(8), [], "jax")


def test_what_calls_what_it_holds_calls_only_what_arguments_held() -> None:
    """A partial, or a dict that makes its values: the function's own callables are not for them."""
    import jax

    partial = registered("jax.tree_util", "Partial", named("i", "numpy", "sin"), literal(()), b"N")
    own = LocalObjects(packages=["numpy", "jax"], installed=[np.sin, jax.tree_util.Partial])
    with pytest.raises(ResultError):
        ResultReader({}, own).read(partial, b"", [], "numpy")
    made = registered(
        "collections", "defaultdict", b"T\0\0\0\2" + named("i", "numpy", "sin") + b"T\0\0\0\0"
    )
    with pytest.raises(ResultError):
        ResultReader({}, own).read(made, b"", [], "numpy")
    known_objects = {("numpy", "sin"): np.sin}
    assert ResultReader(known_objects, own).read(made, b"", [], "numpy").default_factory is np.sin


def test_a_server_cannot_have_anything_unpickled() -> None:
    """Pickles travel towards servers only."""
    import pickle

    data = pickle.dumps(print)
    with pytest.raises(ProtocolError):
        ResultReader({}).read(b"Q" + COUNT.pack(len(data)) + data, b"", [], "numpy")
    with pytest.raises((ProtocolError, ResultError)):
        ResultReader({}).read(b"P" + COUNT.pack(0), b"", [memoryview(data)], "numpy")


def test_data_that_does_not_fit_is_refused() -> None:
    """Before anything reads beyond its end."""
    skeleton, blob, buffers = sent([np.ones(3), np.ones(1 << 14)])
    reader = ResultReader({})
    for wrong in (
        (skeleton[:-1], blob, buffers),
        (skeleton, blob[:-1], buffers),
        (skeleton, blob, [buffers[0][:-1]]),
        (skeleton, blob, []),
        (b"?", b"", []),
    ):
        with pytest.raises(ProtocolError):
            reader.read(*wrong, "numpy")


@pytest.mark.parametrize(
    "away", [(range(2, 3),), (range(1), range(1, 3)), (range(1 << 31, (1 << 31) + 1),)]
)
def test_leaves_that_stay_must_be_there(away: tuple[range, ...]) -> None:
    """Whatever the server says; that each is named once, `unpack_leaf_spans` sees to."""
    skeleton, *_ = sent((np.ones(3), np.ones(3)))
    with pytest.raises(ProtocolError, match="stay"):
        ResultReader(MET).read_part(
            skeleton, InlineLeaves(b"", (), away), ResultPolicy(1, 0, -1), "numpy", lambda *_: []
        )


@pytest.mark.parametrize(
    "reply", [None, 5, (), (OK,), (OK, 5), (OK, ()), (FAILED, b"x"), (FAILED, 5), [OK, b""]]
)
def test_a_reply_that_is_none_is_refused(reply: Any) -> None:
    """Whatever a server says: the caller gets an error of ours."""
    with pytest.raises(ProtocolError, match="reply to a call cannot be read"):
        check_reply(reply)


@pytest.mark.parametrize("reply", [(OK, b"s", b""), (OK, "{}", b"s"), (FAILED, ("m", "n"))])
def test_a_reply_is_what_it_is(reply: Any) -> None:
    """A result, what became of a call to warm up, or an exception."""
    assert check_reply(reply) is reply


@pytest.mark.parametrize(
    "reply", [(OK, b"s"), (OK, b"s", b"", b""), (OK, b"s", 1, b"", b""), (OK, b"s", b"", b"", 7)]
)
def test_a_reply_that_does_not_say_what_came_home_is_refused(reply: Any) -> None:
    """Of a call that has said what is to stay."""
    with pytest.raises(ProtocolError):
        InlineLeaves.of(reply, ())
