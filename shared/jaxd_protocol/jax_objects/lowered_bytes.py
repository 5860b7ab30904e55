"""Lowered programs as bytes, to be compiled in another process than the one that traced them.

jax has no public way to write a lowered program down without losing what decides how it is called
(weak types, unused arguments, donation, shardings). So this writes its parts: the program itself as
StableHLO bytecode, and what jax has noted beside it, with devices by their numbers. The structure
of arguments and results stays behind: what arrives takes and returns plain lists of arrays.

Uses private names of jax. Verified on jax 0.10.2 and 0.11.2 by
tests/server/jax_compat/test_lowered_transfer.py.
"""

from __future__ import annotations

import io
import pickle
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import jax

Bound = Literal["callbacks", "references", "effects", "constants"]
"""What binds a program to the process that lowered it.

Host callbacks, mutable references, other effects, constants that are passed as arguments.
"""

parts_of: Final = attrgetter(
    "_name", "_donated_invars", "_platforms", "_compiler_options_kvs", "_device_list"
)
"""What jax has noted beside a program, in the order in which it takes it."""


class NotTransferable(Exception):
    """A lowered program that only the process that lowered it can compile; the text says why."""


def bound_by(lowered: Any) -> Bound | None:
    """What binds a lowered program to its process; None where nothing does.

    Raises:
        Exception: whatever a newer jax raises where these names are read.
    """
    lowering = lowered._lowering
    facts = lowering.compile_args
    by_kind: dict[Bound, Any] = {
        "callbacks": facts["host_callbacks"] or facts["keepalive"],
        "references": facts["mut"],
        "effects": facts["ordered_effects"] or facts["unordered_effects"],
        "constants": lowering.const_args,
    }
    return next((kind for kind, found in by_kind.items() if found), None)


def devices_of(lowered: Any) -> list[int]:
    """The ids of the devices that a lowered program will run on, in their order.

    Raises:
        AttributeError: when a newer jax has moved that.
    """
    return [device.id for device in lowered._lowering._device_list]


def pack_lowered(lowered: jax.stages.Lowered, obstacle: str | None = None) -> bytes:
    """The bytes from which another process makes the program again.

    That process has to be of the same user, with the same jax and devices.

    Args:
        lowered: what jax made of a function.
        obstacle: why it must not be handed over, where that is known.

    Raises:
        NotTransferable: when it holds what is only in this process, such as a host callback, or
            when this version of jax has moved what has to be written.
    """
    import jax

    try:
        reason = obstacle or bound_by(lowered)
        if reason is not None:
            raise NotTransferable(reason)  # noqa: TRY301  one way out for all of these
        lowering: Any = lowered._lowering
        leaves = tuple(jax.tree.leaves(lowered.args_info))
        outputs = len(lowering.compile_args["global_out_avals"])
        bytecode, file = io.BytesIO(), io.BytesIO()
        lowering.stablehlo().operation.write_bytecode(file=bytecode)
        facts = lowering.compile_args
        whole = bytecode.getvalue(), parts_of(lowering), facts, leaves, outputs
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(whole)
    except NotTransferable:
        raise
    except Exception as error:  # whatever a newer jax raises, and what cannot be pickled
        raise NotTransferable(f"{type(error).__name__}: {error}") from error
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Writes devices by their numbers, and the backend as that of the reader."""

    def persistent_id(self, value: Any) -> Any:
        from jaxlib import xla_client

        if isinstance(value, xla_client.Device):
            return value.id
        return "client" if isinstance(value, xla_client.Client) else None
