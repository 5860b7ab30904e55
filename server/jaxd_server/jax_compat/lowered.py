"""What a traced and lowered program is, read off jax's private names.

Its name, its results' types, and which arguments each result is computed from.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_lowered.py.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir
from jaxlib.version import __version__ as jaxlib_version

from jaxd_protocol.jax_objects.lowered_bytes import bound_by
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.program_identity import in_types, program_digest

Obstacle = Literal["callbacks", "effects", "constants", "references", "targets", "types", "unknown"]
"""Why a program can be neither shared nor kept.

Host callbacks, debug prints among them; other effects; constants that are passed as arguments;
mutable references; calls of native code that is not jaxlib's own; element types that are not jax's
own; and whatever this version of jax does not let us see.
"""

_COMPILERS_TARGETS: Final = frozenset(
    {
        "AllocateBuffer",
        "LayoutConstraint",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "__gpu$xla.gpu.triton",
        "annotate_device_placement",
        "mhlo.topk",
        "mosaic_gpu_v2",
        "tpu_custom_call",
    }
)
"""Custom calls that XLA itself understands: what they do stands in the program."""

_CUDNN: Final = "__cudnn$"
"""How XLA's own names of what cuDNN computes begin, such as attention and convolutions."""

_POINTERS: Final = frozenset({"CustomSPMDPartitioning", "tf.call_tf_function"})
"""Custom calls that hold pointers into this process, as those of callbacks do."""

_own_targets: Final[set[str]] = set(_COMPILERS_TARGETS)
_own_keys: Final = {"threefry2x32", "rbg", "unsafe_rbg"}
"""Native code, and PRNG implementations; `register_own_targets` adds to them at the start."""


VERSIONS: Final = {"jax": jax.__version__, "jaxlib": jaxlib_version}
"""Those that lower programs here."""


class OutLeaf(NamedTuple):
    """One array of a result.

    Attributes:
        shape: its shape, for keys that of the array of keys.
        dtype: its dtype, for keys jax's own.
        weak_type: whether it gives way to the dtypes that it meets.
        impl: the PRNG implementation of keys; None for anything else.
    """

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    impl: str | None


def register_own_targets() -> None:
    """Takes for jax's own what native code and PRNGs are registered now; starts the backend."""
    _own_targets.update(name for name in _targets() if not _holds_pointers(name))
    try:
        from jax._src.random import prng

        _own_keys.update(prng.prngs)
    except (AttributeError, ImportError):
        pass  # then these are all


def _holds_pointers(target: str) -> bool:
    return target in _POINTERS or "callback" in target


def program_id(lowered: jax.stages.Lowered, options: Options) -> tuple[bytes, Obstacle | None]:
    """Sixteen bytes that name the program, equal for equal programs in every process.

    Returns:
        The name, which is the `program_digest`, and what keeps the program from being shared and
        kept. With an obstacle the name is random, so that it is never equal to another's.
    """
    obstacle: Obstacle | None
    try:
        obstacle = _obstacle(lowered)
        if obstacle is None:
            return program_digest(lowered, options), None
    except Exception:  # noqa: BLE001 - whatever a newer jax does here must not fail the call
        obstacle = "unknown"
    return os.urandom(16), obstacle


def has_effects(lowered: jax.stages.Lowered) -> bool:
    """Whether it calls back for an effect, as `jax.debug.print` and `io_callback` do."""
    try:
        facts = lowered._lowering.compile_args
        return bool(facts["ordered_effects"] or facts["unordered_effects"])
    except (AttributeError, KeyError):
        return True  # which only costs time


def operations(lowered: jax.stages.Lowered, most: int) -> int:
    """How many operations a program has; `most` where it has more."""
    left = most

    def note(_: Any) -> Any:
        nonlocal left
        left -= 1
        return ir.WalkResult.ADVANCE if left > 0 else ir.WalkResult.INTERRUPT

    module: Any = lowered.compiler_ir("stablehlo")
    module.operation.walk(note)
    return most - left


