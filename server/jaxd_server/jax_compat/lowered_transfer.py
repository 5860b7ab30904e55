"""Lowered programs on their way from the process that traced them to the one that compiles them.

jax has no public way to write a lowered program down without losing what decides how it is called
(weak types, unused arguments, donation, shardings). So this writes its parts: the program itself as
StableHLO bytecode, and what jax has noted beside it, with devices by their numbers. The structure
of arguments and results stays behind: what arrives takes and returns plain lists of arrays.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_lowered_transfer.py.
"""

from __future__ import annotations

import io
import pickle
from operator import attrgetter
from typing import Any, Final

import jax
from jaxlib import xla_client
from jaxlib.mlir import ir

from jaxd_protocol.jax_objects.program_bytes import find_native_code
from jaxd_protocol.jit.options import Options
from jaxd_server.jax_compat.lowered import Obstacle, program_id


class NotTransferable(Exception):
    """A lowered program that only the process that lowered it can compile; the text says why."""


_parts: Final = attrgetter(
    "_name", "_donated_invars", "_platforms", "_compiler_options_kvs", "_device_list"
)
"""What jax has noted beside a program, in the order in which it takes it."""


def disable_disk_cache() -> None:
    """Has jax keep nothing on disk: the worker keeps what a builder compiles."""
    jax.config.update("jax_enable_compilation_cache", False)


def pack_lowered(lowered: jax.stages.Lowered, obstacle: Obstacle | None = None) -> bytes:
    """The bytes from which `unpack_lowered` makes the program again in another process.

    That process has to be of the same user, with the same jax and devices.

    Args:
        lowered: what jax made of a function.
        obstacle: that of `program_id`.

    Raises:
        NotTransferable: when it holds what is only in this process, such as a host callback, or
            when this version of jax has moved what has to be written.
    """
    if obstacle is not None:
        raise NotTransferable(obstacle)
    try:
        lowering: Any = lowered._lowering
        leaves = tuple(jax.tree.leaves(lowered.args_info))
        outputs = len(lowering.compile_args["global_out_avals"])
        bytecode, file = io.BytesIO(), io.BytesIO()
        lowering.stablehlo().operation.write_bytecode(file=bytecode)
        facts = lowering.compile_args
        whole = bytecode.getvalue(), _parts(lowering), facts, leaves, outputs
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(whole)
    except Exception as error:  # whatever a newer jax raises, and what cannot be pickled
        raise NotTransferable(f"{type(error).__name__}: {error}") from error
    return file.getvalue()


def unpack_lowered(data: bytes) -> jax.stages.Lowered:
    """The program that `pack_lowered` wrote, to be compiled here; flat, as the ones on disk.

    Args:
        data: what another process of this server wrote: reading it can run code.

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


class _Pickler(pickle.Pickler):
    """Writes devices by their numbers, and the backend as that of the reader."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, xla_client.Device):
            return value.id
        return "client" if isinstance(value, xla_client.Client) else None


class _Unpickler(pickle.Unpickler):
    """Finds devices and backend in this process."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._devices = {device.id: device for device in jax.devices()}

    def persistent_load(self, pid: Any) -> Any:
        return jax.devices()[0].client if pid == "client" else self._devices[pid]
