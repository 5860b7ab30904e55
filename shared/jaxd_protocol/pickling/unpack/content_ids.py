"""By which content ids classes and callables have arrived in this process."""

from __future__ import annotations

from typing import Any

from jaxd_protocol.pickling.unpack.archives import id_in_archive
from jaxd_protocol.pickling.unpack.content_table import server_table


def id_of(value: Any) -> bytes | None:
    """The content id of a class or callable that has arrived; None for others."""
    return server_table.id_of(value) or id_in_archive(value)
