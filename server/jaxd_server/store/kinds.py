"""The kinds of records, each with a folder of its own."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = ["KINDS", "Kind"]

Kind = Literal["functions", "code", "calls", "programs", "environments", "xla"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
