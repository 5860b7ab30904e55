"""Holds programs that are kept on disk against a fresh build: the same data, the same bits?

Where they differ, something is wrong: with a key, with a file, or with the function, which is not
the same each time that it is traced. On a GPU it may also be that XLA has measured again which
kernels are the fastest, and has chosen others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

import jax
import numpy as np

from jaxd_protocol.errors import ProtocolError
from jaxd_server import jax_disk_cache
from jaxd_server.adopted_results import without_tokens
from jaxd_server.compiler import Compiler, LoweredFunction
from jaxd_server.function import Function
from jaxd_server.functions import Functions
from jaxd_server.inventory import arguments_text
from jaxd_server.jax_config import Config, configured
from jaxd_server.jax_private import is_key_array, key_data
from jaxd_server.kept_calls import KeptCall, call_name
from jaxd_server.made_up import made_up
from jaxd_server.marshal import (
    Arguments,
    build_arguments,
    dynamic,
    empty_leaves,
    leaves_of,
    parse_arguments,
)
from jaxd_server.programs import Program
from jaxd_server.progress import SILENT
from jaxd_server.shelf import Shelf

__all__ = ["Findings", "Verifier"]

_COUNTED: Final = frozenset({"stablehlo.constant", "stablehlo.compare", "stablehlo.return"})
_WATCHING: Final = "jax_debug_"
_MOST_BYTES: Final = 1 << 30


@dataclass(slots=True)
class Findings:
    """What came of a sample.

    Attributes:
        checked: how many programs were run beside a fresh build.
        same: how many of them gave the same bits.
        different: the others, each with what differs.
        skipped: those that could not be checked, each with the reason.
    """

    checked: int = 0
    same: int = 0
    different: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class _Skipped(Exception):
    """A program that cannot be checked; the message says why."""


class _Built(NamedTuple):
    lowered: LoweredFunction
    program: Program


class Verifier:
    """Builds anew what is on disk. Safe from any thread.

    Nothing that it builds is kept or answers a call. It does count as traced and compiled.

    Args:
        functions: where the code comes from; that of a function that is not in memory from disk.
        compiler: traces and compiles.
        shelf: what is on disk.
    """

    def __init__(self, functions: Functions, compiler: Compiler, shelf: Shelf) -> None:
        self._functions = functions
        self._compiler = compiler
        self._shelf = shelf

    def verify(self, count: int, go_on: Callable[[], bool] = lambda: True) -> Findings:
        """Checks a sample of the programs on disk, another one each time.

        Args:
            count: how many.
            go_on: asked before each; when it says no, those that were checked are all.
        """
        self._shelf.flush()
        kept = list(self._shelf.calls().items())
        random.shuffle(kept)
        findings = Findings()
        for name, call in kept:
            if findings.checked >= count or not go_on():
                break
            self._check(name, call, findings)
        return findings

    def _check(self, name: bytes, call: KeptCall, findings: Findings) -> None:
        try:
            difference = self._difference(name, call)
        except _Skipped as reason:
            findings.skipped.append(f"{_label(call)}: {reason}")
            return
        findings.checked += 1
        if difference is None:
            findings.same += 1
        else:
            findings.different.append(f"{_label(call)}: {difference}")

    def _difference(self, name: bytes, call: KeptCall) -> str | None:
        """What the kept program does otherwise than a fresh one; None when nothing."""
        kept = self._kept_program(call)
        function, arguments = self._call(call)
        if call_name(function, arguments) != name:
            raise _Skipped("it has data in it that was an argument, of which only the size is kept")
        fresh = self._build(function, arguments)
        ours, theirs = call.form, fresh.lowered.form
        if (without_tokens(ours), ours.order) != (without_tokens(theirs), theirs.order):
            return "its results have another structure"
        return self._compare(call, function, arguments, kept, fresh)

    def _kept_program(self, call: KeptCall) -> Program:
        if call.obstacle is not None:
            raise _Skipped(f"its program cannot be kept on disk: {call.obstacle}")
        if not self._shelf.is_current(call):
            raise _Skipped("packages have changed since it was built, so it is not used any more")
        try:
            return self._shelf.program(call.program)
        except LookupError:
            raise _Skipped("its program is not on disk, or cannot be loaded") from None

    def _call(self, call: KeptCall) -> tuple[Function, Arguments]:
        """The function, and arguments of the recorded shapes."""
        try:
            function = self._functions.obtain(call.key, _NOBODY)
            self._functions.unpack(function, _NOBODY)
            layout = parse_arguments(call.skeleton)
            arguments = build_arguments(
                layout, empty_leaves(layout, call.recorded.buffers()), function.statics
            )
        except Exception as error:  # such as a package that is gone
            raise _Skipped(f"its function or arguments cannot be made again: {error}") from error
        nbytes = sum(call.sizes) + sum(leaf.nbytes for leaf in layout.leaves if leaf.tag in "AK")
        if nbytes > _MOST_BYTES:
            raise _Skipped(f"it takes {nbytes:,} bytes of data, too much to be made up")
        return function, arguments

    def _build(self, function: Function, arguments: Arguments) -> _Built:
        name, options = function.name, function.options
        structure = jax.tree.structure(dynamic(arguments, function.statics))
        try:
            with self._compiler.room(), jax_disk_cache.bypassed():
                lowered = self._compiler.lower(
                    function.traceable,
                    name,
                    options,
                    arguments,
                    structure,
                    SILENT,
                    function.captured,
                )
                program = self._compiler.compile(lowered, name, options, SILENT)
        except Exception as error:
            raise _Skipped(f"it cannot be built anew: {error}") from error
        if _may_run_for_ever(lowered.lowered):
            raise _Skipped("it has a loop that only its data ends, and made-up data may not")
        return _Built(lowered, program)

    def _compare(
        self, call: KeptCall, function: Function, arguments: Arguments, kept: Program, fresh: _Built
    ) -> str | None:
        leaves = leaves_of(dynamic(arguments, function.statics))
        seed = int.from_bytes(call.program[:8])
        # Made-up data may well give a NaN, which is not what is looked for here.
        config = tuple(one for one in function.options.config if not one[0].startswith(_WATCHING))
        try:
            expected = _run(fresh.program, config, made_up(leaves, seed))
        except Exception as error:
            raise _Skipped(f"it does not run with made-up data: {error}") from error
        try:
            found = _run(kept, config, made_up(leaves, seed))  # anew: they may have been donated
        except Exception as error:  # noqa: BLE001  whatever jax raises
            return f"the kept program does not run: {error}"
        which = _first_difference(found, expected)
        if which is None:
            return None
        is_other = fresh.lowered.program != call.program
        return which + (", and it lowers to another program now" if is_other else "")


def _label(call: KeptCall) -> str:
    told = arguments_text(call.skeleton, call.parameters)
    return f"{call.name}({told}), key {call.key.hex()[:8]}"


def _run(program: Program, config: Config, leaves: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Types and bits of the results."""
    with configured(config):
        results = program.call(*leaves)
        return [_bits(result) for result in results]


