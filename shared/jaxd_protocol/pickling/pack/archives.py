"""Packages that travel as source: what is in them is named, see `archives` for how it is found."""

from __future__ import annotations

from typing import Any

from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.fingerprint.model import Archive
from jaxd_protocol.pickling.pack.interface import Packer
from jaxd_protocol.pickling.unpack.archives import find_archived


def reduce_archived(packer: Packer, value: Any) -> Any:
    """A reduce tuple that names an object of an archive; `NotImplemented` for any other."""
    archives = packer.archives
    if archives is None:
        return NotImplemented
    if isinstance(value, FunctionWrapper):
        value = value.__wrapped__
    name = archives.name_of(value)
    if name is None:
        return NotImplemented
    return find_archived, (archives.archive.content, *name)


def archive_arguments(archive: Archive) -> tuple[Any, ...]:
    """What `add_archive` is called with beside the blob."""
    sources = dict(sorted(archive.sources.items()))
    return archive.content, sources, tuple(map(tuple, archive.packages))
