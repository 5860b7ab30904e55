"""`f.trace(...)`, `f.lower(...)`, `f.eval_shape(...)`, `f.jaxpr(...)`, and what follows."""

from __future__ import annotations

import json
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, FallbackWarning
from jaxd.dispatch.compiled_call import MemoryAnalysis
from jaxd.errors import ConfigurationError
from tests.end_to_end.counting import costs
from tests.live_server import LiveServer
from tests.warm_clients import run_light

X = np.ones((2, 3), np.float32)


def layer(x: Any, w: Any, mode: str = "plus") -> Any:
    """One that has something to count."""
    return jnp.dot(x, w) + 1 if mode == "plus" else x


SPEC = jax.ShapeDtypeStruct((3, 2), np.float32)


ARGUMENTS = X, np.ones((3, 2), np.float32)


def test_it_shows_what_jax_shows(client: Client) -> None:
    """For arrays and for specs of them; the lowered program in both dialects."""
    function, jitted = client.persistent_call(layer), jax.jit(layer)
    assert function.jaxpr(X, SPEC) == str(jax.make_jaxpr(layer)(X, SPEC))
    ours, theirs = function.lower(X, SPEC), jitted.lower(X, SPEC)
    assert ours.as_text() == ours.as_text("stablehlo") == theirs.as_text()
    assert ours.as_text("hlo") == theirs.as_text("hlo")
    assert "loc(" in ours.as_text(debug_info=True)
    assert ours.cost_analysis() == theirs.cost_analysis()
    assert str(ours.compiler_ir()) == str(theirs.compiler_ir())
    with pytest.raises(ValueError, match="unknown dialect"):
        ours.as_text("xla")


def test_a_compiled_one_says_what_it_costs(client: Client) -> None:
    """As XLA thinks, on the server; all that jax counts, and nothing else."""
    ours = client.persistent_call(layer).lower(X, SPEC).compile()
    theirs = jax.jit(layer).lower(X, SPEC).compile()
    assert ours.cost_analysis() == theirs.cost_analysis()
    memory, expected = ours.memory_analysis(), theirs.memory_analysis()
    assert isinstance(memory, MemoryAnalysis)
    names = {name for name in dir(expected) if type(getattr(expected, name)) is int}
    assert names <= set(MemoryAnalysis.__dataclass_fields__)
    assert {name: getattr(memory, name) for name in names} == {
        name: getattr(expected, name) for name in names
    }
    text = ours.as_text()
    assert text is not None
    assert text.startswith("HloModule jit_layer")


def _public(stage: Any) -> dict[str, Any]:
    names = [name for name in dir(type(stage)) if not name.startswith("_")]
    return {name: getattr(stage, name) for name in names}


def _shown(value: Any) -> Any:
    """Something that is equal for equal values."""
    return type(value) if callable(value) or "object at 0x" in repr(value) else repr(value)


def added(x: Any, y: Any) -> Any:
    """One whose result may take the place of its first argument."""
    return x + y


def test_the_stages_have_all_that_jax_documents(client: Client) -> None:
    """Each public attribute of jax's own classes, of whatever version, with jax's own value."""
    function, jitted = (
        client.persistent_call(added, donate_argnums=0),
        jax.jit(added, donate_argnums=0),
    )
    assert isinstance(function, jax.stages.Wrapped)
    ours: Any = function.trace(X, 2.0)
    theirs: Any = jitted.trace(X, 2.0)
    for step in ("lower", "compile", ""):
        assert isinstance(ours, type(theirs))
        found, expected = _public(ours), _public(theirs)
        assert found.keys() == expected.keys()
        for name in expected.keys() - {"lojax"}:
            assert _shown(found[name]) == _shown(expected[name]), name
        ours, theirs = (getattr(each, step)() if step else each for each in (ours, theirs))
    assert set(dir(jitted)) - {"__module__"} - _PRIVATE <= set(dir(function))


