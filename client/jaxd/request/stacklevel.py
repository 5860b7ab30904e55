"""Finds the stack level of the user's code, for warnings."""

from __future__ import annotations

import sys
from types import FrameType

from jaxd_protocol.packages.installed import OWN_PACKAGES


def user_stacklevel() -> int:
    """The `stacklevel` with which `warnings.warn`, where this is called, points to the user."""
    level = 1
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  documented, if underscored
    while frame is not None and (
        str(frame.f_globals.get("__name__")).partition(".")[0] in OWN_PACKAGES
    ):
        frame = frame.f_back
        level += 1
    return level
