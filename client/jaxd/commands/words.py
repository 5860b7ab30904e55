"""How commands write times and long texts."""

from __future__ import annotations

__all__ = ["ago", "cut", "duration"]


def duration(seconds: float) -> str:
    """``0.25 s``, ``8.2 s``, ``3 min``."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"


def ago(seconds: float | None) -> str:
    """``3 min ago``; None is never."""
    return "never" if seconds is None else f"{duration(seconds)} ago"


def cut(text: str, width: int) -> str:
    """The text in one line of so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
