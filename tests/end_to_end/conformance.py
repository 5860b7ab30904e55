"""What `persistent_call` has to have in common with `jax.jit`: functions, arguments, options.

Each case is our own. What runs is built anew on either side by `build(make)`, where `make` is
`jax.jit` or `persistent_call`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

Make = Callable[..., Any]


class Case(NamedTuple):
    """One call.

    Attributes:
        name: what it is about.
        function: what is called.
        args, kwargs: with what; `args` may make it.
        options: how it is jitted.
        x64: whether with 64 bits.
    """

    name: str
    function: Any
    args: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012  never written to
    options: dict[str, Any] = {}  # noqa: RUF012
    x64: bool = False


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Size(enum.IntEnum):
    TWO = 2


class Metres(float):
    """A number of a class of its own."""


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Setting:
    width: int = 3


@dataclasses.dataclass
class Loose:
    """Cannot be hashed."""

    width: int = 3


class Scale:
    """Has a method that is called with it as a static argument."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        return x * self.by

    def apply(self, x: Any) -> Any:
        return x * self.by


@jax.tree_util.register_pytree_node_class
class Affine:
    """A node with data and with something static."""

    def __init__(self, w: Any, name: str) -> None:
        self.w, self.name = w, name

    def __call__(self, x: Any) -> Any:
        return self.w * x

    def tree_flatten(self) -> Any:
        return (self.w,), self.name

    @classmethod
    def tree_unflatten(cls, name: str, leaves: Any) -> Any:
        return cls(*leaves, name)  # type: ignore[call-arg]


class Convertible:
    def __jax_array__(self) -> Any:
        return jnp.ones(3)


def same(x: Any) -> Any:
    return x


def twice(x: Any) -> Any:
    return x * 2


def add(x: Any, y: Any) -> Any:
    return x + y


def power(x: Any, n: Any, mode: Any = "power") -> Any:
    return x**n if mode == "power" else x * n


def closed(a: Any, b: Any, /, c: Any) -> Any:
    return a * b + c


def raising(error: BaseException) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        raise error

    return function


def generator(x: Any) -> Any:
    yield x


X = np.arange(4, dtype=np.float32)
MESH = jax.make_mesh((1,), ("i",))
SPREAD = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("i"))

_SCALARS = {
    "int": 3,
    "negative": -7,
    "largest": 2**31 - 1,
    "float": 1.5,
    "minus zero": -0.0,
    "beyond float32": 1e300,
    "nan": float("nan"),
    "bool": True,
    "complex": 1 - 2j,
    "enum": Size.TWO,
    "float of its own": Metres(2.5),
    "numpy scalar": np.float16(1.5),
}

_TOO_LARGE = {"for 32 bits": 2**31, "for 64 bits": 2**63}

_DTYPES = ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float64", "complex128"]

_NO_DTYPES = ["S3", "U3", "datetime64[s]", "float128"]

_SMALL = [
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e3m4"),
    *("float8_e8m0fnu", "float4_e2m1fn", "int2", "int4", "uint4"),
]

_TREES: dict[str, Any] = {
    "None": None,
    "empty": ((), [], {}, None),
    "0-d": np.array(2.0),
    "nested": {"b": [1.0, (2, None)], "a": Pair(np.ones(2), [True])},
    "ordered": OrderedDict(z=1.0, a=2),
    "defaults": defaultdict(list, b=1.0, a=2),
    "keys that are numbers": {2: 1.0, 1: 2.0},
    "keys that are tuples": {("a", 1): 1.0, ("a", 0): 2.0},
    "keys that are members": {Colour.RED: 1.0},
    "node": Affine(np.ones(3), "name"),
    "partial": jax.tree_util.Partial(add, 1.0),
}

_UNTRACEABLE: dict[str, Any] = {
    "text": "text",
    "bytes": b"bytes",
    "deep text": {"x": 1.0, "mode": ["relu"]},
    "member": Colour.RED,
    "setting": Setting(),
    "function": twice,
    "class": Scale,
    "set": {1, 2},
    "range": range(3),
    "dtype": np.dtype("float32"),
    "scalar type": jnp.float32,
    "module": np,
    "masked": np.ma.array([1.0, 2.0], mask=[True, False]),
    "convertible": Convertible(),
    "spec": jax.ShapeDtypeStruct((3,), np.float32),
    "numpy text": np.str_("a"),
    "generator": (i for i in range(2)),
}


