"""The instructions of CPython's bytecode, with a table of what differs for each of its versions.

What reads code sees one set of instructions, that of CPython 3.13 and earlier: those that a later
version has in their place are renamed. Opcodes stay as they are, for `dis.stack_effect`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping
from types import CodeType
from typing import Final, NamedTuple

from jaxd_protocol.errors import ConfigurationError

_PAIRS_OF_313: Final = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


class Bytecode(NamedTuple):
    """What differs between versions of CPython.

    Attributes:
        without_effect: instructions that do nothing for what is read.
        name_bits: how many bits of an instruction's argument are no number of a name; none for any
            other instruction that has a name.
        has_load_method: whether methods that are called have an instruction of their own; else a
            bit of LOAD_ATTR says so.
        null_first: whether the empty place of a call lies below what is called.
        pairs: instructions that are two in one, where both stand on one line.
        same_as: instructions that do what another one does, but for counting references.
        reads_as: instructions that do what another one does with another argument.
        subscript: the argument of BINARY_OP with which it is BINARY_SUBSCR; None where that exists.
        has_keywords: whether CALL_FUNCTION_EX always takes keywords; else a bit of it says so.
    """

    without_effect: frozenset[str] = frozenset({"CACHE", "EXTENDED_ARG", "NOP"})
    name_bits: Mapping[str, int] = {"LOAD_GLOBAL": 1, "LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}
    has_load_method: bool = False
    null_first: bool = False
    pairs: Mapping[str, tuple[str, str]] = _PAIRS_OF_313
    same_as: Mapping[str, str] = {}
    reads_as: Mapping[str, str] = {}
    subscript: int | None = None
    has_keywords: bool = False


BYTECODES: Final[Mapping[tuple[int, int], Bytecode]] = {
    (3, 11): Bytecode(
        name_bits={"LOAD_GLOBAL": 1, "LOAD_ATTR": 0},
        has_load_method=True,
        null_first=True,
        pairs={},
    ),
    (3, 12): Bytecode(null_first=True, pairs={}),
    (3, 13): Bytecode(),
    (3, 14): Bytecode(
        without_effect=frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN"}),
        same_as={
            "LOAD_FAST_BORROW": "LOAD_FAST",
            "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST",
        },
        reads_as={"LOAD_SMALL_INT": "LOAD_CONST"},
        subscript=26,
        has_keywords=True,
    ),
}
"""By version: each that is read has to be here."""


def bytecode_of(implementation: str, version: tuple[int, int]) -> Bytecode:
    """What is particular to the bytecode of an interpreter.

    Args:
        implementation: as `sys.implementation.name` has it.
        version: major and minor.

    Raises:
        ConfigurationError: when the code of that interpreter cannot be read.
    """
    if implementation == "cpython" and version in BYTECODES:
        return BYTECODES[version]
    name = f"{implementation} {'.'.join(map(str, version))}"
    oldest, *_, newest = (".".join(map(str, each)) for each in BYTECODES)
    raise ConfigurationError(
        f"jaxd reads the bytecode of functions, and cannot read that of {name}. Use CPython "
        f"{oldest} to {newest}, of the same minor version here and where the server runs: "
        f"python{newest} -m venv .venv, and install jaxd there."
    )


HERE: Final = bytecode_of(sys.implementation.name, sys.version_info[:2])
"""That of this process."""


def instructions_of(code: CodeType) -> list[dis.Instruction]:
    """The instructions of code, with the names that they have in CPython 3.13 and earlier."""
    listed = list(dis.get_instructions(code))
    return list(map(_renamed, listed)) if HERE.same_as else listed


def _renamed(each: dis.Instruction) -> dis.Instruction:
    same = HERE.same_as.get(each.opname)
    if same is not None:
        return each._replace(opname=same, opcode=dis.opmap[same])
    if each.opname == "BINARY_OP" and each.arg == HERE.subscript:
        return each._replace(opname="BINARY_SUBSCR")
    alike = HERE.reads_as.get(each.opname)
    return each if alike is None else each._replace(opname=alike)


def stack_effect(op: str, argument: int) -> int:
    """By how much an instruction of that name changes the height of the stack, without a jump."""
    if op not in dis.opmap:
        return -1  # BINARY_SUBSCR, where it is BINARY_OP
    opcode = dis.opmap[op]
    return dis.stack_effect(opcode, argument if opcode >= dis.HAVE_ARGUMENT else None, jump=False)


def jumps(op: str) -> bool:
    """Whether an instruction of that name may jump."""
    return dis.opmap.get(op) in _JUMPS


_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
