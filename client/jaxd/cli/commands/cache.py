"""`jaxd cache`: the programs that are kept on disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

SUMMARY = "look at the programs that are kept on disk; check or remove them"

COMMAND: Final = (sys.executable, "-P", "-m", "jaxd_server.cache")


def run(words: Sequence[str]) -> NoReturn:
    """Becomes the command that knows the folder, with the same words."""
    os.execv(COMMAND[0], [*COMMAND, *words])  # noqa: S606  no shell is wanted