def keys() -> tuple[Any, ...]:
    """Of every kind; jax compiles programs to make them."""
    return (
        {
            "raw": jax.random.PRNGKey(0),
            "typed": jax.random.key(1),
            "rbg": jax.random.key(2, impl="rbg"),
            "several": jax.random.split(jax.random.key(3), (2, 2)),
            "none": jax.random.split(jax.random.key(4), 0),
        },
    )


_STATIC: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "by name": ((2.0, 3, "times"), {}, {"static_argnames": "mode"}),
    "by position": ((2.0, 3, "times"), {}, {"static_argnums": (1, 2)}),
    "by position, given by name": ((2.0,), {"n": 3, "mode": "times"}, {"static_argnums": (1, 2)}),
    "by position from the end": ((2.0, 3, "times"), {}, {"static_argnums": -1}),
    "the end of a shorter call": ((2.0, 3), {}, {"static_argnums": -1}),
    "before the first": ((2.0, 3), {}, {"static_argnums": -3}),
    "from the end, given by name": ((2.0, 3), {"mode": "times"}, {"static_argnums": -1}),
    "both, of which one is missed": ((2.0, 3), {"mode": "x"}, {"static_argnums": 2}),
    "a list of names": ((2.0, 3, "times"), {}, {"static_argnames": ["n", "mode"]}),
    "a number of numpy's": ((2.0, 3), {}, {"static_argnums": np.int64(1)}),
    "none at all": ((2.0, 3), {}, {"static_argnums": ()}),
    "not given": ((2.0, 3), {}, {"static_argnames": "mode"}),
    "no such position": ((2.0, 3), {}, {"static_argnums": 5}),
    "no such name": ((2.0, 3), {}, {"static_argnames": "other"}),
    "a position that is text": ((2.0, 3), {}, {"static_argnums": "n"}),
    "a position that is a fraction": ((2.0, 3), {}, {"static_argnums": 1.5}),
    "a name that is a number": ((2.0, 3), {}, {"static_argnames": 1}),
    "a list": ((2.0, [3]), {}, {"static_argnums": 1}),
    "an array": ((2.0, np.ones(3)), {}, {"static_argnums": 1}),
    "what cannot be hashed": ((2.0, 3, Loose()), {}, {"static_argnums": 2}),
    "also donated": ((2.0, 3), {}, {"static_argnums": 1, "donate_argnums": 1}),
    "undeclared": ((2.0, 3, "times"), {}, {}),
}


def of_static_values(
    x: Any,
    setting: Any,
    member: Any,
    function: Any,
    kinds: Any,
    shape: Any,
    nothing: Any,
    part: Any,
) -> Any:
    dtype, scalar, cls = kinds
    x = cls(2.0)(function(x * setting.width * member.value)).reshape(shape)[part]
    return (x if nothing is None else -x).astype(dtype), x.astype(scalar)


_STATIC_VALUES = (
    *(Setting(4), Colour.BLUE, Scale(3.0), (np.dtype("int8"), jnp.int32, Scale)),
    *((2, 2), None, slice(0, 2)),
)

_OPTIONS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "donated": (add, (X, X), {"donate_argnums": 0}),
    "donated by name": (add, (X, X), {"donate_argnames": "y"}),
    "donated from the end": (add, (X, X), {"donate_argnums": -1}),
    "donated, no such position": (add, (X, X), {"donate_argnums": 4}),
    "donated, no such name": (add, (X, X), {"donate_argnames": "z"}),
    "unused": (lambda x, y: x, (X, X), {}),
    "unused and kept": (lambda x, y: x, (X, X), {"keep_unused": True}),
    "inline": (twice, (X,), {"inline": True}),
    "compiler": (twice, (X,), {"compiler_options": {"xla_embed_ir_in_executable": True}}),
    "compiler, no such option": (twice, (X,), {"compiler_options": {"xla_no_such": True}}),
    "compiler, no such value": (
        twice,
        (X,),
        {"compiler_options": {"xla_embed_ir_in_executable": "perhaps"}},
    ),
    "sharded": (twice, (X,), {"in_shardings": (SPREAD,), "out_shardings": SPREAD}),
    "shardings that are None": (add, (X, 1.0), {"in_shardings": None, "out_shardings": None}),
    "sharding of another rank": (twice, (1.0,), {"in_shardings": (SPREAD,)}),
    "shardings of too many": (twice, (X,), {"in_shardings": (SPREAD, SPREAD)}),
    "shardings that are none": (twice, (X,), {"in_shardings": "i"}),
    "partition without mesh": (twice, (X,), {"in_shardings": jax.sharding.PartitionSpec("i")}),
    "no such option": (twice, (X,), {"no_such": True}),
}

