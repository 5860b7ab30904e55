"""What a lowered program is, in the same words on both ends: its digest, its facts, its text.

Uses private names of jax: the facts of a lowering, and what jax's own cache makes of a module.
Verified on jax 0.10.2 and 0.11.2 by tests/shared/jit/test_program_identity.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final

from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.program_text import canonical_lines

Facts = Mapping[str, Any]

_VERSION: Final = 1
"""To be raised when `program_digest` changes."""

_OF_PLACES: Final = frozenset(
    {"in_shardings", "out_shardings", "intermediate_shardings", "mesh", "devices"}
)
"""Facts that say where a program runs; how it is spread over devices is in its text as well."""

_SHOWN: Final = 2000


def program_digest(lowered: Any, options: Options) -> bytes:
    """Sixteen bytes, equal for equal programs in every process.

    The names of the function and of what is in its result do not count. Everything that decides
    what is computed from which leaves, where, and of what type the results are does, as do the
    settings in `options.config`.

    Raises:
        Exception: whatever a newer jax does where these names are read.
    """
    rest = (_VERSION, *facts_of(lowered, options).values())
    digest = hashlib.blake2b(repr(rest).encode(), digest_size=16)
    digest.update(_canonical_bytes(lowered))
    return digest.digest()


def in_types(facts: Any) -> list[Any]:
    """Those of all arguments, the unused ones included, and those of the ones that are used.

    Args:
        facts: `compile_args` of jax's lowering.
    """
    return [*facts["all_args_info"].in_avals, *facts["global_in_avals"]]


def facts_of(lowered: Any, options: Options) -> dict[str, Any]:
    """What decides about a program beside its text, by name."""
    lowering = lowered._lowering
    facts = lowering.compile_args
    return {
        "arguments that are used": sorted(facts["kept_var_idx"]),
        "donated arguments": list(lowering._donated_invars),
        "types of the arguments": [_type(aval) for aval in in_types(facts)],
        "types of the results": [_type(aval) for aval in facts["global_out_avals"]],
        "in_shardings": [_place(sharding) for sharding in facts["in_shardings"]],
        "out_shardings": [_place(sharding) for sharding in facts["out_shardings"]],
        "intermediate_shardings": [_place(each) for each in facts["intermediate_shardings"]],
        "layouts": [str(layout) for layout in (*facts["in_layouts"], *facts["out_layouts"])],
        "mesh": (str(facts["context_mesh"]), facts["committed"], facts["tuple_args"]),
        "devices": (
            [device.id for device in lowering._device_list],
            list(lowering._platforms),
        ),
        "compiler options": list(lowering._compiler_options_kvs),
        "settings": (options.compiler_options, options.config),
    }


def _type(aval: Any) -> tuple[Any, ...]:
    kind = (aval.shape, str(aval.dtype), aval.weak_type)  # for keys, the dtype says which
    return (*kind, str(aval.sharding), str(aval.memory_space))


def _place(sharding: Any) -> tuple[str, list[int]]:
    return str(sharding), [device.id for device in getattr(sharding, "_device_assignment", ())]


# the module --------------------------------------------------------------------------------------


def _canonical_bytes(lowered: Any) -> bytes:
    from jax._src import cache_key

    module = lowered.compiler_ir("stablehlo")
    with module.context:
        operation = _nameless(module)
        canonical: Any = cache_key._canonicalize_ir  # as for the keys of jax's own cache
        if hasattr(cache_key, "IgnoreCallbacks"):  # jax 0.10
            return bytes(canonical(operation, cache_key.IgnoreCallbacks.NO))
        return bytes(canonical(operation, ignore_custom_partitioning=False))


def _nameless(module: Any) -> Any:
    """A copy of the module without what only people read: its name, and names in the result."""
    from jaxlib.mlir import ir

    try:
        operation = module.operation.clone(ip=False)
    except TypeError:  # jax 0.10
        operation = module.operation.clone()
    operation.attributes["sym_name"] = ir.StringAttr.get("program")
    for function in operation.regions[0].blocks[0].operations:
        if "res_attrs" in function.attributes:
            function.attributes["res_attrs"] = ir.ArrayAttr.get(
                [_without_name(ir, attributes) for attributes in function.attributes["res_attrs"]]
            )
    return operation


def _without_name(ir: Any, attributes: Any) -> Any:
    named = {entry.name: entry.attr for entry in attributes if entry.name != "jax.result_info"}
    return ir.DictAttr.get(named)


# its text ----------------------------------------------------------------------------------------


def program_text(lowered: Any, options: Options) -> str:
    """A program as text, equal for programs that do the same with the same arguments.

    The facts that do not say where it runs, then the module; see `canonical_lines`.
    """
    facts = facts_of(lowered, options)
    heads = [f"{name}: {value}" for name, value in facts.items() if name not in _OF_PLACES]
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        text = _nameless(module).get_asm(print_generic_op_form=True, enable_debug_info=False)
    return "\n".join([*heads, *canonical_lines(text)])


def first_difference(one: str, other: str) -> tuple[int, str, str] | None:
    """The first line in which two texts differ: its number, and both; None where they are equal."""
    lines = zip_longest(one.splitlines(), other.splitlines(), fillvalue="(nothing)")
    for number, (left, right) in enumerate(lines, 1):
        if left != right:
            return number, left.strip()[:_SHOWN], right.strip()[:_SHOWN]
    return None
