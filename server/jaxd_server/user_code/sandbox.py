"""The conditions under which clients' functions run in the worker."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from jaxd_protocol.errors import NotInteractive
from jaxd_protocol.packages.installed import OWN_PACKAGES, is_local_file
from jaxd_server.user_code import client_process


def prepare_for_user_code() -> None:
    """Takes away what a function cannot have on a server: a terminal, and files being edited."""
    _no_input.__module__, _no_input.__name__ = "builtins", "input"  # the walk takes it for that
    builtins.input = _no_input
    sys.breakpointhook = _no_debugger
    client_process.install()
    sys.meta_path.insert(0, InstalledOnly())


def _no_input(_: object = "") -> NoReturn:
    raise NotInteractive(
        "the function called input(), but it runs on a server that has no terminal. Ask before "
        "the call and pass the answer as an argument."
    )


def _no_debugger(*_: object, **__: object) -> NoReturn:
    raise NotInteractive(
        "the function called breakpoint(), but it runs on a server that has no terminal. Set "
        "JAXD_INLINE=1 to run it in your own process, under your debugger."
    )


class InstalledOnly(MetaPathFinder):
    """Refuses to import a user's own modules into the server.

    A module that was imported once would stay as it was, however often its file is edited, and
    the server would go on answering with it. Local code travels with the function instead.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders have, if it may be imported; None leaves it to them.

        Raises:
            ModuleNotFoundError: for a module whose file is not installed.
        """
        if path is not None or fullname in OWN_PACKAGES:
            return None
        found = (f.find_spec(fullname, None, target) for f in sys.meta_path if f is not self)
        spec = next(filter(None, found), None)
        origin = _local_origin(spec)
        if origin is not None:
            raise ModuleNotFoundError(
                f"{fullname!r} is a local module ({origin}), which the server does not import: "
                "it could not see your next edit. Import it at the top of the file that defines "
                "the function, so that it travels along, or install it.",
                name=fullname,
            )
        return spec


def _local_origin(spec: ModuleSpec | None) -> str | None:
    """The file or folder of a module that is the user's own, None for all others."""
    if spec is None or spec.origin in ("built-in", "frozen"):
        return None
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return next(filter(is_local_file, places), None)
