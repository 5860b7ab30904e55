"""The oracle in a worker: what is stopped while the hostile client is served.

A server runs what its clients send as code: that is what it is for. So the oracle is about all the
rest. What honest calls do, and where in the code, is learned before it is armed. After that,

* of a server of programs only (`--accept exported`) nothing else is allowed: nothing is unpickled,
  imported, compiled or executed, and no file is opened;
* of one that takes code, what happens below the unpickler and in a function of a client's is not
  looked at. The hostile client sends no code of its own there: honest functions, and pickles that
  are none. So whatever else happens comes from what should have been data.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from tests.hostile.audit import Oracle

ARM: Final = "arm"
"""A FIFO: whoever writes to it arms the oracle."""

FINDS: Final = "finds"
"""An empty object when the oracle is armed; then a line for each find."""

_SOURCE: Final = os.path.join(os.path.dirname(__file__), "client.py")

_CODE: Final = (
    "jaxd_protocol/pickling/unpack/unpickler.py",
    "jaxd_server/compilation/remote_build/policy.py",
    "jaxd_server/compilation/compiling/compiler.py",
    "jaxd_server/user_code/sandbox.py",
    "jaxd_server/codec/arguments.py",  # classes of installed packages by name, as in a line of code
)
"""What a client sends as code is made and run below these."""


def watch(folder: str) -> None:
    """Installs the oracle in this process.

    Args:
        folder: with `ARM`; finds are written there.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    report_to = os.open(os.path.join(folder, FINDS), flags, 0o600)
    takes_code = os.environ.get("JAXD_HOSTILE_ACCEPT") == "code"
    oracle = Oracle(report_to, _OF_CODE if takes_code else _OF_ANY, learns=True)
    oracle.install()
    faulthandler.enable(os.open(os.path.join(folder, "stacks"), flags, 0o600))
    name = "hostile-arm"
    arguments = folder, oracle, report_to
    threading.Thread(target=_arm, args=arguments, name=name, daemon=True).start()


def _arm(folder: str, oracle: Oracle, report_to: int) -> None:
    with open(os.path.join(folder, ARM), "rb") as fifo:
        fifo.read(1)
    import jaxd_protocol
    import jaxd_server

    for package in (jaxd_protocol, jaxd_server):  # else honest messages import one after the other
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                with suppress(ImportError):
                    importlib.import_module(found.name)
    sys.unraisablehook = lambda _: None  # Python's own reads sources to show them
    oracle.arm()
    os.write(report_to, b"{}\n")


def _is_code(args: tuple[Any, ...], frame: FrameType) -> bool:
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename.endswith(_CODE):
            return True
        at = at.f_back
    return False


def _is_shown(args: tuple[Any, ...], frame: FrameType) -> bool:
    """An error's traceback shows the lines of what is loaded here, and parses what it marks."""
    back = frame.f_back
    if frame.f_code.co_filename.endswith("/ast.py"):
        return back is not None and back.f_code.co_filename.endswith("/traceback.py")
    if args[1] not in ("r", "rb"):
        return False
    return any(getattr(each, "__file__", None) == args[0] for each in list(sys.modules.values()))


def _is_source(args: tuple[Any, ...], frame: FrameType) -> bool:
    """An error in a function shows the lines of its file, if the server has such a file.

    The client names that file with its code. This one is that of the honest functions.
    """
    return bool(args[0] == _SOURCE and args[1] == "r")


def _is_installed(args: tuple[Any, ...], frame: FrameType) -> bool:
    """Now and then a server looks at which versions of which packages are installed."""
    if frame.f_code.co_filename.endswith("user_code/client_process.py"):  # it replaces `open`
        frame = frame.f_back or frame
    return frame.f_code.co_filename.endswith("jaxd_protocol/packages/distributions.py")


def _is_own_memory(args: tuple[Any, ...], frame: FrameType) -> bool:
    """What a server shows of itself has how much memory its process takes."""
    return args[:2] == (f"/proc/{os.getpid()}/statm", "r")


_Rule = Callable[[tuple[Any, ...], FrameType], bool]

_OF_ANY: Final[Mapping[str, _Rule]] = {
    "open": lambda args, frame: any(
        rule(args, frame) for rule in (_is_shown, _is_installed, _is_own_memory)
    ),
    "compile": _is_shown,
    "os.listdir": _is_installed,
    "os.scandir": _is_installed,
}

_OF_CODE: Final[Mapping[str, _Rule]] = {
    event: lambda args, frame: any(
        rule(args, frame)
        for rule in (_is_code, _is_own_memory, _is_shown, _is_source, _is_installed)
    )
    for event in (
        *("import", "exec", "compile", "open", "code.__new__", "function.__new__"),
        *("pickle.find_class", "marshal.loads", "object.__setattr__", "object.__delattr__"),
        *("os.listdir", "os.scandir", "ctypes.dlopen", "ctypes.dlsym"),
    )
}
