"""What jax and the libraries around it make: the same key everywhere, and each edit seen."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.identity.probing import Job, ProbeResult, probe
from tests.identity.projects import Edit, check, edit, probe_edits, write

TRANSFORMS = """
import jax, jax.numpy as jnp
from functools import partial
def loss(w, x): return jnp.sum((w * x) ** 2)
def static(x, n): return x * n
def donated(w, x): return w + x
step = jax.jit(loss)
with_statics = jax.jit(static, static_argnums=(1,))
with_names = jax.jit(lambda x, *, n: x * n, static_argnames=("n",))
with_donation = jax.jit(donated, donate_argnums=(0,))
grad = jax.grad(loss, argnums=0)
value_and_grad = jax.value_and_grad(loss)
mapped = jax.vmap(loss, in_axes=(0, None))
saved = jax.checkpoint(loss, policy=jax.checkpoint_policies.dots_saveable)
stacked = jax.vmap(jax.checkpoint(jax.grad(loss)), in_axes=(0, None))
@partial(jax.jit, static_argnums=1)
def decorated(x, n): return x + n
def scans(x): return jax.lax.scan(lambda c, y: (c + y, c * 3), x, jnp.arange(3))
def structured(x): return TREE.unflatten([x, x])
TREE = jax.tree.structure((1, [2]))
def constant(x): return x * jnp.pi
# here
def spec(x): return SPEC
SPEC = jax.sharding.PartitionSpec("data")
def other(x): return jnp.sin(x)
"""
JAX_NAMES = (
    "step with_statics with_names with_donation grad value_and_grad mapped saved stacked decorated "
    "scans spec structured constant other"
)
ARRAYS = """
import jax, jax.numpy as jnp
from jax import Array
def array(x: Array): return x * WEIGHT, isinstance(x, Array)
WEIGHT = jnp.arange(4.0)
KEY = jax.random.key(7)
def keyed(x): return jax.random.normal(KEY, x.shape)
def other(x): return jnp.sin(x)
"""
CUSTOM = """
import jax, jax.numpy as jnp
@jax.custom_vjp
def clipped(x): return x * 2
def forward(x): return clipped(x), (x,)
def backward(res, g): return (g * 3,)
clipped.defvjp(forward, backward)
@jax.custom_jvp
def safe(x): return jnp.log(x)
@safe.defjvp
def tangent(primals, tangents): return safe(primals[0]), tangents[0] * 5
@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
    def tree_flatten(self): return (self.a,), self.b
    @classmethod
    def tree_unflatten(cls, aux, children): return cls(*children, aux)
class Plain:
    def __init__(self, a): self.a = a
jax.tree_util.register_pytree_node(Plain, lambda p: ((p.a,), None), lambda _, c: Plain(c[0]))
class Host:
    def tell(self, x): return x
def step(x): return jax.grad(clipped)(x)
def logs(x): return jax.jvp(safe, (x,), (x,))
def pairs(x): return Pair(x, 1)
def plains(x): return Plain(x)
def calls(x): return jax.pure_callback(lambda y: y + 7, x, x)
def other(x): return x
"""
CUSTOM_NAMES = "step logs pairs plains calls other"
PRIMITIVES = """
import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
cubed_p = Primitive("cubed")
other_p = Primitive("other")
def compute(x): return x * x * x
def shape(x): return jax.core.ShapedArray(x.shape, x.dtype)
def tangent(primals, tangents): return cubed_p.bind(*primals), 3 * primals[0] ** 2 * tangents[0]
def batch(args, axes): return cubed_p.bind(*args), axes[0]
cubed_p.def_impl(compute)
cubed_p.def_abstract_eval(shape)
ad.primitive_jvps[cubed_p] = tangent
batching.primitive_batchers[cubed_p] = batch
mlir.register_lowering(cubed_p, mlir.lower_fun(compute, multiple_results=False))
# here
class Holder:
    def of(self): return cubed_p
def step(x): return cubed_p.bind(x)
def held(x): return Holder().of().bind(x)
def other(x): return other_p.bind(x)
"""
OPTAX = """
import optax, jax
optimizer = optax.adam(1e-3, b1=0.9)
chained = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5, momentum=0.8))
scheduled = optax.adam(optax.cosine_decay_schedule(0.25, 100))
def mine(lr): return optax.adam(lr)
# here
def step(p, g, s): return optimizer.update(g, s, p)
def chain(p, g, s): return chained.update(g, s, p)
def schedule(p, g, s): return scheduled.update(g, s, p)
def makes(p): return optax.sgd(0.125).init(p)
def other(p): return optax.adam(0.0625).init(p)
"""
OPTAX_NAMES = "step chain schedule makes other"
FLAX = """
import flax.linen as nn, jax, jax.numpy as jnp
class Model(nn.Module):
    width: int = 8
    @nn.compact
    def __call__(self, x): return nn.Dense(self.width)(nn.relu(x))
