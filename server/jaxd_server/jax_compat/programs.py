"""The private names of jax around compiled programs; those around lowered ones are in `lowered`.

A program is *flat* here: it takes the leaves of the arguments and returns a list of leaves, so that
no class of a user's is needed to load it or to run it. Where a name has moved in a newer jax,
programs are neither shared nor kept, and run the public way: `prepare` logs that; no call fails.

Verified on jax 0.10.2 and 0.11.2 by tests/server/jax_compat/test_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, cast

import jax
import numpy as np
from jax.experimental import serialize_executable

from jaxd_protocol.errors import LostUpdateError
from jaxd_protocol.jax_objects.program_bytes import Serialized, find_lapack, load_compiled
from jaxd_protocol.jit.options import Options
from jaxd_server.jax_compat.lowered import (
    device_ids,
    program_id,
    register_own_targets,
)
from jaxd_server.runtime.logs import log_event

Flat = Callable[..., list[Any]]
"""A program that is called with the leaves of `(args, kwargs)` and returns those of the result."""

_MUCH: Final = 256 << 20
"""Memory of a call that is worth waiting for."""


class NotSerializable(Exception):
    """This program, or any with this version of jax, cannot be written or read."""


class Loaded:
    """A program that was read from bytes. It runs, and there is no way to write it.

    jax writes such a program again without an error, but without its code: what is read from that
    fails when it is called. So only what was compiled in this process is ever written, and the
    bytes of anything else are passed on as they were.

    Args:
        compiled: what jax has read.

    Attributes:
        run: calls it.
        memory_analysis: as jax's.
        cost_analysis: likewise.
        as_text: likewise.
    """

    __slots__ = ("as_text", "cost_analysis", "memory_analysis", "run")

    def __init__(self, compiled: jax.stages.Compiled) -> None:
        self.run: Flat = compiled.__call__
        self.memory_analysis = compiled.memory_analysis
        self.cost_analysis = compiled.cost_analysis
        self.as_text = compiled.as_text

    def __call__(self, *leaves: Any) -> list[Any]:
        """Runs it."""
        return self.run(*leaves)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a program that was read from bytes cannot be written.")


def direct(program: Flat) -> Flat:
    """What runs a program with one call less in between, where there is such a thing."""
    return program.run if isinstance(program, Loaded) else program


_missing: Final[set[str]] = set()
"""What `prepare` found to be impossible with this version of jax."""


def prepare() -> tuple[str, ...]:
    """To be called once at the worker's start, before any client's code runs; starts the backend.

    Notes which native code is jaxlib's own, and tries everything out with a small program.

    Returns:
        What cannot be done with this version of jax, of "flat", "keep" and "share"; also logged.
    """
    register_own_targets()
    _missing.clear()
    _missing.update(_self_test())
    cannot = tuple(sorted(_missing))
    if cannot:
        log_event("jax_programs_limited", cannot=cannot, jax=jax.__version__)
    return cannot


def compile_flat(lowered: jax.stages.Lowered) -> Flat:
    """Compiles it for calls with the leaves of `(args, kwargs)` without statics, unused ones too.

    Raises:
        Exception: whatever the compiler raises.
    """
    compiled = lowered.compile()
    if "flat" in _missing:
        return _Plain(compiled)
    try:
        return _flat(compiled)
    except (AttributeError, TypeError, ValueError):
        return _Plain(compiled)


def serialize(program: Flat) -> bytes:
    """The bytes from which `load` makes the program again, in this process or another.

    Raises:
        NotSerializable: when jax cannot write it.
    """
    if "keep" in _missing:
        raise NotSerializable(
            f"jax {jax.__version__} cannot write programs in a way that jaxd knows."
        )
    if isinstance(program, Loaded):
        raise NotSerializable("it was read from bytes, and XLA writes only what it compiled.")
    if not isinstance(program, jax.stages.Compiled):
        raise NotSerializable("it does not take plain arrays.")
    try:
        return bytes(serialize_executable.serialize(program)[0])
    except Exception as error:  # jax refuses with errors of any type
        raise NotSerializable(f"{type(error).__name__}: {error}") from error


def serialized(program: Flat, devices: tuple[int, ...]) -> Serialized:
    """A program that was compiled in this process, with what has to be known to load it.

    Args:
        program: what `compile_flat` has returned.
        devices: the ids of those that it runs on.

    Raises:
        NotSerializable: when jax cannot write it.
    """
    data, compiled = serialize(program), cast("Any", program)
    return Serialized(data, compiled.in_tree.num_leaves, compiled.out_tree.num_leaves, devices)


def load(data: bytes, inputs: int, outputs: int, devices: Sequence[int]) -> Loaded:
    """The program that `serialize` wrote, without tracing, lowering or compiling.

    `prepare` has to have been called in this process.

    Args:
        data: what this server wrote: changing it means running code here.
        inputs: the number of leaves that it takes, unused ones included.
        outputs: the number of leaves that it returns.
        devices: the ids of those that it was compiled for, in their order.

    Raises:
        NotSerializable: when this version of jax cannot load any.
        Exception: whatever jax raises when this one cannot be loaded here.
    """
    check_loading()
    program = load_compiled(data, inputs, outputs, devices)
    return Loaded(program)


def check_loading() -> None:
    """Returns when programs can be loaded with this version of jax.

    Raises:
        NotSerializable: when they cannot.
    """
    if "keep" in _missing:
        raise NotSerializable(
            f"jax {jax.__version__} cannot load programs in a way that jaxd knows."
        )


def device_bytes(program: Flat) -> int:
    """Bytes of its code and constants on the device; 0 where jax does not say, as on a CPU."""
    try:
        analysis = program.memory_analysis()  # type: ignore[attr-defined]
        return max(0, int(analysis.generated_code_size_in_bytes))
    except Exception:  # noqa: BLE001 - a number for people, and backends refuse in many ways
        return 0


def run_bytes(program: Flat) -> int:
    """Bytes of the machine's memory that a call takes beside its arguments, where that is much.

    0 where it is little, where jax does not say, and where the device has memory of its own: that
    refuses what it has no room for, whereas a system overcommits, and kills the process.
    """
    if jax.default_backend() != "cpu":
        return 0
    try:
        found = program.memory_analysis()  # type: ignore[attr-defined]
        taken = found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    except Exception:  # noqa: BLE001  as above
        return 0
    return int(taken) if taken >= _MUCH else 0


def analysed(program: Flat, *, with_text: bool = True) -> dict[str, Any]:
    """What jax says of a program: its optimized HLO, its memory and its cost, as JSON values.

    What jax does not say is empty: backends refuse in many ways, and for programs that were read
    from bytes more of it.

    Args:
        program: flat.
        with_text: whether to write the HLO, which may be long.
    """
    compiled: Any = program
    found: dict[str, Any] = {"text": "", "memory": {}, "cost": {}}
    with suppress(Exception):
        found["memory"] = memory_by_use(compiled.memory_analysis()) or {}
    with suppress(Exception):
        found["cost"] = cost_by_name(compiled.cost_analysis()) or {}
    with suppress(Exception):
        found["text"] = compiled.as_text() or "" if with_text else ""
    if not with_text:
        del found["text"]
    return found


def cost_by_name(cost: Any) -> dict[str, float] | None:
    """Numbers by name; None where the backend does not say."""
    return None if cost is None else {str(name): float(value) for name, value in cost.items()}


def memory_by_use(stats: Any) -> dict[str, int] | None:
    """Bytes by what they are for; None where the backend does not say."""
    if stats is None:
        return None
    found = {name: getattr(stats, name) for name in dir(stats) if not name.startswith("_")}
    return {name: number for name, number in found.items() if type(number) is int}


def is_nan_error(error: BaseException) -> bool:
    """Whether a program found a NaN or an infinity because jax was set to look for them."""
    return type(error).__name__ == "InternalFloatingPointError"


def is_runtime_error(error: BaseException) -> bool:
    """Whether XLA failed to run a program."""
    return isinstance(error, jax.errors.JaxRuntimeError)


def lost_update_in(error: BaseException) -> LostUpdateError | None:
    """The error of that kind which a function raised that a program called, as XLA quotes it."""
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return None
    _, found, text = str(error).rpartition(f"{LostUpdateError.__name__}: ")
    return LostUpdateError(text.partition("\n")[0]) if found else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device had no room for what a program needs."""
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return False
    first_line = str(error).partition("\n")[0]
    return first_line.startswith("RESOURCE_EXHAUSTED") or ": RESOURCE_EXHAUSTED:" in first_line


