"""Files that outlive the server, and that are verified before they are used."""

from __future__ import annotations

from jaxd_server.cache.directory import KINDS as KINDS
from jaxd_server.cache.directory import Kind as Kind
from jaxd_server.cache.record_file import Record as Record
from jaxd_server.cache.store import Store as Store
from jaxd_server.cache.store import Target as Target
from jaxd_server.cache.store import open_store as open_store
from jaxd_server.cache.sweep import SweepResult as SweepResult
from jaxd_server.cache.usage import Usage as Usage
from jaxd_server.cache.writer import NotKept as NotKept
