"""What client and server of jaxd share: errors, addresses, frames, pytrees and pickling.

Nothing here imports jax, and nothing here imports `jaxd` or `jaxd_server`.
"""

from __future__ import annotations

__version__ = "0.1.0"

PROTOCOL_VERSION = 12
"""Raised whenever an old client could misread a new server, or the other way round."""