def _bits(result: Any) -> tuple[Any, ...]:
    data = np.asarray(key_data(result) if is_key_array(result) else result)
    return str(result.dtype), data.shape, data.tobytes()


def _first_difference(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> str | None:
    if len(found) != len(expected):
        return f"it returns {len(found)} arrays instead of {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours[:2] != theirs[:2]:
            return f"array {number} of its results has another shape or dtype"
        if ours != theirs:
            return f"array {number} of its results has other bits"
    return None


def _may_run_for_ever(lowered: Any) -> bool:
    """Whether a loop in it is not simply counted: made-up data may never end it."""
    from jaxlib.mlir import ir

    found: list[None] = []

    def look(operation: Any) -> Any:
        if operation.name == "stablehlo.while" and not _is_counted(operation.regions[0].blocks[0]):
            found.append(None)
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(look)
    return bool(found)


def _is_counted(condition: Any) -> bool:
    """Whether a loop's condition only compares an integer, as that of `scan` does."""
    operations = list(condition.operations)
    compared = [each for each in operations if each.name == "stablehlo.compare"]
    return {each.name for each in operations} <= _COUNTED and all(
        str(operand.type).startswith(("tensor<i", "tensor<ui"))
        for each in compared
        for operand in each.operands
    )


class _Nobody:
    """Stands where a client would: what is not here cannot be asked for."""

    owner = b""

    def describe(self, key: bytes) -> NoReturn:
        raise ProtocolError("the function is not on disk, and no client is there to be asked.")

    def code(self, fingerprint: bytes) -> NoReturn:
        raise ProtocolError("the code is not on disk, and no client is there to be asked.")

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()


_NOBODY: Final = _Nobody()
