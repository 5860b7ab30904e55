"""The kinds of values of two options of `persistent_call`."""

from __future__ import annotations

from typing import Literal

StaticRule = Literal["auto", "jax"]
"""What becomes of arguments that jax cannot trace and that are not declared static."""

Ship = Literal["value", "source"]
"""How the user's own code travels: as the values that are reached, or as files of packages."""
