"""Programs and test suites that are not changed: the hook, how they start, what they report.

Here is what starts them, which needs nothing of the rest: the variables by which Python hooks them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal

ENABLED: Final = "JAXD"
RUN: Final = "JAXD_RUN"
_SITE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

Says = Literal["line", "report", "nothing"]
"""What the main process prints at its end: a line on a terminal, all, or nothing."""


def variables(
    environment: Mapping[str, str], server: str | None = None, says: Says = "nothing"
) -> dict[str, str]:
    """The variables with which `python` runs a program hooked, and all that it starts.

    Args:
        environment: the present one.
        server: where calls go; None: where they would go anyway.
        says: what a process with the number of this one prints at its end.
    """
    others = paths_without_hook(environment.get("PYTHONPATH", ""))
    found = {ENABLED: "1", "PYTHONPATH": os.pathsep.join([_SITE, *others])}
    if server is not None:
        found["JAXD_SERVER"] = server
    if says != "nothing":
        found[RUN] = f"{os.getpid()}:{says}"
    return found


def paths_without_hook(python_path: str) -> list[str]:
    """The folders in a `PYTHONPATH`, without that of the hook."""
    return [each for each in python_path.split(os.pathsep) if each and each != _SITE]
