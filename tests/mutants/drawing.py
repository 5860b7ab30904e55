"""Small faults in the product's functions, drawn with a seed."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = ("client/jaxd", "server/jaxd_server", "shared/jaxd_protocol")
_NO_EFFECT: Final = ("log", "logger", "_log", "warn")
"""Calls of which nothing but a line in a log is seen."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: which it is in, below the root of the repository.
        line: of the statement that it is in.
        function: its name.
        start: where the text begins that is replaced, in bytes of the file.
        end: where it ends.
        text: what stands there then.
        what: the change, in a few words.
    """

    file: str
    line: int
    function: str
    start: int
    end: int
    text: str
    what: str

    def applied(self, source: bytes) -> bytes:
        """The file with this fault."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def drawn(root: Path, seed: int, count: int) -> list[Mutant]:
    """So many mutants, at most one in a function; the same for the same source and seed."""
    chance = random.Random(seed)
    functions: dict[tuple[str, str, int], list[Mutant]] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for definition, mutant in _in_file(path, str(path.relative_to(root))):
                functions.setdefault((mutant.file, mutant.function, definition), []).append(mutant)
    sizes = [len(each) for each in functions.values()]
    chosen: dict[tuple[str, str, int], Mutant] = {}
    while len(chosen) < min(count, len(functions)):  # a long function is drawn more often
        key = chance.choices(list(functions), sizes)[0]
        chosen.setdefault(key, chance.choice(functions[key]))
    return list(chosen.values())


def _in_file(path: Path, name: str) -> Iterator[tuple[int, Mutant]]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in _statements(function):
                for node, text in (fault for make in _KINDS for fault in make(statement)):
                    start = starts[node.lineno - 1] + node.col_offset
                    end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
                    what = f"{ast.unparse(node)[:60]} → {text[:60]}"
                    place = (name, statement.lineno, function.name, start, end)
                    yield function.lineno, Mutant(*place, text, what)


def _statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.stmt]:
    """Those of the function itself, without those of functions and classes in it."""
    waiting: list[ast.stmt] = list(function.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            waiting.extend(getattr(statement, field, ()))
        for handler in getattr(statement, "handlers", ()):
            waiting.extend(handler.body)


_Faults = Iterator[tuple[ast.expr | ast.stmt, str]]
"""What is replaced, and by which text."""


def _removed(statement: ast.stmt) -> _Faults:
    """A call, a raise or an assignment to an attribute that is left out."""
    called = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(called, ast.Call):
        name = getattr(called.func, "attr", getattr(called.func, "id", ""))
        owner = getattr(getattr(called.func, "value", None), "id", "")
        if name not in _NO_EFFECT and owner not in _NO_EFFECT:
            yield statement, "pass"
    elif isinstance(statement, ast.Assign | ast.AugAssign):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(target, ast.Attribute | ast.Subscript):
            yield statement, "pass"
    elif isinstance(statement, ast.Raise):
        yield statement, "pass"


def _negated(statement: ast.stmt) -> _Faults:
    """A condition that is the opposite."""
    tests = [node.test for node in _own(statement) if isinstance(node, ast.IfExp)]
    if isinstance(statement, ast.If | ast.While):
        tests.append(statement.test)
    for test in tests:
        if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
            yield test, f"(not ({ast.unparse(test)}))"


def _half(statement: ast.stmt) -> _Faults:
    """`and` for `or`, and the other way round."""
    for node in _own(statement):
        if isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            yield node, "(" + word.join(f"({ast.unparse(each)})" for each in node.values) + ")"


_COMPARED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


def _compared(statement: ast.stmt) -> _Faults:
    """Another comparison; a bound that is off by one."""
    for node in _own(statement):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield node, f"({left} {_COMPARED[type(node.ops[0])]} {right})"


def _number(statement: ast.stmt) -> _Faults:
    """A number that is one more."""
    for node in _own(statement):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, f"({node.value} + 1)"


def _returned(statement: ast.stmt) -> _Faults:
    """Nothing instead of a result."""
    returned = statement.value if isinstance(statement, ast.Return) else None
    if returned is not None and getattr(returned, "value", returned) is not None:
        yield statement, "return None"


_KINDS: Final[tuple[Callable[[ast.stmt], _Faults], ...]] = (
    _removed,
    _negated,
    _half,
    _compared,
    _number,
    _returned,
)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of the statements in it."""
    waiting: list[ast.AST] = [
        value
        for name, value in ast.iter_fields(statement)
        if name not in {"body", "orelse", "finalbody", "handlers"}
        for value in (value if isinstance(value, list) else [value])
        if isinstance(value, ast.AST)
    ]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            continue  # what an f-string has inside has no place of its own before Python 3.12
        yield node
        waiting.extend(ast.iter_child_nodes(node))
