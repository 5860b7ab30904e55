"""The private names of jax around where programs run and where arrays lie.

jax traces a function alike for all devices that it does not name, so one trace serves all of them:
the program is *moved*. A program that names its devices (a mesh, a sharding, an argument that was
put somewhere) is *bound* to these.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_placement.py.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import serialize_executable

from jaxd_protocol.jax_objects.program_bytes import Serialized, find_native_code
from jaxd_protocol.pytree import dump_literal
from jaxd_server.jax_compat import programs
from jaxd_server.jax_compat.lowered import device_ids
from jaxd_server.jax_compat.programs import Loaded, NotSerializable

ArrayPlaces = tuple[tuple[int, Hashable], ...]
"""Number and sharding of each array that was placed explicitly."""


@cache
def _devices() -> tuple[Any, ...]:
    return tuple(jax.devices())


@cache
def are_several() -> bool:
    """Whether there is more than one device to choose from; starts jax's backend."""
    return len(_devices()) > 1


def index_of(device_id: int) -> int:
    """The index among jax's devices of the one with that id; -1: it is not in this process."""
    return next((i for i, device in enumerate(_devices()) if device.id == device_id), -1)


# arrays ------------------------------------------------------------------------------------------

_UNCHANGED: Final = nullcontext()


def placed(device: int) -> AbstractContextManager[Any]:
    """Within it, this is the default device of this thread."""
    return jax.default_device(_devices()[device]) if device else _UNCHANGED


def place_of(leaf: Any) -> Hashable | None:
    """The sharding of an array that was put somewhere on purpose; None for any other."""
    if isinstance(leaf, jax.Array) and leaf.committed:
        sharding: Hashable = leaf.sharding
        return sharding
    return None


def places_of(leaves: Sequence[Any]) -> ArrayPlaces:
    """Those of some arrays, of what has one."""
    found = ((number, place_of(leaf)) for number, leaf in enumerate(leaves))
    return tuple((number, place) for number, place in found if place is not None)


def place_name(sharding: Any) -> bytes:
    """A literal for a sharding that is the same in every process with the same devices."""
    devices = tuple(device.id for device in sharding._device_assignment)
    return dump_literal((type(sharding).__name__, str(sharding), devices))


# programs ----------------------------------------------------------------------------------------


def is_bound(lowered: jax.stages.Lowered) -> bool:
    """Whether the devices of a program follow from the program, and not from its caller."""
    try:
        facts = lowered._lowering.compile_args
        return bool(facts["committed"]) or device_ids(lowered) != (_devices()[0].id,)
    except (AttributeError, KeyError):
        return True


def is_known_as_bound(devices: Sequence[int], recorded: Sequence[bool]) -> bool:
    """Whether a program on disk is bound; recorded only where there are several devices.

    Raises:
        ValueError: when there are several, and it was written by a server with one.
    """
    if are_several() and len(recorded) != 1:
        raise ValueError("it is not recorded whether it may run on another device")
    return len(devices) > 1 or any(recorded)


def move_lowered(lowered: jax.stages.Lowered, device: int) -> jax.stages.Lowered:
    """A lowered program that is not bound, to be compiled for another device.

    A copy: jax may give the one that there is to others.
    """
    from jaxlib import xla_client

    lowering: Any = copy.copy(lowered._lowering)
    lowering._device_list = xla_client.DeviceList((_devices()[device],))
    lowering._executable = None
    moved = copy.copy(lowered)
    moved._lowering = lowering
    return moved


def read_program(program: Serialized, device: int | None) -> tuple[Loaded, tuple[int, ...]]:
    """A program, as `programs.load` reads it, and the ids of the devices that it runs on.

    Args:
        program: its bytes.
        device: the index of the one that it is wanted on; None when it is bound.
    """
    devices = program.devices
    wanted = devices if device is None else (_devices()[device].id,)
    if wanted == devices:
        return programs.load(*program), devices
    data, inputs, outputs, _ = program
    return load_on(data, inputs, outputs, _devices()[device or 0]), wanted


def load_on(data: bytes, inputs: int, outputs: int, device: Any) -> Loaded:
    """A program that is not bound, on whichever device it was compiled, loaded on this one.

    Args:
        data: what `programs.serialize` wrote.
        inputs: the number of leaves that it takes, unused ones included.
        outputs: the number of leaves that it returns.
        device: the one that it is to run on.

    Raises:
        NotSerializable: when this version of jax cannot do that.
        Exception: whatever jax raises when this one cannot be loaded there.
    """
    programs.check_loading()
    find_native_code(data)
    try:
        reader = _reader(data, device)
    except (AttributeError, ImportError, TypeError) as error:
        raise NotSerializable(
            f"jax {jax.__version__} moves programs in a way unknown to jaxd."
        ) from error
    unloaded, leaves, no_kwargs = reader.load()
    return Loaded(
        jax.stages.Compiled(
            unloaded.load(),
            [],
            jax.tree.unflatten(jax.tree.structure(((0,) * inputs, {})), leaves),
            jax.tree.structure([0] * outputs),
            no_kwargs=no_kwargs,
        )
    )


def _reader(data: bytes, device: Any) -> Any:
    """jax's own unpickler, with one device in place of each in the data."""
    from jax._src.compiler import get_compile_options

    options = get_compile_options(
        num_replicas=1,
        num_partitions=1,
        device_assignment=np.array([[device.id]]),
        backend=device.client,
    )

    unpickler: Any = serialize_executable._JaxPjrtUnpickler

    class Reader(unpickler):  # type: ignore[misc]
        def persistent_load(self, pid: Any) -> Any:
            if pid[0] == "device":
                return device
            if pid[0] == "exec":  # which has the device of its compilation in its own options
                return self.backend.deserialize_executable(
                    pid[1],
                    executable_devices=self.execution_devices,
                    compile_options=options,
                )
            return super().persistent_load(pid)

    return Reader(io.BytesIO(data), device.client, [device])