_PRIVATE = {"_cache_miss", "_clear_cache", "_fun", "_jit_info"}
"""What a function of jax has beside, all of it private; pickling and signatures are our own."""
_PRIVATE |= {name for name in dir(jax.jit(layer)) if name.startswith("__")}


def test_the_public_classes_of_jax_stages_are_those_that_are_known() -> None:
    """A class that jax adds is looked at, and gets a counterpart here."""
    known = {"ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Traced", "Wrapped"}
    assert {name for name in dir(jax.stages) if not name.startswith("_")} == known


def twice(x: Any, w: Any, mode: int) -> Any:
    """One that no other test has compiled."""
    return jnp.dot(x, w) * mode + 17


def test_a_compiled_one_runs_on_the_server(client: Client) -> None:
    """The program that calls of the function use; nothing is traced or compiled for its calls."""
    function = client.persistent_call(twice, static_argnames="mode")
    lowered = function.lower(X, SPEC, mode=2)
    with costs(client) as spent:
        compiled = lowered.compile()
    assert (spent["traces"], spent["compiles"]) == (1, 1)
    with costs(client) as spent:
        found = compiled(*ARGUMENTS)  # without the static argument, as with jax
        again = function(*ARGUMENTS, mode=2)
    assert spent == {"executable_hits": 2}
    assert np.array_equal(found, twice(*ARGUMENTS, 2))
    assert np.array_equal(found, again)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X, X), {}),
        ((X,), {}),
        ((X, ARGUMENTS[1], "plus"), {}),
        ((X,), {"w": ARGUMENTS[1]}),
        ((X, np.ones((3, 2), np.int32)), {}),
    ],
    ids=["shape", "too few", "a static one", "by name", "dtype"],
)
def test_a_compiled_one_refuses_what_jax_refuses(client: Client, args: Any, kwargs: Any) -> None:
    """With jax's type and words, before anything is sent."""
    ours = client.persistent_call(layer, static_argnames="mode").lower(*ARGUMENTS, "plus")
    theirs = jax.jit(layer, static_argnames="mode").lower(*ARGUMENTS, "plus")
    with pytest.raises(TypeError) as expected:
        theirs.compile()(*args, **kwargs)
    with pytest.raises(TypeError) as raised:
        ours.compile()(*args, **kwargs)
    assert str(raised.value) == str(expected.value)


def test_a_compiled_one_takes_what_jax_takes(client: Client) -> None:
    """Numbers, arrays of the other kind of type, and float64 where jax has only float32."""

    def scaled(x: Any, k: Any) -> Any:
        return x * k

    strong, weak = (client.persistent_call(scaled).lower(X, k).compile() for k in (X[0, 0], 2.0))
    for compiled in (strong, weak):
        for k in (3, 3.0, np.float32(3), jnp.float32(3)):
            if k == 3 and isinstance(k, int):
                with pytest.raises(TypeError, match="compiled with"):
                    compiled(X, k)
            else:
                found = compiled(X.astype(np.float64), k)
                assert found.dtype == np.float32
                assert np.array_equal(found, X * 3)


def test_options_of_the_compiler_may_come_last(client: Client) -> None:
    """Each set of them is a program of its own; what XLA does not know is its error."""
    lowered = client.persistent_call(lambda x, w: jnp.dot(x, w) - 23).lower(*ARGUMENTS)
    with costs(client) as spent:
        fast = lowered.compile(compiler_options={"xla_cpu_enable_fast_math": True})
        lowered.compile()
    assert spent["compiles"] == 2
    assert np.array_equal(fast(*ARGUMENTS), ARGUMENTS[0] @ ARGUMENTS[1] - 23)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such"):
        lowered.compile(compiler_options={"no_such": True})
    with pytest.raises(ConfigurationError, match=r"f\.on"):
        lowered.compile(device_assignment=(jax.devices()[0],))


