"""Functions of a user's, from a text, in a module that is in no file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from textwrap import dedent, indent
from types import CodeType, ModuleType
from typing import Any

from jaxd_protocol.fingerprint import WalkResult, walk
from jaxd_protocol.fingerprint.code.reads import CodeFacts, facts_of
from jaxd_protocol.fingerprint.process_view import ProcessView

_SIGNS = {
    "a": ".{}",
    "i": "[{!r}]",
    "c": "({!r})",
    "w": "={}",
    "+": "+",
    "p": "→{0.place}",
    "r": "!r",
}


def define(source: str, name: str = "made_up", **names: Any) -> ModuleType:
    """A module of the user's own with that source; nobody else can import it."""
    module = ModuleType(name)
    vars(module).update(names)
    exec(compile(dedent(source), f"/home/user/{name}.py", "exec", dont_inherit=True), vars(module))
    return module


def function(body: str, parameters: str = "x", **names: Any) -> Any:
    """A function `f` with that body, among those globals."""
    text = f"def f({parameters}):\n" + indent(dedent(body).strip(), "    ")
    return define(text, **names).f


def code_of(body: str, parameters: str = "x") -> CodeType:
    """The code of such a function."""
    code = function(body, parameters).__code__
    assert isinstance(code, CodeType)
    return code


def walk_of(
    value: Any, process_view: ProcessView | None = None, ignore: Collection[str] = ()
) -> WalkResult:
    """A walk over something called `f`."""
    return walk(value, "f", process_view, ignore)


def digest_of(value: Any) -> bytes:
    return walk_of(value).fingerprint.digest


def part_names(value: Any) -> list[str]:
    """The names of the parts that were found, with their kinds."""
    return [f"{part.kind}: {part.name}" for part in walk_of(value).fingerprint.parts]


def shown_steps(steps: Sequence[tuple[str, Any]]) -> str:
    """Steps as one text.

    `.a` an attribute, `['a']` an item, `('a')` a call, `=a` an attribute that is assigned, `→0` an
    argument, `!r` the message of an assert, `+` that what was read is assigned as well.
    """
    return "".join(_SIGNS[kind].format(name) for kind, name in steps)


def facts(body: str, parameters: str = "x") -> CodeFacts:
    """The facts about a function with that body."""
    return facts_of(code_of(body, parameters))


def reads(body: str, parameters: str = "x") -> list[str]:
    """Each global that it reads with its steps; `!` behind one that is written."""
    found = facts(body, parameters).reads
    return [f"{read.name}{shown_steps(read.steps)}{'!' * read.written}" for read in found]
