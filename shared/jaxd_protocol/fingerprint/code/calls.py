"""Which values a code object gives to which parameters of the functions that it calls by name.

Only calls whose arguments stand one after the other, without a branch in between, are read.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

_HAS_LOAD_METHOD: Final = sys.version_info < (3, 12)
_CALLS: Final = frozenset({"CALL", "CALL_KW"})
_JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs})
_MAX_INSTRUCTIONS: Final = 300
_ENDS: Final = frozenset(
    {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "COPY", "SWAP"}
)


class Passed(NamedTuple):
    """An argument of a call.

    Attributes:
        callee: the global that is called, and the attributes that lead from it.
        place: the position of the argument, or its keyword.
        text: the second argument, where it is text in the code: as in ``getattr(cfg, "lr")``.
    """

    callee: tuple[str, ...]
    place: int | str
    text: str | None = None


class Instruction(Protocol):
    """What this module needs of an instruction."""

    @property
    def op(self) -> str:
        """Its name."""

    @property
    def value(self) -> Any:
        """What it is about."""

    @property
    def arg(self) -> int:
        """The number in the bytecode."""

    @property
    def target(self) -> bool:
        """Whether a jump leads here."""


def passed_arguments(
    code: Sequence[Instruction], constants: Sequence[Any]
) -> dict[int, tuple[int, Passed]]:
    """By the number of the instruction that begins it, the end of each argument, and what it is.

    Args:
        code: instructions.
        constants: of the code object.
    """
    found: dict[int, tuple[int, Passed]] = {}
    for at, each in enumerate(code):
        if each.op == "LOAD_GLOBAL":
            callee, first = _callee(code, at)
            if callee:
                found.update(_arguments(code, constants, callee, first))
    return found


def _callee(code: Sequence[Instruction], at: int) -> tuple[tuple[str, ...], int]:
    """What is called of the global that is loaded there, and where its arguments begin."""
    names = [code[at].value]
    if code[at].arg & 1:
        return tuple(names), at + 1
    for end in range(at + 1, min(at + 6, len(code))):
        each = code[end]
        if each.target or each.op not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        names.append(each.value)
        if each.op == "LOAD_METHOD" or (not _HAS_LOAD_METHOD and each.arg & 1):
            return tuple(names), end + 1
    return (), at


def _arguments(
    code: Sequence[Instruction], constants: Sequence[Any], callee: tuple[str, ...], first: int
) -> Iterator[tuple[int, tuple[int, Passed]]]:
    starts: list[int] = []
    keywords: tuple[str, ...] = ()
    named = depth = 0
    for at in range(first, min(first + _MAX_INSTRUCTIONS, len(code))):
        each = code[at]
        if each.target or each.op in _ENDS or dis.opmap[each.op] in _JUMPS:
            return
        if each.op == "KW_NAMES":
            if depth == _call_size(code, at + 1):
                keywords, named = constants[each.arg], at
            continue
        if each.op in _CALLS and each.arg == depth - (each.op == "CALL_KW"):
            if each.op == "CALL_KW":  # the names are on top
                named = starts.pop()
                keywords = code[named].value
            if len(starts) == each.arg:
                yield from _places(code, callee, [*starts, named or at], keywords)
            return
        if depth == len(starts):
            starts += [at] * (2 if each.op == "LOAD_FAST_LOAD_FAST" else 1)
        depth += _effect(each)
        if depth < 0:
            return
        del starts[depth:]


def _call_size(code: Sequence[Instruction], at: int) -> int:
    is_call = at < len(code) and code[at].op == "CALL"
    return code[at].arg if is_call else -1


def _effect(each: Instruction) -> int:
    if each.op == "CALL":  # on 3.11 a part of this is that of another instruction
        return -1 - each.arg
    opcode = dis.opmap[each.op]
    argument = each.arg if opcode >= dis.HAVE_ARGUMENT else None
    return dis.stack_effect(opcode, argument, jump=False)


def _places(
    code: Sequence[Instruction], callee: tuple[str, ...], starts: list[int], keywords: Any
) -> Iterator[tuple[int, tuple[int, Passed]]]:
    """Of arguments that begin and end at these instructions; the last is where the call begins."""
    count = len(starts) - 1
    positional = count - len(keywords)
    second = code[starts[1]] if positional > 1 else None
    text = second.value if second is not None and second.op == "LOAD_CONST" else None
    for number, (start, end) in enumerate(pairwise(starts)):
        place = number if number < positional else keywords[number - positional]
        known = text if type(text) is str and number == 0 else None
        yield start, (end, Passed(callee, place, known))