def wait_for_effects(arrays: Sequence[Any]) -> None:
    """Waits until a program is done that this thread has started, and all that it called back.

    Raises:
        Exception: when it has no results, and something that it called failed. Otherwise
            reading a result raises it.
    """
    try:
        jax.block_until_ready(arrays)
    except Exception:  # noqa: BLE001  see above
        with suppress(Exception):
            jax.effects_barrier()
    else:
        jax.effects_barrier()


class _Plain:
    """A flat program by public names only: slower, and never kept."""

    def __init__(self, compiled: jax.stages.Compiled) -> None:
        self._compiled = compiled
        self.memory_analysis = compiled.memory_analysis
        self.cost_analysis = compiled.cost_analysis
        self.as_text = compiled.as_text

    def __call__(self, *leaves: Any) -> list[Any]:
        args, kwargs = jax.tree.unflatten(self._compiled.in_tree, leaves)
        return jax.tree.leaves(self._compiled(*args, **kwargs))


def _flat(compiled: Any) -> Flat:
    """The same executable with flat trees around it; jax's fast path stays as it was."""
    if compiled._params.is_high:
        return _Plain(compiled)  # its arguments are more than arrays
    return jax.stages.Compiled(
        compiled._executable,
        compiled._params.const_args,
        (tuple(jax.tree.leaves(compiled.args_info)), {}),
        jax.tree.structure([0] * compiled.out_tree.num_leaves),
        no_kwargs=True,
    )


def _self_test() -> set[str]:
    """What does not work here, tried out with a small program."""
    leaves = (np.zeros(2, np.float32), np.ones(2, np.int32))
    lowered = jax.jit(lambda a, b: {"b": b + 1, "a": a * 2}).lower(*leaves)
    renamed = jax.jit(lambda x, y: {"y": y + 1, "x": x * 2}).lower(*leaves)
    name, obstacle = program_id(lowered, Options())
    is_shared = obstacle is None and name == program_id(renamed, Options())[0]
    cannot: set[str] = set() if is_shared else {"share"}
    try:
        program = _flat(lowered.compile())
        _check(program(*leaves))
    except Exception:  # noqa: BLE001 - whatever a newer jax raises
        return cannot | {"flat", "keep"}
    try:
        find_lapack()
        _check(load(serialize(program), 2, 2, device_ids(lowered))(*leaves))
    except Exception:  # noqa: BLE001 - the same
        return cannot | {"keep"}
    return cannot


def _check(results: list[Any]) -> None:
    if [np.asarray(result).tolist() for result in results] != [[0.0, 0.0], [2, 2]]:
        raise ValueError("a flat program gives other results than the function.")
