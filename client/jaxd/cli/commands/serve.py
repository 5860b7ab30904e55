"""`jaxd serve`: this process becomes the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from jaxd.connection.discovery import require_server_extra

SUMMARY = "run a server in the foreground"


def run(words: Sequence[str]) -> int:
    """Replaces this process by the server, which reads `words` itself; does not return.

    `exec`, and no call: the client never imports the server.

    Raises:
        ConfigurationError: when jax is not installed here.
    """
    if {"-h", "--help"}.isdisjoint(words):
        require_server_extra()
    os.execv(  # noqa: S606  no shell is wanted
        sys.executable, [sys.executable, "-P", "-m", "jaxd_server", *words]
    )
