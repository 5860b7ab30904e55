"""`jaxd demo`: see it work on real handwritten digits."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SUMMARY", "run"]

SUMMARY = "train on real digits from two fresh processes; the second compiles nothing"


def run(words: Sequence[str]) -> int:
    """Runs the demo with its own options; returns its exit code."""
    from jaxd.demo import main

    return main(words)
