"""Leaves source locations out of lowered programs; uses a private name of jax.

With them, a program would change whenever a comment is written above its code.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast


def without_source_locations() -> AbstractContextManager[Any]:
    """Within it, jax lowers without source locations; no effect where jax lacks the setting."""
    try:
        from jax._src.config import traceback_in_locations_limit
    except ImportError:
        return nullcontext()
    return cast("AbstractContextManager[Any]", traceback_in_locations_limit(0))