model = Model(width=16)
class Other(nn.Module):
    def setup(self): self.inner = nn.Dense(4)
    def __call__(self, x): return self.inner(x)
class Body(nn.Module):
    @nn.compact
    def __call__(self, carry, x): return carry + 1, x
Saved = nn.remat(Body)
Scanned = nn.scan(Body, variable_broadcast="params", split_rngs={"params": False}, length=3)
def rematted(params, x): return Saved().apply(params, x, x)
def scanned(params, x): return Scanned().apply(params, x, x)
def step(params, x): return model.apply(params, x)
def init(key, x): return Model().init(key, x)
def other(params, x): return Other().apply(params, x)
"""
NNX = """
from flax import nnx
import jax.numpy as jnp
class Model(nnx.Module):
    def __init__(self, width, rngs): self.dense = nnx.Linear(3, width, rngs=rngs)
    def __call__(self, x): return self.dense(x) + 1
model = Model(4, nnx.Rngs(0))
graph, state = nnx.split(model)
def step(state, x): return nnx.merge(graph, state)(x)
def whole(x): return model(x)
def makes(x): return Model(2, nnx.Rngs(x))
def other(x): return nnx.relu(x)
"""
EQUINOX = """
import equinox as eqx, jax, jax.numpy as jnp
class Model(eqx.Module):
    weight: jax.Array
    scale: float = eqx.field(static=True, default=2.0)
    def __call__(self, x): return self.weight * x + 1
model = Model(jnp.arange(3.0))
@eqx.filter_jit
def jitted(model, x): return model(x) * 5
def step(x): return model(x)
def makes(x): return Model(x)(x)
def other(x): return eqx.nn.Linear
"""
HAIKU = """
import haiku as hk, jax
class Block(hk.Module):
    def __init__(self, width, name=None):
        super().__init__(name=name)
        self.width = width
    def __call__(self, x): return hk.Linear(self.width)(x) + 1
def forward(x): return Block(8)(x)
model = hk.transform(forward)
def step(params, key, x): return model.apply(params, key, x)
def init(key, x): return model.init(key, x)
def other(x): return jax.nn.relu(x)
"""

LIBRARIES = {
    "jax": (TRANSFORMS, JAX_NAMES),
    "jax.numpy": (ARRAYS, "array keyed other"),
    "jax.custom_vjp": (CUSTOM, CUSTOM_NAMES),
    "jax.extend": (PRIMITIVES, "step held other"),
    "optax": (OPTAX, OPTAX_NAMES),
    "flax.linen": (FLAX, "step init rematted scanned other"),
    "flax.nnx": (NNX, "step whole makes other"),
    "equinox": (EQUINOX, "step jitted makes other"),
    "haiku": (HAIKU, "step init other"),
}
CALLS = {
    "jax": """
main.step(1.0, 2.0), main.grad(1.0, 2.0), main.with_statics(2.0, 3), main.with_names(2.0, n=3)
main.mapped(jnp.ones(2), 2.0), main.saved(1.0, 2.0), main.decorated(1.0, 2), main.scans(1.0)
main.value_and_grad(1.0, 2.0), main.stacked(jnp.ones(2), jnp.ones(2)), main.with_donation(jnp.ones(2), 1.0)
main.structured(1.0), main.constant(1.0), main.other(1.0)
""",
    "jax.numpy": "main.array(1.0), main.keyed(jnp.ones(2))",
    "jax.custom_vjp": """
main.step(2.0), main.logs(2.0), main.pairs(1), main.plains(1), jax.jit(main.calls)(jnp.ones(2))
jax.tree.leaves(main.pairs(1))
""",
    "jax.extend": "jax.vmap(jax.grad(main.step))(jnp.ones(2)), main.held(1.0)",
    "optax": """
p = jnp.ones(3)
main.step(p, p, main.optimizer.init(p)), main.chain(p, p, main.chained.init(p)), main.makes(p)
""",
    "flax.linen": """
x = jnp.ones((2, 3))
main.step(main.model.init(jax.random.key(0), x), x), main.init(jax.random.key(0), x)
main.other(main.Other().init(jax.random.key(0), x), x)
""",
    "flax.nnx": "x = jnp.ones((2, 3)); main.whole(x), main.step(main.state, x), main.makes(0)",
    "equinox": "main.step(1.0), main.jitted(main.model, 1.0), main.makes(1.0)",
    "haiku": """
