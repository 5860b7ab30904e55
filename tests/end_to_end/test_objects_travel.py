"""Objects of other people's making, captured or passed, do what they do under `jax.jit`."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import sys
import threading
import time
import unittest
import weakref
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.example_libraries import optimizers

from jaxd import Client
from jaxd.errors import PackingError
from tests.live_server import LiveServer
from tests.warm_clients import run_light

pytestmark = pytest.mark.counts_builds

Make = Callable[..., Any]
X = np.arange(3.0, dtype=np.float32)


class Pair(NamedTuple):
    left: Any
    right: Any


class Kept(NamedTuple):
    """One that jax takes apart in a way of its own."""

    data: Any
    about: Any
    structure: Any


jax.tree_util.register_pytree_node(
    Kept, lambda it: ((it.data,), it[1:]), lambda aux, children: Kept(children[0], *aux)
)


class Env:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def step(self, x: Any) -> Any:
        return x * self.rate


class Wrapper:
    """As those of environments."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class Logged(Wrapper):
    def step(self, x: Any) -> Any:
        return self._env.step(x) + self.rate


class Answering:
    """Has something for every name."""

    def __init__(self) -> None:
        self.rate = 3.0

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 5.0


class Entries:
    """Raises KeyError for what it does not have."""

    def __init__(self, **entries: Any) -> None:
        self._entries = entries

    def __getattr__(self, name: str) -> Any:
        return self._entries[name]


class Proxy:
    """Passes on everything, its class among it."""

    def __init__(self, env: Any) -> None:
        object.__setattr__(self, "_env", env)

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_env"), name)


class SlottedProxy:
    __slots__ = ("_env", "unset")

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class Tagged(np.ndarray):
    """An array with a unit."""

    unit: float

    def __array_finalize__(self, array: Any) -> None:
        self.unit = getattr(array, "unit", 0.0)


class SlottedArray(np.ndarray):
    __slots__ = ("unit",)


class Celsius(np.float64):
    def kelvin(self) -> float:
        return float(self) + 273.0


class Sampler:
    """As those of numpyro: what pickle cannot write is None in its state."""

    scale: Any
    made: Any = None

    def __init__(self, scale: float) -> None:
        self.scale, self.made = scale, lambda x: x * scale

    def __getstate__(self) -> Any:
        return {"scale": None}

    def __call__(self, x: Any) -> Any:
        return x if self.scale is None or self.made is None else self.made(x) + self.scale


class Restored:
    """Is given all that it holds when it is unpickled, and makes something else of that."""

    def __init__(self, rate: float) -> None:
        self.rate, self.source = rate, {"rate": rate}

    def __setstate__(self, state: Any) -> None:
        self.__init__(state["source"]["rate"])  # type: ignore[misc]


class Numbers(dict[str, float]):
    """Pickles as itself, without its attributes: as those of addict."""

    def __init__(self, **items: float) -> None:
        super().__init__(items)
        vars(self)["missing"] = 7.0

    def __missing__(self, name: str) -> float:
        return vars(self)["missing"]  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> float:
        return self[name]

    def __getstate__(self) -> Any:
        return self

    def __setstate__(self, state: Any) -> None:
        self.update(state)


class Copies(dict[str, Any]):
    """Copies what is set, as those of easydict: an item and the attribute of its name are one."""

    def __init__(self, sizes: list[float]) -> None:
        dict.__setitem__(self, "sizes", sizes)
        vars(self)["sizes"] = sizes

    def __setitem__(self, name: str, value: list[float]) -> None:
        super().__setitem__(name, [*value])


class Numbered:
    """Is made with arguments that nothing keeps."""

    def __new__(cls, first: float, *, second: float) -> Any:
        made = object.__new__(cls)
        vars(made)["total"] = first + second
        return made


def tagged(values: Any, unit: float, cls: Any = Tagged) -> Any:
    array = np.asarray(values, np.float32).view(cls)
    array.unit = unit
    return array


MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
TREE = {"a": Pair(1, 2), "b": [1, (2, None)], "c": Kept(1, "it", jax.tree.structure([1]))}


@jax.custom_jvp
def doubled(x: Any) -> Any:
    return x * 2


