"""The files of the user's packages, compiled; each is read again only when it has changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from threading import Lock
from typing import Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.model import Source

_EXTENSION_SUFFIXES: Final = tuple(EXTENSION_SUFFIXES)
_MAIN_MODULES: Final = frozenset({"__main__", "__mp_main__"})

_sources: dict[str, tuple[tuple[int, int], Source | None]] = {}
_lock: Final = Lock()  # guards _read


def files_of(top: str) -> dict[str, str]:
    """The source file of each module of a top-level package, by full name.

    Empty for a script, and for what was not made from a file.

    Raises:
        PackingError: when there is a compiled extension among them.
    """
    if top in _MAIN_MODULES:
        return {}
    origin, folders = _find_package(top)
    found: dict[str, str] = {}
    if origin is not None and not folders:
        _add(found, top, origin)
    for folder in folders:
        for name, path in _modules_below(top, folder):
            _add(found, name, path)
    return dict(sorted(found.items()))


def _find_package(top: str) -> tuple[str | None, list[str]]:
    """The file of a module, and the folders of a package."""
    module = sys.modules.get(top)
    if module is not None:
        origin = getattr(module, "__file__", None)
        return origin, [*map(str, getattr(module, "__path__", ()))]
    try:
        spec = PathFinder.find_spec(top)
    except (ImportError, ValueError):
        return None, []
    if spec is None:
        return None, []
    origin = spec.origin if spec.has_location else None
    return origin, [*map(str, spec.submodule_search_locations or ())]


def _modules_below(package: str, folder: str) -> Iterator[tuple[str, str]]:
    """The modules in a package's folder; not what only Python or an editor has put there."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        stem, dot, _ = entry.name.partition(".")
        if not stem.isidentifier() or stem == "__pycache__":
            continue
        if not dot and entry.is_dir():
            yield from _modules_below(f"{package}.{stem}", entry.path)
        elif entry.name == "__init__.py":
            yield package, entry.path
        elif entry.name == f"{stem}.py" or entry.name.endswith(_EXTENSION_SUFFIXES):
            yield f"{package}.{stem}", entry.path


def _add(found: dict[str, str], name: str, path: str) -> None:
    if path.endswith(_EXTENSION_SUFFIXES):
        raise PackingError(
            f"{path} is a compiled extension, which cannot travel, also not with ship='source'. "
            "Install its package where the server runs and here, so that it travels by name."
        )
    if path.endswith(".py"):
        found.setdefault(name, path)


def source_of(path: str) -> Source | None:
    """A module's compiled source; None when it cannot be compiled, and so not be imported."""
    try:
        stat = os.stat(path)
        state = (stat.st_mtime_ns, stat.st_size)
        with _lock:
            known = _sources.get(path)
        if known is not None and known[0] == state:
            return known[1]
        with open(path, "rb") as file:
            source = _compiled(file.read(), path)
    except OSError:
        return None
    with _lock:
        _sources[path] = (state, source)
    return source


def _compiled(text: bytes, path: str) -> Source | None:
    try:
        code = compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return Source(code, os.path.basename(path) == "__init__.py")
