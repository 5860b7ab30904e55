"""What `jax.export` has written, read and looked at: the private names of jax that this takes.

A program is data, but it can call native code of the process by name, wait for the host, and hold
pointers. So each of its operations is looked at before any of it is given to the compiler, and
what is not known to be harmless is refused by name.

Verified on jax 0.10.2 and 0.11.2 by tests/server/test_jax_exported.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import jax
from jax import export

from jaxd_protocol.errors import ConfigurationError, NotPermitted, ProtocolError

__all__ = ["allowed_targets", "open_program", "require_export"]

_DIALECTS: Final = frozenset({"builtin", "chlo", "func", "sdy", "shape", "stablehlo"})
"""Operations of these are computed; of others it is not known."""

_OF_THE_HOST: Final = frozenset({"infeed", "outfeed", "recv", "send"})
"""They wait for somebody who does not come."""

_PLAIN: Final = frozenset(
    {
        "LayoutConstraint",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "annotate_device_placement",
        "mhlo.topk",
    }
)
"""What XLA itself understands, and nothing runs."""

_CODE: Final = ("callback", "tf.", "triton", "mosaic", "tpu_custom_call", "pallas", "Partitioning")
"""In the names of those that hold code or pointers: they are never jax's own here."""


def require_export() -> None:
    """Returns when exported programs can be read here.

    Raises:
        ConfigurationError: when a package is missing.
    """
    try:
        import flatbuffers  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "--accept exported needs the package flatbuffers. Run: pip install 'jaxd[exported]'"
        ) from error


def allowed_targets(more: Iterable[str] = ()) -> frozenset[str]:
    """Native functions that a program may call: jax's own linear algebra and the like, and `more`.

    Those of jax are what it promises to keep for programs that were exported.
    """
    try:
        from jax._src.export import _export

        stable: Iterable[str] = _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE
    except (AttributeError, ImportError):  # then only what XLA understands
        stable = ()
    own = {name for name in stable if not any(word in name for word in _CODE)}
    return _PLAIN | own | frozenset(more)


def open_program(data: bytes, allowed: frozenset[str]) -> Callable[..., list[Any]]:
    """The program that a client has exported: takes leaves, returns a list of leaves.

    Raises:
        ProtocolError: when it is none, or none of that form.
        NotPermitted: when it calls what it may not.
    """
    try:
        exported = export.deserialize(bytearray(data))
        names = set(_operations(exported.mlir_module()))
    except Exception as error:  # of any type: flatbuffers and MLIR have many
        raise ProtocolError(
            f"an exported program cannot be read: {type(error).__name__}. Use a jax on the client "
            f"that is about as old as the server's ({jax.__version__})."
        ) from error
    _refuse(names, allowed)
    inputs: Any = jax.tree.structure(((0,) * len(exported.in_avals), {}))
    outputs: Any = jax.tree.structure([0] * len(exported.out_avals))
    has_more = exported.ordered_effects or exported.unordered_effects or exported.has_vjp()
    if exported.in_tree != inputs or exported.out_tree != outputs or has_more:
        raise ProtocolError(
            "an exported program does not only take and return flat lists of arrays. "
            "Use a client of the same jaxd."
        )

    def program(*leaves: Any) -> list[Any]:
        results: list[Any] = exported.call(*leaves)
        return results

    return program


def _refuse(operations: set[tuple[str, str]], allowed: frozenset[str]) -> None:
    """Raises `NotPermitted` for operations that are not known to be harmless."""
    refused = sorted(
        target or name
        for name, target in operations
        if name.partition(".")[0] not in _DIALECTS
        or name.partition(".")[2] in _OF_THE_HOST
        or (target and target not in allowed)
    )
    if refused:
        raise NotPermitted(
            f"the exported program uses {', '.join(refused)}, which this server does not run. "
            "Leave out callbacks, prints and kernels of your own; or have whoever runs the server "
            f"start it with --allow-target {refused[0]}, if that is native code to be trusted."
        )


def _operations(text: str) -> Iterable[tuple[str, str]]:
    """Name, and target if it is a call of native code, of each operation, however deep."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    found: set[tuple[str, str]] = set()

    def note(operation: Any) -> Any:
        target = ""
        if operation.name == "stablehlo.custom_call":
            target = str(operation.attributes["call_target_name"].value)
        found.add((operation.name, target))
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = False
        ir.Module.parse(text).operation.walk(note)
    return found