_CALLABLES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "method": (Scale(3.0).apply, (2.0,), {}),
    "function of a class": (Scale.apply, (Scale(3.0), 2.0), {"static_argnums": 0}),
    "object": (Scale(3.0), (2.0,), {}),
    "class": (Pair, (1.0, 2), {}),
    "builtin": (max, (1, 2), {}),
    "function of jax": (jnp.sin, (X,), {}),
    "jitted": (jax.jit(twice), (X,), {}),
    "gradient": (jax.grad(lambda x: x**2), (3.0,), {}),
    "partial": (functools.partial(power, n=3), (2.0,), {"static_argnames": "mode"}),
    "partial by position": (functools.partial(power, 2.0), (3,), {"static_argnums": 0}),
    "partial with too few left": (functools.partial(power, n=3), (2.0,), {"static_argnums": 2}),
    "partial of jax": (jax.tree_util.Partial(power, 2.0), (3,), {}),
    "partial as argument": (
        lambda f, x: f(x),
        (jax.tree_util.Partial(jnp.add, 2.0), 3),
        {},
    ),
    "positional only": (closed, (1.0, 2, 3.0), {"static_argnums": 1}),
    "positional only, by name": (closed, (1.0, 2, 3.0), {"static_argnames": "b"}),
    "any number": (lambda *a: a[0] * a[1], (2.0, 3), {"static_argnums": 1}),
    "any number, from the end": (lambda *a: a[0] * a[1], (2.0, 3), {"static_argnums": -1}),
    "too few arguments": (power, (2.0,), {}),
    "too many arguments": (twice, (1.0, 2.0), {}),
    "a number": (3, (1.0,), {}),
    "a generator": (generator, (1.0,), {}),
    "a staticmethod": (staticmethod(twice), (1.0,), {}),
}

TURNED = np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2)
WORDS = np.arange(300, 304, dtype=np.int16).data


class Layers:
    first = 2.0
    second = 3.0
    a_third = 5.0


def in_order(x: Any) -> Any:
    for each in vars(Layers).values():
        if isinstance(each, float):
            x = x * each + 1
    return x


_BODIES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "elements in the order of their memory": (lambda x: x * TURNED.ravel("K"), (2.0,)),
    "items of a memoryview": (lambda x: x * WORDS[1], (2.0,)),
    "attributes in their order": (in_order, (2.0,)),
    "weak results": (lambda: (1, 1.0, True, 1j, np.float64(1), np.arange(3)), ()),
    "weak and strong": (lambda x, y: (x + y, x + 1, x * 1.0), (np.int8(1), 2)),
    "no result": (lambda x: None, (X,)),
    "zero sizes": (lambda x: (x * 2, x.sum()), (np.ones((0, 3)),)),
    "truth of a tracer": (lambda x: x if x > 0 else -x, (1.0,)),
    "number from a tracer": (float, (1.0,)),
    "array from a tracer": (np.asarray, (X,)),
    "length from a tracer": (jnp.zeros, (3,)),
    "shape that depends on data": (lambda x: x[x > 0], (X,)),
    "shapes that do not fit": (lambda x: x @ np.ones((3, 3)), (X,)),
    "assignment": (lambda x: x.__setitem__(0, 1), (X,)),
    "no such key": (lambda d: d["z"], ({"a": 1.0},)),
    "division by zero": (lambda x: 1 // 0, (X,)),
    "loop that changes its type": (
        lambda x: jax.lax.while_loop(lambda c: c < 9, lambda c: c + 1.5, x),
        (1,),
    ),
    "gradient of a whole number": (jax.grad(twice), (1,)),
    "result that is text": (lambda x: "text", (X,)),
    "result that is an object": (lambda x: Scale(1.0), (X,)),
    "result that is too large": (lambda: 2**70, ()),
    "error": (raising(AssertionError("no")), (X,)),
    "error with arguments": (raising(KeyError("a", 1)), (X,)),
    "end of an iteration": (raising(StopIteration()), (X,)),
}


def _array(dtype: Any) -> Any:
    return np.array([1, 0, 1]).astype(dtype)


def doubled(tree: Any) -> Any:
    return jax.tree.map(twice, tree)


