"""What `jax.export` has written, read and looked at: the private names of jax that this takes.

A program is data, but it can call native code of the process by name, wait for the host, and hold
pointers. So each of its operations is looked at before any of it is given to the compiler, and
what is not known to be harmless is refused by name. Native code is called in just the ways in which
jax calls it, see `native_calls`.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_exported.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
from jax import export

from jaxd_protocol.errors import ConfigurationError, NotPermitted, ProtocolError
from jaxd_server.jax_compat.native_calls import CONTRACTS, NativeCall, native_calls, written_by_jax

_DIALECTS: Final = frozenset({"builtin", "chlo", "func", "sdy", "shape", "stablehlo"})
"""Operations of these are computed; of others it is not known."""

_HOST_OPERATIONS: Final = frozenset({"infeed", "outfeed", "recv", "send"})
"""They would wait for the host for ever."""

_MAX_KINDS: Final = 1000
"""Ways of calling native code that are looked at in one program: each may take jax 20 ms."""


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


def open_program(data: bytes, unchecked: frozenset[str] = frozenset()) -> Callable[..., list[Any]]:
    """The program that a client has exported: takes leaves, returns a list of leaves.

    Args:
        data: what `jax.export` has written.
        unchecked: native code that it may call with any shapes, beside what jax itself calls.

    Raises:
        ProtocolError: when it is none, or none of that form.
        NotPermitted: when it calls what it may not.
    """
    try:
        exported = export.deserialize(bytearray(data))
        operations = _operations(exported)
    except Exception as error:  # of any type: flatbuffers and MLIR have many
        raise ProtocolError(
            f"an exported program cannot be read: {type(error).__name__}. Use a jax on the client "
            f"that is about as old as the server's ({jax.__version__})."
        ) from error
    inputs: Any = jax.tree.structure(((0,) * len(exported.in_avals), {}))
    outputs: Any = jax.tree.structure([0] * len(exported.out_avals))
    avals = (*exported.in_avals, *exported.out_avals)
    # what is looked at here must not become something else later
    has_more = not all(type(size) is int for aval in avals for size in aval.shape)
    has_more |= bool(exported.ordered_effects or exported.unordered_effects or exported.has_vjp())
    if exported.in_tree != inputs or exported.out_tree != outputs or has_more:
        raise ProtocolError(
            "an exported program does not only take and return flat lists of arrays of known "
            "sizes. Use a client of the same jaxd."
        )
    _refuse(operations, unchecked)

    def program(*leaves: Any) -> list[Any]:
        results: list[Any] = exported.call(*leaves)
        return results

    return program


def _refuse(operations: Sequence[tuple[str, NativeCall | None]], unchecked: frozenset[str]) -> None:
    """Raises `NotPermitted` for operations that are not known to be harmless."""
    kinds = sum(1 for _, call in operations if call is not None and call.target not in unchecked)
    if kinds > _MAX_KINDS:
        raise NotPermitted(
            f"the exported program calls native code in {kinds} different ways, and this server "
            f"looks at {_MAX_KINDS} in a program. Make several functions of it."
        )
    for name, call in operations:
        dialect, _, of_dialect = name.partition(".")
        if call is None and (dialect not in _DIALECTS or of_dialect in _HOST_OPERATIONS):
            raise NotPermitted(
                f"the exported program uses {name}, which this server does not run. Leave out "
                "callbacks, prints and kernels of your own, or use a server that takes code."
            )
        if call is not None and call.target not in unchecked and not written_by_jax(call):
            raise _call_refused(call)


def _call_refused(call: NativeCall) -> NotPermitted:
    if call.target in CONTRACTS:
        return NotPermitted(
            f"the exported program calls {call}, which is not how jax {jax.__version__} calls "
            "it, and its shapes, layouts and attributes would not be checked by anybody else. "
            "Export it with the jax of the server, and use jax.numpy.linalg."
        )
    return NotPermitted(
        f"the exported program calls {call.target}, which this server does not run. Leave out "
        "callbacks, prints and kernels of your own; or have whoever runs the server start it "
        f"with --allow-target {call.target}, if that native code does no harm whatever the "
        "shapes and attributes that it is called with: nobody checks these."
    )


def _operations(exported: export.Exported) -> list[tuple[str, NativeCall | None]]:
    """Each distinct operation of a program, at any depth."""
    from jax.interpreters import mlir

    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = False
        return list(dict.fromkeys(native_calls(exported.mlir_module(serialized=False))))