def device_ids(lowered: jax.stages.Lowered) -> tuple[int, ...]:
    """The devices that it will run on, in their order; what `load` asks for.

    Raises:
        AttributeError: when it is no lowered program.
    """
    devices = getattr(lowered._lowering, "_device_list", None)
    return tuple(device.id for device in devices or jax.devices()[:1])


def out_leaves(lowered: jax.stages.Lowered) -> list[OutLeaf]:
    """What the result is made of, in the order of its leaves."""
    return [
        OutLeaf(tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False)), _impl(aval))
        for aval in _out_avals(lowered)
    ]


def _out_avals(lowered: Any) -> list[Any]:
    try:
        return list(lowered._lowering.compile_args["global_out_avals"])
    except (AttributeError, KeyError):
        return list(jax.tree.leaves(lowered.out_info))  # without weak types


def _obstacle(lowered: Any) -> Obstacle | None:
    facts = lowered._lowering.compile_args
    bound = bound_by(lowered)
    if bound is not None:
        return bound
    types = in_types(facts) + facts["global_out_avals"]
    if not all(_is_ordinary(aval) for aval in types):
        return "types"
    if not _is_ours_to_load(lowered._lowering):
        return "unknown"
    unknown = _called_targets(lowered) - _own_targets
    return "targets" if any(not name.startswith(_CUDNN) for name in unknown) else None


def _is_ours_to_load(lowering: Any) -> bool:
    """Whether it is for the default backend, and compiled once and for all."""
    facts = lowering.compile_args
    is_final = facts["pgle_profiler"] is None and not facts["shape_poly_state"].uses_dim_vars
    return is_final and facts["backend"] is jax.devices()[0].client


def _is_ordinary(aval: Any) -> bool:
    if aval.is_high or type(aval).__name__ != "ShapedArray":
        return False
    return not jnp.issubdtype(aval.dtype, jax.dtypes.extended) or _impl(aval) in _own_keys


def _impl(aval: Any) -> str | None:
    is_key = jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
    return str(aval.dtype._impl.name) if is_key else None


