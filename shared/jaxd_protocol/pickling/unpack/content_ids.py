"""By which content ids classes and callables have arrived in this process."""

from __future__ import annotations

from typing import Any

from jaxd_protocol.pickling.unpack.archives import archived_content_id
from jaxd_protocol.pickling.unpack.content_table import content_table


def content_id_of(value: Any) -> bytes | None:
    """The content id of a class or callable that has arrived; None for others."""
    return content_table.content_id_of(value) or archived_content_id(value)
