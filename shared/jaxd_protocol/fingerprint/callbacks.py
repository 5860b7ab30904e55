"""Which functions a code object gives to jax to be called back, and does nothing else with.

What `jax.debug.callback` or `io_callback` is given runs in the client's process, on the objects
that are there then: a list that fills, a progress bar. It decides nothing about the program, so
what it holds must not be in the key. Only what stands as the first argument of such a call counts
as given; where that is not certain, it counts like everything else.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any, Final

__all__ = ["GIVEN", "given_to_callbacks"]

GIVEN: Final = (("!", None),)
"""The steps of a read whose value is only given to be called back."""

_PLAIN: Final = frozenset({"io_callback", "debug_callback"})
_ATTRIBUTES: Final = frozenset(
    {("debug", "callback"), ("experimental", "io_callback"), ("jax", "io_callback")}
)
_LOADS: Final = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLASSDEREF"}
)
_LOAD_ATTRIBUTE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CALLS: Final = frozenset({"PRECALL", "CALL", "CALL_KW"})
_PAIR: Final = "LOAD_FAST_LOAD_FAST"
_SILENT: Final = frozenset({"CACHE", "EXTENDED_ARG", "PUSH_NULL"})
_MADE: Final = frozenset({"MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"})


def given_to_callbacks(code: CodeType) -> tuple[frozenset[int], frozenset[int]]:
    """Where names are loaded that are only given to be called back, and functions made.

    Returns:
        Offsets of the loads (of two at once the first is meant), and the `id` of the code of
        functions that are made in place.
    """
    if _PLAIN.isdisjoint(code.co_names) and "callback" not in code.co_names:
        names = (*code.co_varnames, *code.co_freevars)
        if _PLAIN.isdisjoint(names):
            return _NOTHING
    found = list(dis.get_instructions(code))
    loads, made = set[int](), set[int]()
    for at in range(len(found)):
        if _is_callback(found, at):
            _note(_first_argument(found, at + 1), loads, made)
    return frozenset(loads), frozenset(made)


_NOTHING: Final[tuple[frozenset[int], frozenset[int]]] = (frozenset(), frozenset())


def _is_callback(found: list[dis.Instruction], at: int) -> bool:
    """Whether a function of jax is loaded there that has things called back."""
    each = found[at]
    if each.opname in _LOADS:
        return each.argval in _PLAIN
    if each.opname not in _LOAD_ATTRIBUTE:
        return False
    before = next((one for one in reversed(found[:at]) if one.opname != "CACHE"), None)
    return before is not None and (before.argval, each.argval) in _ATTRIBUTES


def _first_argument(found: list[dis.Instruction], start: int) -> list[dis.Instruction]:
    """The instructions that make the first argument of the call that begins there."""
    depth, end = 0, start
    for at in range(start, len(found)):
        each = found[at]
        if each.is_jump_target or each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            return []
        if each.opname in _CALLS and depth == (each.arg or 0) + (each.opname == "CALL_KW"):
            first = next(one for one in found[start:] if one.opname not in _SILENT)
            is_pair = end == start and first.opname == _PAIR  # of two arguments
            return [first] if is_pair else found[start:end]
        if each.opname == "CALL_FUNCTION_EX" and depth <= 2:
            return []
        depth += dis.stack_effect(each.opcode, each.arg, jump=False)
        if depth < 0:
            return []
        if depth == 1:
            end = at + 1
    return []


def _note(argument: list[dis.Instruction], loads: set[int], made: set[int]) -> None:
    argument = [each for each in argument if each.opname not in ("CACHE", "EXTENDED_ARG")]
    if not argument:
        return
    first, *rest = argument
    if first.opname == _PAIR:
        if not rest:
            loads.add(first.offset)
        return
    if first.opname in _LOADS and all(each.opname == "LOAD_ATTR" for each in rest):
        loads.add(first.offset)
        return
    codes: list[Any] = [each.argval for each in argument if isinstance(each.argval, CodeType)]
    if argument[-1].opname in _MADE and len(codes) == 1:
        made.add(id(codes[0]))
