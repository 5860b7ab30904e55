"""Calls all of `CASES` in a worker's inside that keeps on disk, in a process of its own.

    python -m tests.server.restarted FOLDER TURN

Prints, as JSON, what each call cost and what came out of it. Run twice on one folder, it shows what
a restart costs: nothing of the first process is left but the folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxd_protocol.jax_objects.arrays import weak_array
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.transforms import encode_transformation
from jaxd_protocol.messages.calls import OK
from tests.server.costs import COUNTERS, counts
from tests.server.in_process import PipelineHarness, Source

X = np.linspace(0, 1, 4, dtype=np.float32)


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: Any
    b: Any


@flax.struct.dataclass
class State:
    step: Any
    params: Any
    name: str = flax.struct.field(pytree_node=False, default="s")  # type: ignore[no-untyped-call]


class Linear(equinox.Module):
    weight: Any
    kind: str = equinox.field(static=True, default="plain")

    def __call__(self, x: Any) -> Any:
        return self.weight @ x


@dataclass(frozen=True)
class Setting:
    width: int
    act: str


class Odd:
    """Hashable, and can be sent; once it has arrived, nothing tells what is in it."""

    has_arrived = False

    def __reduce__(self) -> Any:
        if self.has_arrived:
            raise TypeError("it is open")
        return _open, ()


def _open() -> Odd:
    odd = Odd()
    odd.has_arrived = True
    return odd


class Case(NamedTuple):
    """A call.

    Attributes:
        function: what is called.
        args: makes the positional arguments, for the first process (0) or the second (1).
        kwargs: keyword arguments.
        options: how it is compiled.
    """

    function: Callable[..., Any]
    args: Callable[[int], tuple[Any, ...]] = lambda turn: (X,)
    kwargs: dict[str, Any] = {}  # noqa: RUF012  never changed
    options: Options = Options()


def trees(turn: int) -> tuple[Any, ...]:
    """One of each kind; a dict in another order in the second process."""
    names = ["b", "a", "d", "c"] if turn else ["a", "b", "c", "d"]
    return (
        {name: X * ord(name) for name in names},
        {10: X, 9: X * 2},
        OrderedDict(b=X, a=X + 1),
        ({"a": [X, X], "n": None}, 1.0),
        Point(X, 2.0),
        Layer(X, 2.0),
        State(3, {"w": X}),
        Linear(np.eye(4, dtype=np.float32)),
        ({"name": "four"}, {1.5: X}),
    )


def trees_in(*given: Any) -> Any:
    d, ints, ordered, nested, p, layer, s, m, (texts, floats) = given
    total = d["a"] - d["b"] * d["c"] / d["d"] + ints[10] - ints[9] + ordered["b"] - ordered["a"]
    total += nested[0]["a"][1] + nested[1] + p.x * p.y + layer.w * layer.b
    return total + s.params["w"] * s.step + m(X) + floats[1.5] * len(texts["name"])


def trees_out(x: Any, s: Any, m: Any) -> Any:
    return [
        (x, x, x + 1),
        None,
        {"a": (), "b": [None, {}]},
        x[:0],
        x.astype(jnp.bfloat16) + 1,
        Point(x, Point(x + 1, None)),
        Layer(x, {"b": x}),
        s.replace(step=s.step + 1),
        m,
        OrderedDict(z=x, a=x + 1),
    ]


def inside(x: Any) -> Any:
    """Calls of jax in the function: inner functions, constants, loops, derivatives."""
    inner = jax.jit(jnp.sin)(x) + jnp.linspace(0, 1, 4) + jnp.asarray(np.arange(4.0))
    total, each = jax.lax.scan(lambda total, one: (total + one, total * one), x[0], inner)
    return total, each, jax.grad(lambda y: (y**3).sum())(x)


def with_default(x: Any, scale: Any = 2.0, *, shift: float = 1.0) -> Any:
    return x * scale + shift


def with_debug_settings(x: Any) -> Any:
    return jnp.log(x + 1)


NO_STATICS = {"static_argnums": (), "static_argnames": ()}
MAPPED = {"in_axes": 0, **NO_STATICS}
X64 = Options(config=(("jax_enable_x64", True),))

CASES: dict[str, Case] = {
    "array": Case(lambda x: jnp.tanh(x) * 2),
    "no arguments": Case(lambda: jnp.arange(7), lambda turn: ()),
    "numbers": Case(
        lambda a, b, c, w: (a * b + c, w * 2), lambda turn: (2, 0.5, True, weak_array(X))
    ),
    "trees in": Case(trees_in, trees),
    "trees out": Case(trees_out, lambda turn: (X, State(1, X), Linear(X, "other"))),
    "kwargs": Case(with_default, kwargs={"shift": 3.0, "scale": X}),
    "defaults": Case(with_default),
    "static": Case(
        lambda n, s, x, mode: x * n * s.width if mode == "fast" else x,
        lambda turn: (2, Setting(3, "relu"), X),
        {"mode": "fast"},
        Options(static_argnums=(0, 1), static_argnames=("mode",)),
    ),
    "keys": Case(
        lambda k, r, old: (
            jax.random.normal(k, (3,)),
            k,
            {"keys": jax.random.split(r)},
            jax.random.uniform(old, (2,)),
        ),
        lambda turn: (
            jax.random.key(1),
            jax.random.key(1, impl="rbg"),
            jax.random.PRNGKey(1),
        ),
    ),
    "prng config": Case(
        lambda seed: jax.random.key(seed + 1),
        lambda turn: (np.int32(4),),
        options=Options(config=(("jax_default_prng_impl", "rbg"),)),
    ),
    "x64": Case(lambda x: x / 3, lambda turn: (np.ones(3),), options=X64),
    "float64 under x32": Case(lambda x: x / 3, lambda turn: (np.ones(3),)),
    "debug nans": Case(with_debug_settings, options=Options(config=(("jax_debug_nans", True),))),
    "donated": Case(lambda x: x + 1, options=Options(donate_argnums=(0,))),
    "unused": Case(lambda x, y, z: y * 2, lambda turn: (X, X, {"a": X})),
    "kept unused": Case(lambda x, y: y * 2, lambda turn: (X, X), {}, Options(keep_unused=True)),
    "compiler options": Case(
        lambda x: x * 3, options=Options(compiler_options=(("xla_embed_ir_in_executable", True),))
    ),
    "inside": Case(inside),
    "derived": Case(
        with_default,
        lambda turn: ((X,), X),
        options=Options(
            transformations=(
                encode_transformation("flat", {"inputs": ("",), "sent": (0,), **NO_STATICS}),
                encode_transformation("flat_jvp", {"given": (True,)}),
                encode_transformation(
                    "flat_transpose",
                    {
                        "linear": (False, True),
                        "shapes": (((4,), "float32", False),),
                        "given": (True,),
                    },
                ),
            )
        ),
    ),
    "transformed": Case(
        with_default,
        lambda turn: ((X,), (X,)),
        options=Options(
            transformations=(
                encode_transformation("grad", {"argnums": 0}),
                encode_transformation("vmap", MAPPED),
                encode_transformation("jvp", {"has_aux": False, "static": ()}),
            )
        ),
    ),
    "lapack": Case(
        lambda x: [jnp.linalg.svd(x)[1], jnp.linalg.eigh(x @ x.T)[0], jnp.linalg.inv(x)],
        lambda turn: (np.diag(np.arange(1, 4, dtype=np.float32)),),
    ),
    "large": Case(lambda x: (x, x.sum()), lambda turn: (np.ones((100, 100), np.float32),)),
}
"""What a restart costs nothing: by name."""


def show(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return x


def on_host(x: Any) -> Any:
    return jax.pure_callback(lambda v: np.asarray(v) + 1, jnp.zeros(4), x)


@jax.tree_util.register_pytree_node_class
class Marked:
    """Each one that is made has an object of its own."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.extra = lambda: x

    def tree_flatten(self) -> Any:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Any:
        return cls(*children)


NOT_KEPT: dict[str, Case] = {
    "callback": Case(on_host),
    "debug print": Case(show),
    "token": Case(lambda x: Marked(x + 3)),
    "static without content": Case(lambda o, x: x, lambda turn: (Odd(), X), {}, Options((0,))),
}
"""What each process makes again."""


def _cost(harness: PipelineHarness, case: Case, turn: int) -> dict[str, Any]:
    args = case.args(turn)
    source = Source(case.function, case.options)
    before = counts(harness)
    outcome, buffers = harness.answer(source.call(args, case.kwargs))
    after = counts(harness)
    reply = repr(outcome).encode() + b"".join(buffers)
    return {
        "failure": None if outcome[0] == OK else repr(outcome),
        "asked": source.asked,
        "reply": hashlib.sha256(reply).hexdigest(),
        **{name: after[name] - before[name] for name in COUNTERS},
    }


def _main(folder: str, turn: int) -> None:
    harness = PipelineHarness(folder=folder)
    found = {name: _cost(harness, case, turn) for name, case in {**CASES, **NOT_KEPT}.items()}
    harness.close()
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
