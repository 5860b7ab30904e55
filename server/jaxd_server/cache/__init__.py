"""What outlives the server: small files that are checked before they are believed."""

from __future__ import annotations

from jaxd_server.cache.directory import KINDS, Kind
from jaxd_server.cache.record_file import Record
from jaxd_server.cache.store import Store, Target, open_store
from jaxd_server.cache.sweep import Swept
from jaxd_server.cache.usage import Usage
from jaxd_server.cache.writer import NotKept

__all__ = [
    "KINDS",
    "Kind",
    "NotKept",
    "Record",
    "Store",
    "Swept",
    "Target",
    "Usage",
    "open_store",
]
