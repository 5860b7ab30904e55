"""What outlives the server: small files that are checked before they are believed."""

from __future__ import annotations

from jaxd_server.store.directory import KINDS, Kind
from jaxd_server.store.files import Record
from jaxd_server.store.scan import Usage
from jaxd_server.store.store import Store, Target, open_store
from jaxd_server.store.sweep import Swept
from jaxd_server.store.writer import NotKept

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
