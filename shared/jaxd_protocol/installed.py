"""Which code belongs to the environment, and which to the user.

Installed code (the standard library and what stands in a `site-packages`) travels by name: both
ends have it. Everything else is *local* and travels by value, so that the server never imports a
file that the user is still editing. Editable installs are local. Our own packages count as
installed wherever they lie.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache

__all__ = ["OWN_PACKAGES", "is_local_file", "is_local_module"]

OWN_PACKAGES = frozenset({"jaxd", "jaxd_protocol", "jaxd_server"})

_SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})


@lru_cache(maxsize=1)
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")}
    return tuple(folder + os.sep for folder in folders)


@lru_cache(maxsize=4096)
def is_local_file(path: str) -> bool:
    """Whether a source or extension file is the user's own."""
    real = os.path.realpath(path)
    if not _SITE_FOLDERS.isdisjoint(real.split(os.sep)):
        return False
    return not real.startswith(_standard_library())


def is_local_module(name: str | None) -> bool:
    """Whether the loaded module of that name is the user's own; `__main__` always is."""
    if name is None or name == "__main__":
        return True
    if name.partition(".")[0] in OWN_PACKAGES:
        return False
    module = sys.modules.get(name)
    if module is None:
        return True  # made by hand, or gone: only its value can travel
    spec = getattr(module, "__spec__", None)
    origin = getattr(module, "__file__", None) or getattr(spec, "origin", None)
    if origin in (None, "built-in", "frozen"):
        return spec is None or (origin is None and not _is_namespace_installed(module))
    return is_local_file(origin)


def _is_namespace_installed(module: object) -> bool:
    folders = list(getattr(module, "__path__", ()))
    return bool(folders) and not any(is_local_file(folder) for folder in folders)