def _called_targets(lowered: Any) -> set[str]:
    """The native code that the program calls, by name."""
    names: set[str] = set()

    def note(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            names.add(str(operation.attributes["call_target_name"].value))
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(note)
    return names


def _targets() -> Iterator[str]:
    """The native code that is registered now, and what jax's own export trusts."""
    try:
        from jax._src.lib import xla_client  # type: ignore[attr-defined]

        for platform in ("cpu", "CUDA", "ROCM", jax.default_backend()):
            yield from xla_client.custom_call_targets(platform)
    except (AttributeError, ImportError):
        pass  # each program that calls any is then on its own
    try:
        from jax._src.export import _export

        yield from _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE
    except (AttributeError, ImportError):
        pass


# what each result is computed from ----------------------------------------------------------------

_Inputs = list[int]
"""For each result the arguments that it may be computed from, as the bits of a number."""

_MOST_ROUNDS: Final = 8


def inputs_of_results(traced: Any) -> _Inputs | None:
    """Which arguments each result may be computed from; None where that is not known.

    A superset of what the batching rules of jax find: what is computed from no mapped argument is
    not mapped. Effects and references are not followed.

    Args:
        traced: a function, as `jax.jit(f).trace` returns it.
    """
    try:
        found = _Flow().of(traced.jaxpr)
        sizes = len(traced.jaxpr.jaxpr.invars), len(found)
        counts = len(jax.tree.leaves(traced.in_avals)), len(jax.tree.leaves(traced.out_info))
    except (_NotFollowed, AttributeError, LookupError, TypeError, ValueError):
        return None
    return found if sizes == counts else None


class _NotFollowed(Exception):
    """A program does something besides computing values from values."""


class _Flow:
    """Follows values through jaxprs, through each of them once."""

    def __init__(self) -> None:
        self._known: dict[int, _Inputs] = {}

    def of(self, jaxpr: Any) -> _Inputs:
        """What each result of a jaxpr, closed or open, may be computed from.

        Raises:
            _NotFollowed: when it has effects.
        """
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        found = self._known.get(id(jaxpr))
        if found is None:
            found = self._known[id(jaxpr)] = self._followed(jaxpr)
        return found

    def _followed(self, jaxpr: Any) -> _Inputs:
        held = {variable: 1 << i for i, variable in enumerate(jaxpr.invars)}

        def inputs_of(atoms: Sequence[Any]) -> _Inputs:  # constants have a value, and no name
            return [0 if hasattr(atom, "val") else held.get(atom, 0) for atom in atoms]

        for equation in jaxpr.eqns:
            if equation.effects:
                raise _NotFollowed
            given, outputs = inputs_of(equation.invars), equation.outvars
            rule = _FLOW_RULES.get(equation.primitive.name)
            found = None if rule is None else rule(self, equation.params, given)
            held.update(zip(outputs, found or [_union(given)] * len(outputs), strict=True))
        return inputs_of(jaxpr.outvars)

    def through(self, jaxpr: Any, given: _Inputs) -> _Inputs:
        """The same of a jaxpr within another, whose arguments are computed from these."""
        found: dict[int, int] = {}
        for each in (results := self.of(jaxpr)):
            if each not in found:
                found[each] = _union(one for i, one in enumerate(given) if each >> i & 1)
        return [found[each] for each in results]

    def call(self, params: Any, given: _Inputs) -> _Inputs:
        """Of a call of a jaxpr."""
        name = "jaxpr" if "jaxpr" in params else "call_jaxpr"
        return self.through(params[name], given)

    def cond(self, params: Any, given: _Inputs) -> _Inputs:
        """Of a choice, which each result depends on."""
        index, *operands = given
        branches = [self.through(branch, operands) for branch in params["branches"]]
        return [_union(each) | index for each in zip(*branches, strict=True)]

    def scan(self, params: Any, given: _Inputs) -> _Inputs:
        """Of a loop over rows."""
        if "num_consts" in params:
            first, count = params["num_consts"], params["num_carry"]
        else:  # since jax 0.11
            first, count, _ = (len(list(part)) for part in params["ft_in"].update(given).unpack())
        end = first + count
        constants, rows, body = given[:first], given[end:], params["jaxpr"]

        def step(carry: _Inputs) -> _Inputs:
            return self.through(body, [*constants, *carry, *rows])

        carry = _settled(given[first:end], lambda carry: step(carry)[: len(carry)])
        return [*carry, *step(carry)[len(carry) :]]

    def loop(self, params: Any, given: _Inputs) -> _Inputs:
        """Of a loop with a condition, which each result depends on."""
        first = params["cond_nconsts"]
        end = first + params["body_nconsts"]

        def step(carry: _Inputs) -> _Inputs:
            goes_on = _union(self.through(params["cond_jaxpr"], [*given[:first], *carry]))
            body = self.through(params["body_jaxpr"], [*given[first:end], *carry])
            return [each | goes_on for each in body]

        return _settled(given[end:], step)


def _union(given: Iterable[int]) -> int:
    return functools.reduce(operator.or_, given, 0)


def _settled(carry: _Inputs, step: Callable[[_Inputs], _Inputs]) -> _Inputs:
    """What the state of a loop may be computed from, after any number of rounds."""
    for _ in range(_MOST_ROUNDS):
        after = [one | other for one, other in zip(carry, step(carry), strict=True)]
        if after == carry:
            return carry
        carry = after
    raise _NotFollowed


_FLOW_RULES: Final[dict[str, Callable[[_Flow, Any, _Inputs], _Inputs]]] = {
    **dict.fromkeys(
        ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"), _Flow.call
    ),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), _Flow.call),
    "cond": _Flow.cond,
    "scan": _Flow.scan,
    "while": _Flow.loop,
}
"""By primitive. Each result of any other may be computed from each of its arguments."""
