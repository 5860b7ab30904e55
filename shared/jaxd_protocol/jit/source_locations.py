"""How jax is told to leave the places of code out of programs; by a private name of jax.

A program that says from which lines it came is another one when a comment is written above them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast


def without_source_locations() -> AbstractContextManager[Any]:
    """Within it, what jax lowers does not say where it stood; nothing where jax cannot do that."""
    try:
        from jax._src.config import traceback_in_locations_limit
    except ImportError:
        return nullcontext()
    return cast("AbstractContextManager[Any]", traceback_in_locations_limit(0))
