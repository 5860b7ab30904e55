"""The instructions of a code object, and the patterns in them that say how a value is used.

Those of CPython 3.11 to 3.13. An instruction that is not known ends a chain, which reads more than
necessary and never less.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType
from typing import Any, Final, NamedTuple

from jaxd_protocol.fingerprint.model import Step, Steps

BoundName = tuple[str, "tuple[str, ...] | None"]
"""A variable that an import statement binds, and the attribute path from the module that the
statement names; None for its top-level package, which `import a.b` binds."""

_NO_EFFECT: Final = frozenset(
    {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME", "COPY_FREE_VARS"}
)
_ATTRIBUTE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_STORE: Final = frozenset({"STORE_FAST", "STORE_NAME", "STORE_DEREF", "STORE_GLOBAL"})
_MUTATORS: Final = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
        "sort",
        "reverse",
        "update",
    ]
)


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        op: its name.
        value: what it is about: a name, a constant.
        arg: the number in the bytecode.
        line: where it stands.
        target: whether a jump leads here.
        offset: in the bytecode.
    """

    op: str
    value: Any
    arg: int
    line: int
    target: bool
    offset: int = -1


class Instructions(list[Instruction]):
    """Those of a code object that do something, in order."""

    def __init__(self, code: CodeType) -> None:
        super().__init__()
        line, target = code.co_firstlineno, False
        for each in dis.get_instructions(code):
            if each.starts_line and each.positions is not None:
                line = each.positions.lineno or line
            target = target or each.is_jump_target
            if each.opname in _NO_EFFECT:
                continue  # a jump to a prefix is a jump to what it prefixes
            self.append(
                Instruction(each.opname, each.argval, each.arg or 0, line, target, each.offset)
            )
            target = False

    def loads_constant(self, index: int) -> bool:
        """Whether any of them loads this constant."""
        return any(each.arg == index for each in self if dis.opmap[each.op] in dis.hasconst)

    def assigned_constants(self, names: frozenset[str]) -> set[int]:
        """Constants that are loaded only to be assigned to one of these names."""
        found, others = set[int](), set[int]()
        for each, after in pairwise(self):
            if dis.opmap[each.op] in dis.hasconst:
                is_assigned = after.op == "STORE_NAME" and after.value in names
                (found if is_assigned else others).add(each.arg)
        return found - others

    def _at(self, at: int, *ops: str) -> Instruction | None:
        """The instruction there, if it is one of these and nothing jumps to it."""
        if at >= len(self):
            return None
        each = self[at]
        return each if each.op in ops and not each.target else None

    def chain(self, at: int) -> tuple[Steps, int]:
        """The steps from a value that was just loaded, and where they end."""
        steps: list[Step] = []
        while True:
            attribute = self._at(at, *_ATTRIBUTE)
            key = self._at(at, "LOAD_CONST")
            if attribute is not None:
                steps.append(("a", attribute.value))
                at += 1
            elif key is not None and type(key.value) in (str, int) and self._item(at):
                end = self._item(at)
                steps.append(("i", key.value))
                if end - at > 2:
                    return (*steps, ("+", None)), end
                at = end
            elif self._augmented(at):
                steps.append(("a", self[at + 1].value))
                return (*steps, ("+", None)), at + 2
            else:
                break
        stored = self._at(at, "STORE_ATTR")
        if stored is not None:
            steps.append(("w", stored.value))
        elif (not steps or steps[-1][0] == "a") and self._called_with_constant(at):
            steps.append(("c", self[at].value))
        return tuple(steps), at

    def _item(self, at: int) -> int:
        """Where `[constant]`, whose constant is loaded at `at`, ends; 0 when it is none."""
        if self._at(at + 1, "BINARY_SUBSCR"):
            return at + 2
        copies = self._at(at + 1, "COPY") and self._at(at + 2, "COPY")
        return at + 4 if copies and self._at(at + 3, "BINARY_SUBSCR") else 0  # x[k] += …

    def _augmented(self, at: int) -> bool:
        """Whether this is `value.name += …`: a copy of it is assigned to afterwards."""
        copy = self._at(at, "COPY")
        return copy is not None and copy.arg == 1 and self._at(at + 1, "LOAD_ATTR") is not None

    def _called_with_constant(self, at: int) -> bool:
        """Whether a call follows whose first argument is the constant loaded at `at`."""
        first = self._at(at, "LOAD_CONST")
        if first is None or type(first.value) is not str:
            return False
        one = self._at(at + 1, "CALL")
        if one is not None:
            return one.arg == 1
        simple = self._at(at + 1, "LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF")
        two = self._at(at + 2, "CALL")
        return simple is not None and two is not None and two.arg == 2

    def is_written(self, steps: Steps, at: int) -> bool:
        """Whether the value that was loaded before `at` is changed by what follows."""
        if steps and steps[-1][0] in "wc+":
            return steps[-1][0] != "c" or (len(steps) > 1 and steps[-2][1] in _MUTATORS)
        if steps and steps[-1][0] == "a" and steps[-1][1] in _MUTATORS:
            return True
        above = 0  # values on the stack above ours
        for each in self[at : at + 200]:
            if each.target or each.op in ("COPY", "SWAP", "UNPACK_SEQUENCE"):
                return False
            if each.op in ("STORE_SUBSCR", "DELETE_SUBSCR") and above == 1:
                return True
            above += dis.stack_effect(dis.opmap[each.op], _stack_argument(each), jump=False)
            if above <= 0:
                return False
        return False

    def from_names(self, at: int) -> Iterator[BoundName]:
        """What `from … import …` binds, whose names begin at `at`."""
        while self._at(at, "IMPORT_FROM"):
            stored = self._at(at + 1, *_STORE)
            if stored is None:
                return
            yield stored.value, (self[at].value,)
            at += 2

    def module_names(self, at: int, name: str) -> list[BoundName]:
        """What `import name` binds, with or without `as`."""
        stored = self._at(at, *_STORE)
        if stored is not None:
            return [(stored.value, () if "." not in name else None)]
        while self._at(at, "IMPORT_FROM", "SWAP", "POP_TOP"):  # import a.b as c
            at += 1
        stored = self._at(at, *_STORE)
        return [] if stored is None else [(stored.value, ())]


def _stack_argument(each: Instruction) -> int | None:
    return each.arg if dis.opmap[each.op] >= dis.HAVE_ARGUMENT else None
