"""The events of a server's log in docs/log-events.md, and the calls that log them.

`python -m tests.server.log_event_table` writes them there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxd_server.runtime.log_events import COMMON, EVENTS, FIELDS
from tests.live_server import ROOT
from tests.server import option_table

PAGE = ROOT / "docs" / "log-events.md"
SERVER = ROOT / "server" / "jaxd_server"
_HEAD, _END = "<!-- generated -->\n\n", "\n\n<!-- end -->"
_EMITTERS = {"log_event", "warn"}
"""`log_event`, and `Troubles.warn`, which calls it once for each trouble."""


class Emission(NamedTuple):
    """One call that logs.

    Attributes:
        place: its file and line.
        events: the names that it may log; None where these cannot be read from the source.
        fields: the names of the fields; None where these cannot be read.
    """

    place: str
    events: frozenset[str] | None
    fields: frozenset[str] | None


def emissions(folder: Path = SERVER) -> Iterator[Emission]:
    """All calls of the server that log an event."""
    for path in sorted(folder.rglob("*.py")):
        if path.name != "logs.py":
            yield from _emissions_in(path)


def _emissions_in(path: Path) -> Iterator[Emission]:
    text = path.read_text()
    if not any(emitter in text for emitter in _EMITTERS):
        return
    tree = ast.parse(text)
    tables = {
        node.target.id: node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _is_emitter(node.func):
            continue
        around = [
            each for each in functions if each.lineno <= node.lineno <= (each.end_lineno or 0)
        ]
        if around and around[-1].name in _EMITTERS:
            continue  # `warn` passes on what it was given
        names = [keyword.arg for keyword in node.keywords]
        fields = None if None in names else frozenset(filter(None, names))
        place = f"{path.relative_to(ROOT)}:{node.lineno}"
        yield Emission(place, _texts(node.args[0], tables, around), fields)


def _is_emitter(function: ast.expr) -> bool:
    """Whether it is `log_event`, or `warn` of something called troubles."""
    if isinstance(function, ast.Name):
        return function.id == "log_event"
    if not isinstance(function, ast.Attribute) or function.attr != "warn":
        return False
    return ast.unparse(function.value).endswith("troubles")


def _texts(
    node: ast.expr, tables: dict[str, ast.expr | None], around: list[ast.FunctionDef]
) -> frozenset[str] | None:
    """The texts that an expression can be: a literal, one of two, of a table, or of a `Literal`."""
    match node:
        case ast.Constant(value=str(text)):
            return frozenset({text})
        case ast.IfExp(body=body, orelse=other):
            first, second = _texts(body, tables, around), _texts(other, tables, around)
            return None if first is None or second is None else first | second
        case ast.Subscript(value=ast.Name(id=name)):
            table = tables.get(name)
            return frozenset(ast.literal_eval(table).values()) if table is not None else None
        case ast.Name(id=name) if around:
            kinds = [a.annotation for a in around[-1].args.args if a.arg == name]
            return _texts_of_annotation(kinds[0]) if kinds else None
    return None


def _texts_of_annotation(node: ast.expr | None) -> frozenset[str] | None:
    match node:
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple() as words):
            return frozenset(ast.literal_eval(words))
    return None


def tables() -> str:
    """The table of events, and that of their fields."""
    rows = ["| event | level | when | fields |", "|---|---|---|---|"]
    for name, event in sorted(EVENTS.items()):
        fields = ", ".join(f"`{field}`" for field in event.fields)
        rows.append(
            f"| `{name}` | {event.level} | {event.when} | {fields} |".replace("|  |", "| |")
        )
    rows += ["", "## Fields", "", "| field | meaning |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in {**COMMON, **FIELDS}.items()]
    return "\n".join(rows)


def parts_of_the_page() -> tuple[str, str, str]:
    """What stands before the tables, the tables, and what stands behind them."""
    return option_table.parts_of_the_page(PAGE, _HEAD, _END)


if __name__ == "__main__":
    before, _, behind = parts_of_the_page()
    PAGE.write_text(before + tables() + behind)
