"""Compiled programs as bytes, and how jax makes programs of these again.

A program's bytes are a pickle around machine code: who may write them may run code in the process
that loads them. A worker loads what it or its builders wrote; a client what a worker of its own
user wrote, as the system says (`jaxd.tracing.here`).

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_programs.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import jax


class Serialized(NamedTuple):
    """A compiled program as bytes, and what loading it has to know beside them.

    Attributes:
        data: what jax has written.
        inputs: the number of leaves that it takes, unused ones included.
        outputs: the number of leaves that it returns.
        devices: the ids of those that it was compiled for, in their order.
    """

    data: bytes
    inputs: int
    outputs: int
    devices: tuple[int, ...]


def load_compiled(
    data: bytes, inputs: int, outputs: int, devices: Sequence[int]
) -> jax.stages.Compiled:
    """The program, without tracing, lowering or compiling; it takes and returns flat lists.

    Args:
        data: from whom this process takes code: loading it may run anything.
        inputs: as in `Serialized`.
        outputs: likewise.
        devices: likewise.

    Raises:
        Exception: whatever jax raises when it cannot be loaded here.
    """
    import jax
    from jax.experimental import serialize_executable

    find_native_code(data)
    known = {device.id: device for device in jax.devices()}
    found: jax.stages.Compiled = serialize_executable.deserialize_and_load(
        data,
        jax.tree.structure(((0,) * inputs, {})),
        jax.tree.structure([0] * outputs),
        execution_devices=[known[number] for number in devices],  # the default is all of them
    )
    return found


_LAPACK: Final = b"lapack"
"""Part of the name of each of its functions, which stands in the programs that call it."""


def find_native_code(program: bytes) -> None:
    """To be called before a program is loaded or compiled that another process has traced.

    Args:
        program: its bytes, in any form that names the native code which it calls.
    """
    if _LAPACK in program:
        _initialize_lapack()


@functools.cache
def _initialize_lapack() -> None:
    """Finds LAPACK's functions, which jax does only when it traces a call of one.

    A program that was traced elsewhere and calls one that was not found ends the process.
    Imports scipy, which takes a tenth of a second.
    """
    find_lapack()()


def find_lapack() -> Callable[[], None]:
    """What finds LAPACK's functions.

    Raises:
        Exception: when this version of jax has no such thing.
    """
    from jaxlib import lapack

    initialize: Any = lapack._lapack.initialize  # type: ignore[attr-defined]
    found: Callable[[], None] = initialize
    return found
