"""The content of a code object: what it does, whatever is said about it and wherever it stands.

The bytes of its instructions number the constants and names in the order in which the compiler met
them, and a docstring is met first: adding one renumbers them all. So the instructions are written
here, with the constants and names that they use in the order of their use.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import CodeType
from typing import Final

from jaxd_protocol.fingerprint.canonical_bytes import constant, digest
from jaxd_protocol.fingerprint.code.bytecode import HERE

_ABOUT_A_CLASS: Final = frozenset({"__doc__", "__firstlineno__", "__static_attributes__"})
"""Names that the body of a class or module assigns constants to, and that describe its source."""

_CONST_OPS: Final = frozenset(dis.hasconst)
_LOADS_CONSTANT: Final = frozenset({"LOAD_CONST"})
_NAME_OPS: Final = frozenset(dis.hasname)
_JUMPS: Final = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)

_FUTURE_ANNOTATIONS: Final = 0x1000000
_NESTED_OR_DOCUMENTED: Final = inspect.CO_NESTED | 0x4000000  # CO_HAS_DOCSTRING, after CPython 3.13
_COMPILERS: Final = frozenset({"compile", "eval", "exec"})
"""What inherits a `from __future__ import` of the code that calls it."""


_GENERATED_NAME: Final = re.compile(r"(__beartype_\w*?)\d{6,}")


def stable_names(names: Sequence[str]) -> list[str]:
    """The names of variables; those that beartype makes of an address are numbered instead."""
    found: dict[str, int] = {}
    stable = []
    for name in names:
        made = _GENERATED_NAME.fullmatch(name)
        number = made and found.setdefault(name, len(found))
        stable.append(name if made is None else f"{made[1]}{number}")
    return stable


def digest_of(
    code: CodeType, instructions: Sequence[dis.Instruction], inner: Callable[[CodeType], bytes]
) -> bytes:
    """The digest of what a code object does.

    Args:
        code: the code object.
        instructions: all of them, as `instructions_of` gives them.
        inner: gives the digest of nested code.
    """
    writer = _Writer(code, instructions)
    parts = (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_nlocals,
        _flags(code),
        code.co_name,
        tuple(stable_names(code.co_varnames)),
        code.co_freevars,
        code.co_cellvars,
        "".join(writer.text),
        tuple(writer.handlers()),
        tuple(writer.names),
        tuple(code.co_consts[index] for index in writer.constants),
    )
    return digest(constant(parts, inner))


def _flags(code: CodeType) -> int:
    """Without those about its place, its docstring, and what its annotations are made of."""
    flags = code.co_flags & ~_NESTED_OR_DOCUMENTED
    return flags & ~_FUTURE_ANNOTATIONS if _COMPILERS.isdisjoint(code.co_names) else flags


class _Writer:
    """Writes the instructions of one code object.

    Attributes:
        text: each instruction with its argument.
        constants: the numbers of the constants that are loaded, in order.
        names: those that are used, in order.
    """

    def __init__(self, code: CodeType, instructions: Sequence[dis.Instruction]) -> None:
        self._code = code
        self._places: dict[int, int] = {}  # offset to number among those that are written
        self.text: list[str] = []
        self.constants: dict[int, int] = {}
        self.names: dict[str, int] = {}
        kept = self._with_effect(instructions)
        self._end = len(kept)
        for each in kept:
            self._write(each)

    def _with_effect(self, instructions: Sequence[dis.Instruction]) -> list[dis.Instruction]:
        described = set[int]()
        if not self._code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class or module
            described = _descriptions(instructions)
        kept: list[dis.Instruction] = []
        for each in instructions:
            self._places[each.offset] = len(kept)
            if each.opname not in HERE.without_effect and each.offset not in described:
                kept.append(each)
        return kept

    def _write(self, each: dis.Instruction) -> None:
        argument = each.arg or 0
        if each.opcode in _CONST_OPS:
            argument = self.constants.setdefault(argument, len(self.constants))
        elif each.opcode in _NAME_OPS:
            bits = HERE.name_bits.get(each.opname, 0)
            number = self.names.setdefault(self._code.co_names[argument >> bits], len(self.names))
            argument = number << bits | argument & (1 << bits) - 1
        elif each.opcode in _JUMPS:
            argument = self._place(each.argval)
        elif each.opname in HERE.pairs:
            first, second = HERE.pairs[each.opname]
            self.text.append(f"{dis.opmap[first]} {argument >> 4};")
            self.text.append(f"{dis.opmap[second]} {argument & 15};")
            return
        self.text.append(f"{each.opcode} {argument};")

    def _place(self, offset: int) -> int:
        return self._places.get(offset, self._end)

    def handlers(self) -> Iterator[tuple[int, int, int, int]]:
        """The entries of its exception table: start, end, target, and depth with a flag."""
        numbers = _numbers(self._code.co_exceptiontable)
        for start, length, target, depth in zip(numbers, numbers, numbers, numbers, strict=True):
            at = (start * 2, (start + length) * 2, target * 2)
            yield (*map(self._place, at), depth)  # type: ignore[misc]


def _descriptions(instructions: Sequence[dis.Instruction]) -> set[int]:
    """The offsets of instructions that only give a class or module its docstring or its lines."""
    found = set[int]()
    for load, store in pairwise(instructions):
        is_named = store.opname == "STORE_NAME" and store.argval in _ABOUT_A_CLASS
        if is_named and load.opname in _LOADS_CONSTANT and not store.is_jump_target:
            found |= {load.offset, store.offset}
    return found


def _numbers(table: bytes) -> Iterator[int]:
    """Those of an exception table: six bits a byte, the first first, 64 where another follows."""
    number = 0
    for byte in table:
        number = number << 6 | byte & 63
        if not byte & 64:
            yield number
            number = 0