x, key = jnp.ones((2, 3)), jax.random.key(0)
main.step(main.init(key, x), key, x)
""",
}
INSTALLED = [name for name in ("jax", "optax", "flax", "equinox", "haiku") if find_spec(name)]
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif("jax" not in INSTALLED, reason="jax is not installed"),
]
PRELOAD = [*INSTALLED, *(["flax.linen", "flax.nnx"] if "flax" in INSTALLED else [])]

ROWS = [
    edit("jax: the function that is jitted", TRANSFORMS, "(w * x)", "(w + x)", "step grad value_and_grad mapped saved stacked", "with_statics scans other"),
    edit("jax: static arguments", TRANSFORMS, "static_argnums=(1,)", "static_argnums=(0,)", "with_statics", "with_names step other"),
    edit("jax: static names", TRANSFORMS, '("n",)', "()", "with_names", "with_statics step other"),
    edit("jax: static arguments in a decorator", TRANSFORMS, "static_argnums=1", "static_argnums=0", "decorated", "with_statics step other"),
    edit("jax: donated arguments", TRANSFORMS, "donate_argnums=(0,)", "donate_argnums=(1,)", "with_donation", "step other"),
    edit("jax: the argument of a gradient", TRANSFORMS, "argnums=0", "argnums=1", "grad", "value_and_grad step other"),
    edit("jax: the axes of vmap", TRANSFORMS, "vmap(loss, in_axes=(0, None)", "vmap(loss, in_axes=(None, 0)", "mapped", "stacked step other"),
    edit("jax: what a checkpoint saves", TRANSFORMS, "dots_saveable", "everything_saveable", "saved", "stacked step other"),
    edit("jax: the body of a scan", TRANSFORMS, "c * 3", "c * 4", "scans", "step other"),
    edit("jax: an array", ARRAYS, "arange(4.0)", "arange(5.0)", "array", "keyed other"),
    edit("jax: an array's dtype", ARRAYS, "arange(4.0)", "arange(4)", "array", "keyed other"),
    edit("jax: a weak type", ARRAYS, "jnp.arange(4.0)", "jnp.asarray(2.0)", "array", "keyed other"),
    edit("jax: a weak type only", ARRAYS.replace("jnp.arange(4.0)", "jnp.asarray(2.0)"), "jnp.asarray(2.0)", "jnp.float32(2.0)", "array", "keyed other"),
    edit("jax: a random key", ARRAYS, "key(7)", "key(8)", "keyed", "array other"),
    edit("jax: how a key is made", ARRAYS, "key(7)", "key(7, impl='rbg')", "keyed", "array other"),
    edit("jax: a partition", TRANSFORMS, '"data"', '"model"', "spec", "step other"),
    edit("jax: a tree's structure", TRANSFORMS, "(1, [2])", "[1, (2,)]", "structured", "step other"),
    edit("jax: a patched constant", TRANSFORMS, "# here", "jnp.pi = 3", "constant", "step other scans"),
    edit("jax: a custom backward pass", CUSTOM, "g * 3", "g * 4", "step", "logs pairs other"),
    edit("jax: a custom forward pass", CUSTOM, ", (x,)\n", ", (x + x,)\n", "step", "logs pairs other"),
    edit("jax: a custom tangent", CUSTOM, "* 5", "* 6", "logs", "step pairs other"),
    edit("jax: how a class is flattened", CUSTOM, "(self.a,), self.b", "(self.b,), self.a", "pairs", "step other"),
    edit("jax: how a registered class is flattened", CUSTOM, "(p.a,), None", "(), p.a", "plains", "pairs other"),
    edit("jax: how it is put together", CUSTOM, "Plain(c[0])", "Plain(c[0] + 0)", "plains", "pairs other"),
    edit("jax: what a callback does", CUSTOM, "y + 7", "y + 8", "calls", "step other"),
    edit("jax: what a primitive computes", PRIMITIVES, "x * x * x", "x * x + x", "step held", "other"),
    edit("jax: the tangent of a primitive", PRIMITIVES, "3 * primals", "4 * primals", "step held", "other"),
    edit("jax: how a primitive is mapped", PRIMITIVES, "axes[0]", "axes[0] + 0", "step held", "other"),
    edit("jax: how a primitive is lowered for one kind of device", PRIMITIVES, "# here", "mlir.register_lowering(cubed_p, mlir.lower_fun(shape), platform='cuda')", "step held", "other"),
    edit("jax: that a primitive is in a set of jax's", PRIMITIVES, "# here", "import jax._src.dispatch; jax._src.dispatch.prim_requires_devices_during_lowering.add(cubed_p)", "step held", "other"),
    edit("jax: the name of a primitive", PRIMITIVES, '"cubed"', '"cube"', "step held", "other"),
    edit("optax: a rate", OPTAX, "1e-3", "2e-3", "step", "chain schedule makes other"),
    edit("optax: a decay", OPTAX, "0.9", "0.8", "step", "chain schedule other"),
    edit("optax: a clip in a chain", OPTAX, "norm(1.0)", "norm(2.0)", "chain", "step schedule makes other"),
    edit("optax: a schedule", OPTAX, "0.25, 100", "0.25, 200", "schedule", "chain step makes other"),
    edit("optax: a rate inside", OPTAX, "0.125", "0.25", "makes", "chain step schedule other"),
    edit("optax: a patched optimiser", OPTAX, "# here", "optax.sgd = mine", "makes", "chain step other"),
    edit("optax: one swapped for another", OPTAX, "# here", "optax.sgd = optax.adam", "makes", "chain step other"),
    edit("flax: a field", FLAX, "width=16", "width=32", "step", "init other"),
    edit("flax: a default", FLAX, "int = 8", "int = 9", "step init", "other"),
    edit("flax: a layer", FLAX, "nn.relu(x)", "nn.gelu(x)", "step init", "other"),
    edit("flax: a setup", FLAX, "Dense(4)", "Dense(5)", "other", "step init"),
    edit("flax: a class that is lifted", FLAX, "carry + 1", "carry + 2", "rematted scanned", "step other"),
    edit("flax: how often a class is scanned", FLAX, "length=3", "length=4", "scanned", "step other"),
    edit("nnx: the width", NNX, "Model(4", "Model(5", "step whole", "makes other"),
    edit("nnx: the parameters", NNX, "Rngs(0)", "Rngs(1)", "whole", "step makes other"),
    edit("nnx: a method", NNX, "(x) + 1", "(x) + 2", "step whole makes", "other"),
    edit("equinox: a leaf", EQUINOX, "arange(3.0)", "arange(1, 4.0)", "step", "jitted makes other"),
    edit("equinox: a static field", EQUINOX, "default=2.0", "default=3.0", "step makes", "other jitted"),
    edit("equinox: a method", EQUINOX, "* x + 1", "* x + 2", "step makes", "other jitted"),
    edit("equinox: what filter_jit wraps", EQUINOX, "* 5", "* 6", "jitted", "step makes other"),
    edit("haiku: a module", HAIKU, "(x) + 1", "(x) + 2", "step init", "other"),
    edit("haiku: a width", HAIKU, "Block(8)", "Block(9)", "step init", "other"),
]  # fmt: skip
ROWS = [row for row in ROWS if row.says.partition(":")[0].replace("nnx", "flax") in INSTALLED]


PLAIN = [
    Edit(name, source, source, (), tuple(names.split()))
    for name, (source, names) in LIBRARIES.items()
    if name.split(".")[0] in INSTALLED
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """All rows, looked at from one interpreter."""
    return probe_edits(tmp_path_factory.mktemp("libraries"), [*PLAIN, *ROWS], *PRELOAD)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_an_edit_is_seen_through_the_library(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """However deep the library has wrapped it."""
    check(row, seen)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProbeResult]:
    """All libraries in another interpreter and other folders, after everything has been called."""
    folder = tmp_path_factory.mktemp("elsewhere")
    jobs = [
        Job(
            str(write(folder / row.says, row.before)),
            row.kept,
            after=f"import jax, jax.numpy as jnp\n{CALLS[row.says]}",
        )
        for row in PLAIN
    ]
    found = probe(jobs, preload=("jaxd_protocol.fingerprint", *PRELOAD), PYTHONHASHSEED="7")
    return dict(zip([row.says for row in PLAIN], found, strict=True))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_s_objects_have_one_key_everywhere(
    library: str,
    seen: dict[str, tuple[ProbeResult, ProbeResult]],
    elsewhere: dict[str, ProbeResult],
) -> None:
    """In two processes, used or not; and different objects have different keys."""
    if library.split(".", maxsplit=1)[0] not in INSTALLED:
        pytest.skip(f"{library} is not installed")
    names = LIBRARIES[library][1].split()
    here = {name: seen[library][0].digest(name) for name in names}
    assert here == elsewhere[library].digests()
    assert len(set(here.values())) == len(names)
