"""Packages that are sent as source: their objects are named, and made on the server by running it.

An archive runs once in a process, whichever functions and arguments name it, so that each of its
classes exists once. It lives as long as any object that it made.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from importlib.util import resolve_name
from types import CodeType, ModuleType
from typing import Any, Final
from weakref import WeakValueDictionary

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.data_model import Archive, Name, Source
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.local_archives import IMPORTLIB, archive_of, archived_id, look_up
from jaxd_protocol.packages.distributions import Package
from jaxd_protocol.pickling.unpack.content_table import content_table
from jaxd_protocol.pickling.unpack.private_modules import NotShipped, PatchedModule, PrivateModules
from jaxd_protocol.pytree.padding import BucketOption, pad_in_trace, padding_of


class UnpackedArchive(PrivateModules):
    """A client's packages on the server, each module run when it is first imported.

    Args:
        archive: their source.

    Attributes:
        archive: the same.
        found: what its modules may have read of their client's process, with the values.
        is_spoiled: whether what its modules did when they ran was undone.
    """

    is_spoiled = False

    def __init__(self, archive: Archive) -> None:
        super().__init__()
        self.archive = archive
        self.found: dict[Any, Any] = {}
        self.sources.update(archive.sources)
        self._named: dict[int, tuple[Any, Name]] = {}
        self._import_module = self.import_module  # one object: the walk names it
        self._substitutes: dict[str, Callable[[ModuleType], ModuleType]] = {
            IMPORTLIB: lambda real: PatchedModule(real, {"import_module": self._import_module}),
            "sys": lambda real: PatchedModule(
                real, {"modules": ChainMap(self._executed, sys.modules)}
            ),
            "jaxd": lambda real: PatchedModule(real, {"persistent_call": _undecorated}),
        }

    # the interface for walks -------------------------------------------------------------------

    def has(self, module: str, is_local: bool = False) -> bool:
        """Whether a module is in the archive."""
        return self._is_private(module)

    def name_of(self, value: Any) -> Name | None:
        """The name by which a function or argument has requested this object."""
        found = self._named.get(id(value))
        return None if found is None else found[1]

    def module(self, name: str) -> ModuleType | None:
        """A module of the archive that has been run."""
        return self._executed.get(name)

    # the interface for code --------------------------------------------------------------------

    def find(self, name: Name) -> Any:
        """The object of that name, for which modules are run if necessary.

        Raises:
            PackingError: when the source does not make it.
            Exception: whatever the user's modules raise when they are run.
        """
        module, inner = name
        if module == IMPORTLIB:
            real = importlib.import_module(IMPORTLIB)
            found = self._import_module if inner else self.special(real)
        else:
            found = self.load(module)
            found = look_up(found, inner) if inner else found
        if found is MISSING:
            raise PackingError(
                f"the source of {module} does not make {inner}: it was put there after the import. "
                "Pass it as an argument, or leave ship= out."
            )
        self._named[id(found)] = (found, name)
        return found

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Replaces `importlib.import_module` in the code of the archive."""
        full = resolve_name(name, package)
        if self.has(full):
            return self.load(full)
        try:
            return self.special(importlib.import_module(full))
        except ModuleNotFoundError as error:
            if error.name != full.partition(".")[0]:
                raise
            raise NotShipped(
                f"no module named {full!r} came with this function, and none is installed on the "
                f"server. Write 'import {full.partition('.')[0]}' in the function or in a module "
                "of its package, so that it is sent as well."
            ) from error

    def special(self, module: ModuleType) -> ModuleType:
        """A module of the server's own; those that give access to modules are patched."""
        name = module.__name__
        if name in self._substitutes and name not in self.patched_modules:
            self.patched_modules[name] = self._substitutes[name](module)
        return super().special(module)


class _PaddedFunction(FunctionWrapper):
    """A function whose arguments are padded where another one calls it."""

    def __init__(self, function: Callable[..., Any], bucket: BucketOption) -> None:
        update_wrapper(self, function)
        self.__wrapped__ = function
        self._padding = padding_of(function, bucket)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it."""
        args, kwargs = pad_in_trace(self._padding, args, kwargs)
        return self.__wrapped__(*args, **kwargs)


def _undecorated(function: Any = None, /, *, bucket: Any = None, **_: Any) -> Any:
    """`persistent_call` on the server, where a persistent function is the function itself.

    One whose arrays are padded pads them where another function calls it.
    """
    if function is None:
        return partial(_undecorated, bucket=bucket)
    return _PaddedFunction(function, bucket) if bucket else function


_archives: Final[WeakValueDictionary[bytes, UnpackedArchive]] = WeakValueDictionary()
_lock: Final = threading.Lock()  # guards _archives


def add_archive(
    blob: PrivateModules,
    content: bytes,
    sources: Mapping[str, tuple[CodeType, bool]],
    packages: tuple[tuple[str, str, bytes], ...],
) -> None:
    """Gives a function its packages.

    Raises:
        PackingError: when the content is not theirs.
    """
    with _lock:
        found = _archives.get(content)
    if found is None:
        archive = archive_of(
            {name: Source(*source) for name, source in sources.items()},
            tuple(Package(*package) for package in packages),
        )
        if archive.content != content:
            raise PackingError("a source archive is not what it is named by: send it again.")
        with _lock:
            found = _archives.setdefault(content, UnpackedArchive(archive))
    blob.arrived = found


def forget_archive(archive: UnpackedArchive) -> None:
    """Has the modules of an archive run anew for whoever sends it next."""
    with _lock:
        if _archives.get(archive.archive.content) is archive:
            del _archives[archive.archive.content]


def find_archived(content: bytes, module: str, name: str) -> Any:
    """An object of an archive that was sent with a function.

    Raises:
        PackingError: when there is no function of that archive any more.
    """
    with _lock:
        found = _archives.get(content)
    if found is None:
        raise PackingError(
            f"an argument needs {module}.{name} of a source archive that the server does not have "
            "any more. Call the function again."
        )
    return found.find((module, name))


def archived_content_id(value: Any) -> bytes | None:
    """The id of a class or callable that an archive has made in this process."""
    try:
        name, inner = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    except Exception:  # noqa: BLE001  a user's __getattr__ may do anything
        return None
    if not isinstance(name, str) or not isinstance(inner, str):
        return None
    with _lock:
        found = list(_archives.values())
    for each in found:
        module = each.module(name)
        if module is not None and look_up(module, inner) is value:
            return archived_id(each.archive.content, (name, inner))
    return None


def content_id_of(value: Any) -> bytes | None:
    """The content id of a class or callable that has arrived; None for others."""
    return content_table.content_id_of(value) or archived_content_id(value)
