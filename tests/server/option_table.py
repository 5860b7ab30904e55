"""The options of `jaxd serve` in docs/configuration.md.

`python -m tests.server.option_table` writes them there.
"""

from __future__ import annotations

from argparse import SUPPRESS
from dataclasses import fields
from pathlib import Path

from jaxd_server.config.options import ServerOptions, Words, words_of
from tests.live_server import ROOT

PAGE = ROOT / "docs" / "configuration.md"
_HEAD, _END = "`--help-all` all of these.\n\n", "\n\nSizes may have a suffix"


def table() -> str:
    """A row for each option, in the order and under the headings of `--help`."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    heading = ""
    for words in map(words_of, fields(ServerOptions)):
        if words.group != heading:
            heading = words.group
            rows.append(f"| **{heading}** | | |")
        if words.help != SUPPRESS:
            rows.append(_row(words))
    return "\n".join(rows)


def _row(words: Words) -> str:
    values = words.argument.get("choices") or (words.argument.get("metavar", ""),)
    option = f"`{words.flag} {'|'.join(values)}".rstrip() + "`"
    if words.argument.get("action") not in {None, "append", "store_true"}:
        option += f", `--no-{words.flag[2:]}`"
    default = words.shown or ("off" if words.argument.get("action") == "store_true" else "")
    cells = (option, default, words.help + words.more)
    return "|" + "|".join(f" {cell} ".replace("|", r"\|") if cell else " " for cell in cells) + "|"


def parts_of_the_page(
    page: Path = PAGE, head: str = _HEAD, end: str = _END
) -> tuple[str, str, str]:
    """What stands before the table, the table, and what stands behind it.

    Args:
        page: a page with a table that is generated.
        head: what the table follows.
        end: what follows it.
    """
    before, found, rest = page.read_text().partition(head)
    rows, stop, behind = rest.partition(end)
    return before + found, rows, stop + behind


if __name__ == "__main__":
    before, _, behind = parts_of_the_page()
    PAGE.write_text(before + table() + behind)
