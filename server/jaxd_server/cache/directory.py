"""Where records lie, and whether the folder can be trusted: what lies there is code that runs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from jaxd_protocol.errors import ConfigurationError

Kind = Literal["functions", "code", "reads", "calls", "programs", "environments", "xla"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


VERSION: Final = "v2"
"""The folder below the root; changes when what is kept changes its meaning."""

TARGET_FILE: Final = "target.json"
"""Describes, for people, what the folder of a target is good for."""

_MAX_NAME: Final = 40
_LONG: Final = "long-"
TAG: Final = "CACHEDIR.TAG"
"""Tells programs that make backups to leave the folder out."""

_TAG_TEXT: Final = """\
Signature: 8a477f597d28d172789f06886806bc55
# Compiled programs of jaxd; can be removed at any time. See https://bford.info/cachedir/
"""


def make_trusted(root: str) -> str:
    """Makes the folder when it is missing and checks that it can be trusted; its real path.

    Raises:
        ConfigurationError: when it cannot be made, or as `check_trusted`.
    """
    try:
        os.makedirs(os.path.dirname(root), mode=0o700, exist_ok=True)
        real = os.path.join(os.path.realpath(os.path.dirname(root)), os.path.basename(root))
        _make_folder(real)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the cache folder {root}: {error.strerror}. {_ELSEWHERE}"
        ) from error
    check_trusted(real)
    return real


def _make_folder(path: str) -> None:
    """Makes a folder that only we can enter, unless there is something of that name."""
    if os.path.lexists(path):
        return
    with contextlib.suppress(FileExistsError):  # made by another server meanwhile
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # whatever the umask


_ELSEWHERE: Final = (
    "Set JAXD_CACHE_DIR to a folder of your own, or to `none` to keep nothing on disk."
)


def check_trusted(root: str) -> None:
    """Checks that only this user (and root) can write to the folder or replace it.

    Args:
        root: absolute, with no link in the path above it.

    Raises:
        ConfigurationError: when it is a link or no folder, belongs to another user, or others
            may write to it; when a folder above it belongs to another user, or everybody may
            write to that and remove what is in it.
    """
    _check_folder(root)
    for folder in Path(root).parents:
        _check_path(str(folder), root)


def _check_folder(folder: str) -> None:
    status = _status(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigurationError(f"the cache folder {folder} is not a folder. {_ELSEWHERE}")
    if status.st_uid not in (0, os.geteuid()):  # root may do anything anyway
        raise ConfigurationError(f"the cache folder {folder} belongs to another user. {_ELSEWHERE}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            f"others can write to the cache folder {folder}, and what lies there is code that "
            f"runs. Look at what is in it, then run: chmod go-w {folder}"
        )


def _check_path(folder: str, root: str) -> None:
    status = _status(folder)
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{folder}, above the cache folder {root}, belongs to another user. {_ELSEWHERE}"
        )
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ConfigurationError(
            f"everybody can write to {folder}, above the cache folder {root}. {_ELSEWHERE}"
        )


def _status(path: str) -> os.stat_result:
    try:
        return os.lstat(path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot look at {path}: {error.strerror}. {_ELSEWHERE}"
        ) from error


@dataclass(frozen=True, slots=True)
class Directory:
    """The folders of one target below a trusted root.

    Attributes:
        root: the cache folder.
        target: what the records are good for, 16 hex digits.
    """

    root: str
    target: str

    @property
    def folder(self) -> str:
        """The folder of this target."""
        return f"{self.root}/{VERSION}/{self.target}"

    def kind(self, kind: Kind) -> str:
        """The folder of all records of a kind."""
        return f"{self.folder}/{kind}"

    def file(self, kind: Kind, name: bytes) -> str:
        """The file of one record: its name in hex digits, or a digest of a long one."""
        if 0 < len(name) <= _MAX_NAME:
            return f"{self.kind(kind)}/{name.hex()}"
        return f"{self.kind(kind)}/{_LONG}{hashlib.blake2b(name, digest_size=32).hexdigest()}"

    def make(self, kind: Kind | None = None) -> None:
        """Makes the folder of the target, and that of a kind, where they are missing.

        Raises:
            ConfigurationError: as `make_trusted`, for each of the folders.
            OSError: when one cannot be made.
        """
        make_trusted(self.root)
        folders = [f"{self.root}/{VERSION}", self.folder]
        for folder in [*folders, self.kind(kind)] if kind else folders:
            _make_folder(folder)
            _check_folder(folder)
        self._tag()

    def _tag(self) -> None:
        """Marks the folder as a cache, which backup programs leave out."""
        path = f"{self.root}/{TAG}"
        if not os.path.lexists(path):
            with contextlib.suppress(OSError), open(path, "x", encoding="ascii") as file:
                os.fchmod(file.fileno(), 0o644)  # whoever makes backups has to read it
                file.write(_TAG_TEXT)