def test_what_was_lowered_stays_what_it_was(client: Client) -> None:
    """A later version of the function is lowered anew, and changes nothing of the former one."""

    def scaled(x: Any) -> Any:
        return x * FACTOR["by"]

    function = client.persistent_call(scaled)
    before = function.lower(X).compile()
    old = dict(FACTOR)
    try:
        FACTOR["by"] = 5.0
        after = function.lower(X)
        assert "5.0" in after.as_text()
        assert np.array_equal(after.compile()(X), X * 5)
        assert np.array_equal(before(X), X * 2)
    finally:
        FACTOR.update(old)


FACTOR = {"by": 2.0}


def test_trees_keys_and_arrays_on_the_server_are_arguments_as_well(client: Client) -> None:
    """And anything with a shape and a dtype stands for an array."""

    class Spec:
        shape, dtype = (2, 3), "float32"

    def noisy(tree: Any, key: Any, how: str) -> Any:
        assert how == "normal"
        return {"y": tree["x"] + jax.random.normal(key, tree["x"].shape)}

    function = client.persistent_call(noisy)
    key = jax.random.key(7)
    expected = jax.eval_shape(lambda: noisy({"x": X}, key, "normal"))
    assert function.eval_shape({"x": Spec()}, key, "normal") == expected
    assert client.persistent_call(layer).eval_shape(client.put(X), SPEC).shape == (2, 2)
    compiled = function.lower({"x": client.put(X)}, key, "normal").compile()
    assert np.array_equal(
        compiled({"x": X}, key, "normal")["y"], noisy({"x": X}, key, "normal")["y"]
    )
    with pytest.raises(TypeError, match="pytree"):
        compiled({"x": X}, key, "other")


def test_transformed_functions_methods_and_settings_have_stages(client: Client) -> None:
    """Each traces what its calls run, under its own settings."""
    energy = client.persistent_call(lambda x: jnp.sum(x**2), config={"jax_enable_x64": True})
    wide = np.ones(3)
    lowered = energy.grad().lower(wide)
    assert lowered.out_info.dtype == np.float64
    assert "f64" in lowered.as_text()
    with jax.enable_x64(True):
        assert np.array_equal(lowered.compile()(wide), 2 * wide)
    assert energy.vmap().eval_shape(np.ones((4, 3))).shape == (4,)

    class Scaled:
        by = 3.0

        @client.persistent_call
        def scale(self, x: Any) -> Any:
            return x * self.by

    method = Scaled().scale
    assert method.eval_shape(X).shape == X.shape
    assert method.trace(X).fun_name == "scale"
    assert np.array_equal(method.lower(X).compile()(X), X * 3)


def test_they_are_part_of_what_jax_transforms_only_as_a_whole(client: Client) -> None:
    """A compiled one has one signature: jax refuses to transform it, in its own words."""
    compiled = client.persistent_call(layer).lower(*ARGUMENTS).compile()
    with pytest.raises(TypeError, match="Cannot apply JAX transformations"):
        jax.jit(compiled)(*ARGUMENTS)


def test_tracing_here_asks_the_server_nothing(client: Client) -> None:
    """A function is traced once for its shapes, in this process; calls are built as ever."""
    seen = []

    def counted(x: Any) -> Any:
        seen.append(x.shape)
        return x + 1

    function = client.persistent_call(counted, ignore="seen")
    with costs(client) as spent:
        function.trace(X)
        function.lower(X)
        function.eval_shape(X)
    assert seen == [X.shape]
    assert not spent


def test_programs_can_be_counted_and_dropped_as_with_jax(client: Client) -> None:
    """One for each signature, until the cache is cleared."""
    function = client.persistent_call(layer, extra_key="counted")
    assert function._cache_size() == 0
    function(*ARGUMENTS)
    function(*ARGUMENTS)
    assert function._cache_size() == 1
    function(X[:1], ARGUMENTS[1])
    assert function._cache_size() == 2
    function.clear_cache()
    assert function._cache_size() == 0


