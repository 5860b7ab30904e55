"""What stands for an object of a package that travels as source."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.fingerprint.data_model import ReachedObjects, Source
from jaxd_protocol.fingerprint.local_archives import archive_of
from jaxd_protocol.pickling.pack.modules import archive_arguments, reduce_archived
from jaxd_protocol.pickling.pack.pickler import Pickler
from jaxd_protocol.pickling.unpack.archives import find_archived

ARCHIVE = archive_of({name: Source(compile("", name, "exec"), False) for name in ("b", "a")}, ())


class _Archives:
    """They make one object."""

    archive = ARCHIVE

    def __init__(self, made: Any) -> None:
        self.made = made

    def name_of(self, value: Any) -> Any:
        return ("shop", "thing") if value is self.made else None


def reduced(archives: Any, value: Any) -> Any:
    """The reduce tuple of a value."""
    return reduce_archived(Pickler(ReachedObjects(archives)), value)


def test_an_object_of_an_archive_is_named() -> None:
    """By the content of the archive, its module and its name."""
    thing = object()
    name = (ARCHIVE.content, "shop", "thing")
    assert reduced(_Archives(thing), thing) == (find_archived, name)


@pytest.mark.parametrize("archives", [None, _Archives(object())])
def test_any_other_is_not(archives: Any) -> None:
    """It travels as it would without an archive."""
    assert reduced(archives, object()) is NotImplemented


def test_the_order_in_which_modules_were_met_does_not_matter() -> None:
    """The packed bytes of two processes are the same."""
    content, sources, packages = archive_arguments(ARCHIVE)
    assert (content, list(sources), packages) == (ARCHIVE.content, ["a", "b"], ())
