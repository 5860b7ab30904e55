"""The errors that jaxd raises, where users look for them; see `jaxd_protocol.errors`."""

from __future__ import annotations

from jaxd_protocol.errors import *  # noqa: F403  the same classes under two names
from jaxd_protocol.errors import __all__ as __all__  # noqa: PLC0414  marks it as public