@doubled.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return doubled(primals[0]), tangents[0] * 5


def reads_mesh_twice(x: Any) -> Any:
    spec = jax.sharding.PartitionSpec(MESH.axis_names[0])
    return jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(MESH, spec))


def adam(make: Make) -> Any:
    start, update, params_of = optimizers.adam(0.1)

    @make
    def step(i: Any, state: Any) -> Any:
        return update(i, jax.tree.map(lambda p: p * 0.5 + i, params_of(state)), state)

    state = start({"w": X, "b": (X, X)})
    for i in range(3):
        state = step(i, state)
    return params_of(state)


def structures(make: Make) -> Any:
    structure: Any = jax.tree.structure(TREE)
    leaves = [X + i for i in range(structure.num_leaves)]
    one = make(lambda leaves: jax.tree.unflatten(structure, leaves))(leaves)
    two = make(lambda leaves, s: jax.tree.unflatten(s, leaves), static_argnums=1)(leaves, structure)
    assert type(one["a"]) is type(two["a"]) is Pair
    assert type(one["c"]) is type(two["c"]) is Kept
    three = make(lambda kept: Kept(kept.data * 2, kept.about, kept.structure))(
        Kept(X, "it", structure)
    )
    assert three[1:] == ("it", structure)
    return one, two, jax.tree.unflatten(three.structure, [three.data] * len(leaves))


def forwarding(make: Make) -> Any:
    env, answering, entries = Logged(Wrapper(Env(3.0))), Answering(), Entries(rate=0.5, n=3)
    proxy, slotted = Proxy(Env(2.0)), SlottedProxy(Env(4.0))
    return [
        make(lambda x: env.step(x) + env.rate)(X),
        make(lambda e, x: e.step(x), static_argnums=0)(env, X),
        make(functools.partial(Logged.step, env))(X),
        make(env.step)(X),
        make(lambda x: x * answering.rate + answering.other())(X),
        make(lambda x: x * entries.rate + entries.n)(X),
        make(lambda e, x: x * e.rate, static_argnums=0)(entries, X),
        make(lambda x: proxy.step(x) + slotted.step(x))(X),
        make(lambda p, x: p.step(x), static_argnums=0)(proxy, X),
    ]


def partly_read(make: Make) -> Any:
    return [
        make(reads_mesh_twice)(X),
        make(lambda x: (doubled.fun(x), jax.grad(lambda y: doubled(y).sum())(x)))(X),
    ]


def arrays(make: Make) -> Any:
    array, slotted = tagged([1, 2, 3], 5.0), tagged([1, 2, 3], 4.0, SlottedArray)
    grid, one = tagged(np.asfortranarray(np.ones((2, 3))), 2.0), Celsius(3.0)
    one.note = 2.0  # type: ignore[attr-defined]
    objects = np.array([1, "ab"], object).view(Tagged)
    objects.unit = 3.0
    records = np.rec.array([(1.0, 2)], dtype=[("a", "f4"), ("b", "i4")])
    matrix = np.array([[1.0, 2.0], [3.0, 4.0]]).view(np.matrix)
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False], fill_value=9.0, hard_mask=True)
    return [
        make(lambda x: x * np.asarray(array) * (array * 2).unit)(X),
        make(lambda x: x * slotted.unit + np.asarray(slotted))(X),
        make(lambda x: x * grid.unit + np.asarray(grid)[1])(X),
        make(lambda x: x + one.kelvin() + one.note)(X),  # type: ignore[attr-defined]
        make(lambda x: x * objects.unit + len(objects[1]))(X),
        make(lambda x: x * records.a[0] + records.b[0])(X),
        make(lambda x: x + len(matrix[0]) * np.asarray(matrix.T)[0, 1])(X),
        make(lambda x: x * masked.filled() + masked.hardmask)(X),
        make(lambda a: a * 2)(array),
        make(lambda x, a: x + a["it"])(X, {"it": one}),
    ]


