"""Lowered programs that arrive from the process that traced them, to be compiled in this one.

`jaxd_protocol.jax_objects.lowered_bytes` has the other end, and says what they consist of.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_lowered_transfer.py.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import jax
from jaxlib.mlir import ir

from jaxd_protocol.jax_objects.lowered_bytes import NotTransferable, pack_lowered
from jaxd_protocol.jax_objects.program_bytes import find_native_code
from jaxd_protocol.jit.options import Options
from jaxd_server.jax_compat.lowered import program_id


def disable_disk_cache() -> None:
    """Has jax keep nothing on disk: the worker keeps what a builder compiles."""
    jax.config.update("jax_enable_compilation_cache", False)


def unpack_lowered(data: bytes) -> jax.stages.Lowered:
    """The program that `pack_lowered` wrote, to be compiled here; flat, as the ones on disk.

    Args:
        data: what another process of this server, or of its user, wrote: reading it can run code.

    Raises:
        NotTransferable: when it cannot be read here.
    """
    from jax._src.interpreters import pxla
    from jax.interpreters import mlir

    try:
        whole = _Unpickler(io.BytesIO(data)).load()
        bytecode, (name, *parts), facts, leaves, outputs = whole
        find_native_code(bytecode)
        with mlir.make_ir_context():
            module = ir.Module.parse(bytecode)
        constants: list[Any] = []  # they are an obstacle
        lowering = pxla.MeshComputation(name, module, constants, *parts, **facts)
        structure = jax.tree.structure([0] * outputs)
        return jax.stages.Lowered(lowering, (leaves, {}), structure, no_kwargs=True)
    except Exception as error:  # whatever a newer jax raises
        raise NotTransferable(f"{type(error).__name__}: {error}") from error


def sample_program() -> tuple[bytes, bytes]:
    """A small program as it is handed over, and its name: for the other end to try out.

    Raises:
        NotTransferable: when this version of jax hands none over.
    """
    lowered = jax.jit(lambda a, b: {"sum": a + b, "twice": 2 * a}).lower(1.0, 2)
    name, obstacle = program_id(lowered, Options())
    return pack_lowered(lowered, obstacle), name


def can_unpack(data: bytes, name: bytes) -> bool:
    """Whether a program that another process packed is the same program here."""
    try:
        return program_id(unpack_lowered(data), Options()) == (name, None)
    except NotTransferable:
        return False


class _Unpickler(pickle.Unpickler):
    """Finds devices and backend in this process."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._devices = {device.id: device for device in jax.devices()}

    def persistent_load(self, pid: Any) -> Any:
        return jax.devices()[0].client if pid == "client" else self._devices[pid]
