"""Terminal output of the commands of both ends: usage errors, sizes, tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Ends a usage error, too, in the next thing to do."""

    def error(self, message: str) -> NoReturn:
        """Prints the message and where there is help, and exits with 2."""
        self.exit(2, f"jaxd: {message}. See: {self.prog} --help\n")


def size(count: float) -> str:
    """Bytes: ``1.46 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they have to be; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
