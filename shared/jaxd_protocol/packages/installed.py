"""Which code belongs to the environment, and which to the user.

Installed code (the standard library and the content of `site-packages`) travels by name: both
ends have it. Everything else is *local* and travels by value, so that the server never imports a
file that the user is still editing. Editable installs are local, whether a `.pth` file, a link or
an import hook leads to them; what `pip install .` has copied is installed, and its RECORD tells one
copy from the next. Our own packages count as installed wherever they lie. Where the interpreter is
decides nothing: an environment may lie in the user's project, or the project in the environment.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import Any

OWN_PACKAGES = frozenset({"jaxd", "jaxd_protocol", "jaxd_server"})
SERVER_PACKAGES = frozenset({"jax", "jaxlib", "numpy"}) | sys.stdlib_module_names
"""Whose functions, methods and partials are no objects of the user's; callbacks to them run on
the server."""

_SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})


@lru_cache(maxsize=1)
def _prefixes() -> tuple[str, ...]:
    """Folders below which all of the standard library lies, with more beside it.

    Finding them takes a hundredth of the time that `sysconfig.get_paths` takes.
    """
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    folders = {os.path.join(prefix, sys.platlibdir, name) for prefix in prefixes}
    folders |= {os.path.dirname(getattr(os, "__file__", "")), *prefixes}
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)


@lru_cache(maxsize=1)
def _standard_library() -> tuple[str, ...]:
    import sysconfig

    paths = sysconfig.get_paths()
    folders = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")}
    return tuple(folder + os.sep for folder in folders)


@lru_cache(maxsize=4096)
def is_local_file(path: str) -> bool:
    """Whether a source or extension file is the user's own."""
    real = os.path.realpath(path)
    if not _SITE_FOLDERS.isdisjoint(real.split(os.sep)):
        return False
    return not (real.startswith(_prefixes()) and real.startswith(_standard_library()))


def site_folder(path: str) -> str | None:
    """The `site-packages` folder that a path is in; None when it is in none."""
    parts = path.split(os.sep)
    ends = (end for end in range(len(parts) - 1, 0, -1) if parts[end - 1] in _SITE_FOLDERS)
    return next((os.sep.join(parts[:end]) for end in ends), None)


def content_of(module: str) -> dict[str, Any]:
    """What a loaded module holds, looked at without running code of it; empty for any other.

    A module that is loaded lazily, or an object in the place of one, has an attribute access of
    its own.
    """
    try:
        found: dict[str, Any] = object.__getattribute__(sys.modules.get(module), "__dict__")
    except AttributeError:
        return {}
    return found


def _folders(module: Any) -> list[str]:
    """The folders of a package; none where its parent is gone, in which a namespace looks."""
    try:
        return list(getattr(module, "__path__", ()))
    except KeyError:
        return []


def is_local_module(name: str | None) -> bool:
    """Whether the loaded module of that name is the user's own; `__main__` always is."""
    if name is None or name == "__main__":
        return True
    if name.partition(".")[0] in OWN_PACKAGES:
        return False
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    origin = getattr(module, "__file__", None) or getattr(spec, "origin", None)
    if origin in ("built-in", "frozen"):
        return spec is None
    if origin is not None:
        return is_local_file(origin)
    folders = _folders(module)
    if folders:  # a namespace package: it has no file of its own
        return any(is_local_file(folder) for folder in folders)
    # An extension module makes submodules that have no file: `jaxlib._jax.pytree`. A module
    # without a parent was made by hand, or is gone: only its value can travel.
    parent = name.rpartition(".")[0]
    return not parent or is_local_module(parent)


def user_stacklevel() -> int:
    """The `stacklevel` with which `warnings.warn`, where this is called, points to the user."""
    level = 1
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  documented, if underscored
    while frame is not None and (
        str(frame.f_globals.get("__name__")).partition(".")[0] in OWN_PACKAGES
    ):
        frame = frame.f_back
        level += 1
    return level


def warn_user(text: str, category: type[Warning]) -> None:
    """Warns, at the user's line that calls; where somebody collects such warnings, they get it.

    Raises:
        Warning: where the user's filters turn it into an error.
    """
    if _collectors:
        _collectors[-1](text, category)
    else:
        warnings.warn(text, category, user_stacklevel())


_collectors: list[Callable[[str, type[Warning]], object]] = []


def collect_warnings(collect: Callable[[str, type[Warning]], object]) -> None:
    """Gives the warnings of jaxd itself to `collect`, from now on, instead of Python's filters.

    For programs that were not written for jaxd, which may have made each warning an error.
    """
    _collectors.append(collect)
