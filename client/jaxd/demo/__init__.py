"""`jaxd demo`: one training script, run from two fresh processes, compiled once.

Kept light: the training script lives in this package, so whatever is imported here is part of the
start that the demo measures.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo and prints its table; returns the exit code of the process.

    Args:
        argv: the command line after `jaxd demo`; None for that of this process.

    Returns:
        0 when the second process compiled nothing and the network learned; 1 when not, or when
        something that the demo needs is missing or failed; 130 after Ctrl-C.
    """
    from jaxd.demo.command import run

    return run(argv)
