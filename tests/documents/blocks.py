"""The blocks of code in README.md and docs/, each with its place and the comment above it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]

_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<language>\S*)(?P<info>.*)$")
_NOT_RUN: Final = re.compile(r"^<!-- not run: (?P<reason>.+) -->$")


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        page: the path of its page, from the root of the tree.
        line: the number of its first line.
        language: what the fence says, such as `python`; empty: plain text.
        text: its lines.
        reason: why the tests do not run it, as the comment above says; empty: they do.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """README.md and the pages of docs/, but for the decisions, which are never rewritten."""
    docs = (ROOT / "docs").glob("*.md")
    return ["README.md", *sorted(f"docs/{page.name}" for page in docs)]


@cache
def blocks_of(page: str) -> tuple[Block, ...]:
    """The blocks of a page, in order."""
    return tuple(_blocks(page, (ROOT / page).read_text(encoding="utf-8").splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    numbered = iter(enumerate(lines, 1))
    before = ""
    for number, line in numbered:
        opened = _FENCE.match(line)
        if opened is None:
            before = line.strip() or before
            continue
        indent = len(opened["indent"])
        body = []
        for _, inner in numbered:
            if inner.strip() == "```":
                break
            body.append(inner[indent:])
        reason = _NOT_RUN.match(before)
        text = "\n".join(body) + "\n"
        yield Block(page, number + 1, opened["language"], text, reason["reason"] if reason else "")
        before = ""
