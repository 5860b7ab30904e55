"""Programs as a hostile client would write them: what jax has exported, with something replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax import export


def rewritten(exported: export.Exported, old: str, new: str) -> bytes:
    """A program with another text, as its client would send it."""
    from jax._src.export._export import _module_to_bytecode
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    text = exported.mlir_module()
    assert old in text
    with mlir.make_ir_context():
        code = _module_to_bytecode(ir.Module.parse(text.replace(old, new)))
    return bytes(replace(exported, mlir_module_serialized=code).serialize())
