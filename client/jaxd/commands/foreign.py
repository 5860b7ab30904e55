"""The commands that read their own command line: the server's and the demo's."""

from __future__ import annotations

from collections.abc import Sequence

from jaxd.commands import demo, serve

__all__ = ["FOREIGN", "run_foreign"]

FOREIGN = {"serve": serve.SUMMARY, "demo": demo.SUMMARY}


def run_foreign(name: str, words: Sequence[str]) -> int:
    """Runs the command `name` with the words that follow it; returns its exit code."""
    return serve.run(words) if name == "serve" else demo.run(words)