def struct_sequences(make: Make) -> Any:
    now, info = time.struct_time((2020, 1, 2, 3, 4, 5, 6, 7, 0)), sys.version_info
    status = os.stat_result((33188, 2, 3, 1, 0, 0, 100, 1, 2, 3))
    return [
        make(lambda x: x * sys.version_info[0] + (sys.version_info >= (3, 9)))(X),
        make(lambda x: x + sys.flags.optimize + sys.float_info.epsilon + sys.hash_info.width)(X),
        make(lambda x: x + sys.int_info.bits_per_digit + len(sys.thread_info.name))(X),
        make(lambda x: x + sys.implementation.version.major + len(sys.float_info))(X),
        make(lambda x: x + info.major + now.tm_year + sum(now) + status.st_size)(X),
        make(lambda x, v: x + v.major, static_argnums=1)(X, sys.version_info),
    ]


def others(make: Make) -> Any:
    env, numbered, table = Env(2.0), Numbered(1.0, second=2.0), {"a": 1.0, "b": 2.0}
    keys, values, items, memory = table.keys(), table.values(), table.items(), memoryview(b"xyz")
    method, sampler = weakref.WeakMethod(env.step), Sampler(3.0)
    restored, numbers, copies = Restored(2.0), Numbers(rate=0.5), Copies([1.0, 3.0])
    restored.source["rate"] = 3.0
    infos: Any = [jnp.finfo(np.float32), np.iinfo(np.int8)]  # type: ignore[no-untyped-call]
    return [
        make(lambda x: x * numbered.total + [numbered][0].total)(X),
        make(lambda n, x: x * n.total, static_argnums=0)(numbered, X),
        make(lambda x: x + len(keys) + sum(values) + sum(v for _, v in items))(X),
        make(lambda x: x + memory[1])(X),
        make(lambda x: sampler(x) + [sampler][0](x))(X),
        make(lambda x: method()(x) + 1)(X),  # type: ignore[misc]
        make(lambda x: x * restored.rate + [restored][0].rate)(X),
        make(lambda r, x: x * r.rate, static_argnums=0)(restored, X),
        make(lambda x: x * numbers.rate + numbers.other + [numbers][0]["another"])(X),
        make(lambda x: x * ([copies][0]["sizes"] is vars([copies][0])["sizes"]))(X),
        make(lambda x: x + infos[0].eps + infos[1].max)(X),
    ]


class Case(unittest.TestCase):
    """While it runs it holds its session, by way of its outcome."""

    scale = 3.0

    def check(self, x: Any) -> Any:
        """Reads all of it."""
        self.assertEqual(x.shape, (3,))  # noqa: PT009  what a user has
        return x * self.scale

    def runTest(self) -> None:  # noqa: N802  its name
        """Shows what it holds."""
        vars(RUNNING)["outcome"] = vars(self)["_outcome"]


RUNNING = SimpleNamespace()


def in_a_test(make: Make) -> Any:
    result, case = unittest.TestResult(), Case()
    vars(result)["held"] = (each for each in "ab")  # cannot travel
    case.run(result)
    vars(case)["_outcome"] = RUNNING.outcome
    return [make(case.check)(X), make(lambda x: [case][0].check(x) + 1)(X)]


WIDTH: ContextVar[float] = ContextVar("width", default=2.0)
DEPTH: ContextVar[float] = ContextVar("depth")
OWN = threading.local()


def of_the_caller(make: Make) -> Any:
    """What is read in the context and the thread that call, and sent by another thread."""

    def calls() -> Any:
        WIDTH.set(3.0)
        DEPTH.set(4.0)
        OWN.scale = 5.0
        functions = [
            lambda x: x * WIDTH.get(),
            lambda x: x * WIDTH.get(7.25),
            lambda x: x * DEPTH.get(7.25),
            lambda x: x * OWN.scale,
            lambda x: x * getattr(OWN, str("scale")),  # noqa: UP018  not seen as an attribute
        ]
        return [make(each)(X) for each in functions]

    unset = [make(lambda x: x * WIDTH.get())(X), make(lambda x: x * DEPTH.get(7.25))(X)]
    return [*unset, *copy_context().run(calls)]


