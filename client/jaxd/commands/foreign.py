"""The commands that read their own command line: the server's, the cache's and the demo's."""

from __future__ import annotations

from collections.abc import Sequence

from jaxd.commands import cache, demo, serve

__all__ = ["FOREIGN", "run_foreign"]

_COMMANDS = {"serve": serve, "cache": cache, "demo": demo}

FOREIGN = {name: command.SUMMARY for name, command in _COMMANDS.items()}


def run_foreign(name: str, words: Sequence[str]) -> int:
    """Runs the command `name` with the words that follow it; returns its exit code."""
    code: int = _COMMANDS[name].run(words)
    return code