def test_clients_without_jax_can_look_as_well(live: LiveServer) -> None:
    """The texts are the server's; what jax has objects for is given in plain ones."""
    program = """
import json, sys
from jaxd import persistent_call
from jaxd.errors import ConfigurationError

@persistent_call(static_argnames="by")
def double(x, how, by):
    return {"y": x * by if how == "double" else x}

class Spec:
    shape, dtype = (4,), "float32"

lowered = double.lower(Spec(), "double", by=2)
compiled = lowered.compile()
found = [double.jaxpr(Spec(), "double", by=2), compiled.cost_analysis()["flops"]]
found += [compiled.memory_analysis().output_size_in_bytes, lowered.as_text("hlo")[:9]]
found += [repr(lowered), repr(compiled), repr(compiled.out_info), repr(lowered.out_info)]
found += [repr(double.eval_shape(Spec(), "double", by=2)), compiled.as_text()[:9]]
before = double._cache_size()
try:
    lowered.as_text("xla")
except ConfigurationError as error:
    found.append(str(error))
assert "jax" not in sys.modules
import numpy as np
found.append(compiled(np.ones(4, "f4"), "double")["y"].tolist())
for wrong in [(np.ones(3, "f4"), "double"), (np.ones(4, "f4"), "triple"), (np.ones(4, "f4"),)]:
    try:
        compiled(*wrong)
    except TypeError as error:
        found.append(str(error)[:47])
assert double._cache_size() == before == 1
assert "jax" not in sys.modules
print(json.dumps(found))
"""
    ended = run_light(live, program)
    assert ended.returncode == 0, ended.stderr
    info = "{'y': OutInfo(shape=(4,), dtype='float32', weak_type=False)}"
    assert json.loads(ended.stdout) == [
        str(jax.make_jaxpr(lambda x: {"y": x * 2})(X[0, :1].repeat(4))),
        4.0,
        16,
        "HloModule",
        "<lowered double>",
        "<compiled double>",
        *[info] * 3,
        "HloModule",
        "dialect='xla' is not known. Use 'stablehlo' or 'hlo', or leave it out.",
        [2.0] * 4,
        *["Argument types differ from the types for which "] * 3,
    ]


@pytest.mark.slow
def test_jaxs_own_stages_need_jax(live: LiveServer) -> None:
    """`trace` imports it for its caller, who asks for an object of jax."""
    program = """
from jaxd import persistent_call

@persistent_call
def double(x):
    return x * 2

print(type(double.trace(1.0)).__mro__[1].__name__, double.trace(1.0).out_info.dtype)
"""
    ended = live.run(program)
    assert ended.stdout == "Traced float32\n", ended.stderr


@pytest.mark.parametrize("options", [{}, {"donate_argnums": 0}])
def test_jax_exports_it(client: Client, options: Any) -> None:
    """As a function under `jax.jit`, also for another platform and for sizes with names."""
    function, x = client.persistent_call(jnp.sin, **options), jnp.ones(3)
    written = jax.export.export(function, platforms=["cpu", "tpu"])(x).serialize()
    np.testing.assert_array_equal(jax.export.deserialize(written).call(x), jnp.sin(jnp.ones(3)))
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), x.dtype)
    function = client.persistent_call(jnp.sin, fallback="local", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        exported = jax.export.export(function)(spec)
    np.testing.assert_array_equal(exported.call(jnp.ones(4)), jnp.sin(jnp.ones(4)))


def test_nothing_is_called(client: Client) -> None:
    """Not even once, and a name is asked of nobody."""
    function = client.persistent_call(layer, extra_key="inspected")
    with costs(client) as spent:
        assert len(bytes.fromhex(function.fingerprint)) == 16
        assert function.why(X, X.T).verdict == "compile"
        assert "dot_general" in function.jaxpr(X, SPEC)
        assert function.clear() == 0
    assert spent == {"traces": 1}