PROGRAMS = [
    *(adam, structures, forwarding, partly_read, arrays, struct_sequences, others, in_a_test),
    of_the_caller,
]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_objects_do_what_they_do_under_jax(client: Client, program: Callable[[Make], Any]) -> None:
    """And a program that is run again, with objects that are made anew, traces nothing."""
    expected = program(jax.jit)
    found = program(client.persistent_call)
    before = client.statistics().traces
    again = program(client.persistent_call)
    assert client.statistics().traces == before
    for each in (found, again):
        leaves, structure = jax.tree.flatten(each)
        wanted, form = jax.tree.flatten(expected)
        assert str(structure) == str(form)
        for mine, theirs in zip(leaves, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype


def test_attributes_of_an_array_are_as_they_are_now(client: Client) -> None:
    """One that is changed in place makes another program; the same value none."""
    array = tagged([1, 2, 3], 5.0)
    step = client.persistent_call(lambda x: x * array.unit, extra_key="unit")
    assert step(X)[1] == 5.0
    array.unit = 6.0
    assert step(X)[1] == 6.0
    array.unit = 5.0
    before = client.statistics().traces
    assert step(X)[1] == 5.0
    assert client.statistics().traces == before


def test_attributes_behind_a_wrapper_are_as_they_are_now(client: Client) -> None:
    """The wrapped object is part of the key, and what it has of its own."""
    env = Env(3.0)
    wrapper, slotted = Wrapper(env), SlottedProxy(env)
    step = client.persistent_call(lambda x: wrapper.step(x) + slotted.rate, extra_key="env")
    assert step(X)[1] == 6.0
    env.rate = 4.0
    assert step(X)[1] == 8.0
    slotted._env = Env(5.0)
    assert step(X)[1] == 9.0
    vars(wrapper)["_env"] = Env(6.0)
    assert step(X)[1] == 11.0


def test_a_mutable_array_of_jax_is_refused(client: Client) -> None:
    """A call would change a copy of it; the message says what to pass instead."""
    with pytest.raises(PackingError, match=r"changes in place.*Pass the array in it"):
        client.persistent_call(lambda ref: ref[...])(jax.new_ref(jnp.ones(3)))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Marked:
    mark: Any


def test_a_sentinel_of_a_library_stays_the_one_that_it_is(client: Client) -> None:
    """`x is lib.sentinel` holds on the server too, captured, as an argument and as a static one."""
    sentinel = enum._auto_null
    marked, table = Marked(sentinel), {"mark": sentinel}

    def programs(make: Make) -> list[Any]:
        return [
            make(lambda x: x * (2.0 if marked.mark is enum._auto_null else 3.0))(X),
            make(lambda x: x * (2.0 if table["mark"] is enum._auto_null else 3.0))(X),
            make(lambda m, x: x * (2.0 if m.mark is enum._auto_null else 3.0))(marked, X),
            make(
                lambda m, x: x * (2.0 if m is enum._auto_null else 3.0),
                static_argnums=0,
            )(sentinel, X),
        ]

    for mine, theirs in zip(programs(client.persistent_call), programs(jax.jit), strict=True):
        np.testing.assert_array_equal(mine, theirs)


_OWN, _OTHER = object(), object()


def _compared(x: Any, mark: Any = _OWN) -> Any:
    return x * (2.0 if mark is _OWN else 3.0 if mark is _OTHER else 5.0)


@pytest.mark.parametrize("mark", [_OWN, _OTHER], ids=["own", "other"])
def test_a_sentinel_of_a_module_of_the_users_stays_the_one_that_it_is(
    client: Client, mark: Any
) -> None:
    """As an argument, a static one, in one, as a default, and of what is called in turn."""

    def programs(make: Make) -> list[Any]:
        return [
            make(lambda m, x: _compared(x, m.mark))(Marked(mark), X),
            make(lambda m, x: _compared(x, m), static_argnums=0)(mark, X),
            make(lambda m, x: _compared(x, m[0]), static_argnums=0)((mark, _compared), X),
            make(lambda m, x: m[1](x, m[0]), static_argnums=0)((mark, _compared), X),
            make(lambda m, x: m[1](x) + m[1](x, m[0]), static_argnums=0)((mark, _compared), X),
        ]

    for mine, theirs in zip(programs(client.persistent_call), programs(jax.jit), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_sentinel_that_an_argument_held_comes_back_as_the_one_that_it_was(
    client: Client,
) -> None:
    """Also where the function itself does not reach it."""
    step = client.persistent_call(lambda m, x: Kept(x, m.mark, None))
    assert step(Marked(_OTHER), X).about is _OTHER


def test_a_sentinel_is_the_one_that_its_module_has_now(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was replaced, as by a reload, is another one."""
    step = client.persistent_call(_compared, static_argnames="mark")
    np.testing.assert_array_equal(step(X, mark=_OTHER), X * 3)
    new = object()
    monkeypatch.setitem(globals(), "_OTHER", new)
    np.testing.assert_array_equal(step(X, mark=new), X * 3)
    monkeypatch.setitem(globals(), "_OTHER", object())
    with pytest.raises(PackingError, match=r"bare object"):
        step(X, mark=new)


def test_a_sentinel_without_a_name_is_refused_in_an_argument(client: Client) -> None:
    """What the function compares it with would be another object there."""
    own = object()
    step = client.persistent_call(lambda m, x: x * (2.0 if m.mark is own else 3.0))
    with pytest.raises(PackingError, match=r"bare object\(\).*member of an enum"):
        step(Marked(own), X)


def test_a_submodule_is_imported_by_the_server(live: LiveServer) -> None:
    """Where `import a.b` stands at the top and `a.b.name` in the function."""
    run = run_light(
        live,
        "import xml.dom.minidom, concurrent.futures.process\n"
        "from jaxd import persistent_call\n"
        "@persistent_call\n"
        "def f(x):\n"
        "    found = xml.dom.minidom.parseString('<a><b/></a>').documentElement\n"
        "    return x + len(found.childNodes) + len(concurrent.futures.process.__name__)\n"
        "print(float(f(1.0)))",
    )
    assert run.stdout == "28.0\n", run.stderr


LAZY = """
import importlib
MADE = {"one": 1.0}
_SUBMODULES = {"core", "unused"}
def __getattr__(name):
    if name == "helper":
        from .impl import helper
        globals()["helper"] = helper
        return helper
    if name == "RATE":
        from . import impl
        return impl.RATE
    if name in MADE:
        return MADE[name]
    raise AttributeError(name)
"""
LAZY_SUBMODULES = """
import importlib
def __getattr__(name):
    if name in ("core", "unused"):
        return importlib.import_module("." + name, __name__)
    raise AttributeError(name)
"""


def test_names_that_a_package_makes_when_they_are_read_are_made(
    live: LiveServer, tmp_path: Path
) -> None:
    """Its submodules and what it imports from them, on the server: nothing is imported here."""
    for name, text in {
        "names/__init__.py": LAZY,
        "names/impl.py": "RATE = 8.0\ndef helper(x): return x + RATE\n",
        "parts/__init__.py": LAZY_SUBMODULES,
        "parts/core.py": "K = 7.0\ndef f(x): return x + K\n",
        "parts/unused.py": "raise RuntimeError('nobody reads it')\n",
        "main.py": (
            "import sys, names, parts\n"
            "from jaxd import persistent_call\n"
            "@persistent_call\n"
            "def f(x):\n"
            "    return names.helper(x) * names.RATE + names.one\n"
            "@persistent_call\n"
            "def g(x): return parts.core.f(x)\n"
            "@persistent_call\n"
            "def h(x):\n"
            "    from names import helper\n"
            "    from parts import core\n"
            "    return helper(x) + core.K\n"
            "print(*[float(each(1.0)) for each in (f, g, h, f)])\n"
            "print({'names.impl', 'parts.core'} & set(sys.modules))\n"
        ),
    }.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    run = run_light(
        live,
        f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); "
        f"runpy.run_path({str(tmp_path / 'main.py')!r}, run_name='__main__')",
    )
    assert run.stdout == "73.0 8.0 16.0 73.0\nset()\n", run.stderr


def test_a_struct_sequence_is_a_dataclass_field(client: Client) -> None:
    """It counts by its content, in whatever it lies."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        version: Any

    step = client.persistent_call(lambda s, x: x + s.version.minor, static_argnums=0)
    assert step(Settings(sys.version_info), X)[0] == sys.version_info.minor