def _cases() -> list[Case]:
    arrays = {dtype: _array(dtype) for dtype in _DTYPES}
    small = {name: _array(getattr(ml_dtypes, name)) for name in _SMALL}
    large = _TOO_LARGE.items()
    return [
        Case("scalars", doubled, (_SCALARS,)),
        Case("scalars, x64", doubled, (_SCALARS,), x64=True),
        *(Case(f"too large {name}", twice, (x,)) for name, x in large),
        *(Case(f"too large {name}, x64", twice, (x,), x64=True) for name, x in large),
        Case("arrays", same, (arrays,)),
        Case("arrays, x64", same, (arrays,), x64=True),
        Case("small arrays", same, (small,)),
        *(Case(f"array {dtype}", same, (_array(dtype),)) for dtype in _NO_DTYPES),
        Case("trees", same, (_TREES,)),
        Case("keys of two kinds", same, ({"a": 1, 2: 2},)),
        *(Case(f"argument {name}", same, (x,)) for name, x in _UNTRACEABLE.items()),
        Case("keys", lambda k: (k, jax.random.bits(k["typed"], (3,))), keys),
        *(Case(f"static {name}", power, *given) for name, given in _STATIC.items()),
        Case(
            "static values",
            of_static_values,
            (X, *_STATIC_VALUES),
            {},
            {"static_argnums": tuple(range(1, 8))},
        ),
        *(Case(f"option {name}", f, args, {}, o) for name, (f, args, o) in _OPTIONS.items()),
        *(Case(f"callable {name}", f, args, {}, o) for name, (f, args, o) in _CALLABLES.items()),
        Case("shardings and names", same, (), {"x": X}, {"in_shardings": (SPREAD,)}),
        *(Case(name, function, args) for name, (function, args) in _BODIES.items()),
    ]


CASES = _cases()


# functions under `make` that call others under `make` --------------------------------------------


def _quotient(make: Make) -> Any:
    inner = make(lambda a, b: a / b)
    return make(lambda x: inner(1, 0) + x)


def _overflow(make: Make) -> Any:
    inner = make(lambda a: a * a)
    return make(lambda x: inner(1 << 20) + x)


def _static(make: Make) -> Any:
    inner = make(lambda x, n: x**n, static_argnames="n")
    return make(lambda x: inner(x, n=3) + x)


def _static_tracer(make: Make) -> Any:
    inner = make(lambda x, n: x**n, static_argnames="n")
    return make(lambda x: inner(x, x))


def _recursion(make: Make) -> Any:
    @functools.partial(make, static_argnames="n")
    def power(x: Any, n: int) -> Any:
        return x if n == 0 else x * power(x, n - 1)

    return lambda x: power(x, 4)


def _number_from_inside(make: Make) -> Any:
    inner = make(lambda x: 3)
    return make(lambda x: np.zeros(inner(x)))


def _truth_from_inside(make: Make) -> Any:
    inner = make(lambda x: True)
    return make(lambda x: x if inner(x) else -x)


def _text_inside(make: Make) -> Any:
    inner = make(lambda x, mode: x)
    return make(lambda x: inner(x, "text"))


def _methods(make: Make) -> Any:
    class Model:
        by = 2.0

        @functools.partial(make, static_argnums=0)
        def inner(self, x: Any) -> Any:
            return x * self.by

        @functools.partial(make, static_argnums=0)
        def outer(self, x: Any) -> Any:
            return self.inner(x) + 1

    return Model().outer


def _as_argument(make: Make) -> Any:
    outer = make(lambda f, x: f(x), static_argnums=0)
    return functools.partial(outer, make(twice))


def _transformed(make: Make) -> Any:
    inner = make(lambda x: x**2)
    return make(lambda x: (jax.grad(inner)(x), jax.vmap(inner)(x[None]), jax.jit(inner)(x)))


def _weak(make: Make) -> Any:
    inner = make(lambda x: x + 1)
    return make(lambda x: {"b": inner(2), "a": (inner(x), inner(True), inner(np.float16(1)))})


NESTED: dict[str, Callable[[Make], Any]] = {
    "quotient": _quotient,
    "overflow": _overflow,
    "static": _static,
    "static tracer": _static_tracer,
    "recursion": _recursion,
    "number from inside": _number_from_inside,
    "truth from inside": _truth_from_inside,
    "text inside": _text_inside,
    "methods": _methods,
    "as argument": _as_argument,
    "transformed": _transformed,
    "weak": _weak,
}
