"""What `jaxd doctor` looks at. Each check reads, and changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from jaxd.control_client import ask
from jaxd.discovery import has_server_extra
from jaxd.settings import Settings, config_file
from jaxd_protocol import __version__
from jaxd_protocol.addresses import Address
from jaxd_protocol.control import control_path, server_runs
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.paths import LocalServerFiles, private_directory
from jaxd_protocol.tokens import default_token_file

__all__ = ["Check", "all_checks"]

_PACKAGES = ("rpyc", "cloudpickle", "numpy")
_LITTLE_ROOM_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what it is about.
        state: `"ok"`, `"note"` (works, but may surprise), or `"bad"`.
        found: what was found.
        advice: what to do about it; empty when there is nothing to do.
    """

    name: str
    state: Literal["ok", "note", "bad"]
    found: str
    advice: str = ""


def all_checks(settings: Settings) -> list[Check]:
    """Everything, in the order in which one thing depends on another."""
    files = LocalServerFiles.of_this_environment()
    address = settings.server or Address.unix(files.socket)
    return [
        Check("python", "ok", platform.python_version()),
        Check("jaxd", "ok", __version__),
        *(_package(name) for name in _PACKAGES),
        _server_extra(needed=settings.server is None),
        Check("config file", "ok", _presence(config_file())),
        _directory(files),
        _room(files),
        _token(settings),
        _local_server(files),
        _connection(address, settings),
    ]


def _package(name: str) -> Check:
    version = _version(name)
    if version is None:
        return Check(name, "bad", "not installed", "Run: pip install --force-reinstall jaxd")
    return Check(name, "ok", version)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _server_extra(*, needed: bool) -> Check:
    if has_server_extra():
        return Check("server extra", "ok", f"jax {_version('jax')}")
    advice = "To run a server here: pip install 'jaxd[server]'. Else set JAXD_SERVER."
    return Check("server extra", "bad" if needed else "note", "no jax here", advice)


def _presence(path: str) -> str:
    return path if os.path.exists(path) else f"none ({path})"


def _directory(files: LocalServerFiles) -> Check:
    name = "runtime directory"
    if not os.path.lexists(files.directory):
        return Check(name, "ok", f"{files.directory}, made when it is needed")
    try:
        return Check(name, "ok", f"{private_directory(files.directory)}, private")
    except JaxdError as error:
        return Check(name, "bad", files.directory, str(error))


def _room(files: LocalServerFiles) -> Check:
    place = files.directory
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    found = f"{free / 1e6:,.0f} MB free at {place}"
    if free < _LITTLE_ROOM_BYTES:
        return Check("disk", "bad", found, "Free some room, or set XDG_RUNTIME_DIR elsewhere.")
    return Check("disk", "ok", found)


def _token(settings: Settings) -> Check:
    try:
        token = settings.read_token()
    except JaxdError as error:
        return Check("token", "bad", "not usable", str(error))
    if token is None:
        return Check("token", "ok", "none (only TCP needs one; make it with: jaxd token)")
    place = settings.token_file or default_token_file()
    return Check("token", "ok", "from JAXD_TOKEN" if settings.token else f"in {place}")


def _local_server(files: LocalServerFiles) -> Check:
    name = "local server"
    if not os.path.lexists(files.socket):
        return Check(name, "ok", "not running")
    if not stat.S_ISSOCK(os.lstat(files.socket).st_mode):
        return Check(name, "bad", f"{files.socket} is no socket", f"Run: rm {files.socket}")
    if not server_runs(files.socket):
        return Check(name, "note", "gone; its socket file is left", "The next start replaces it.")
    return _worker(name, files)


def _worker(name: str, files: LocalServerFiles) -> Check:
    try:
        status = ask(control_path(Address.unix(files.socket)), {"ask": "status"})
    except JaxdError as error:
        return Check(name, "bad", "does not reply", str(error))
    if status is None:
        return Check(name, "bad", "runs without its host", "Wait a moment and run jaxd start.")
    state = status["worker_state"]
    if state == "dead":
        return Check(name, "bad", "its worker died and is being replaced", f"See: {files.log}")
    return Check(name, "ok", f"{state}, process {status['host']['pid']}")


def _connection(address: Address, settings: Settings) -> Check:
    """A whole handshake with the server that a call would use, when there is one."""
    name = "connection"
    if settings.server is None and not server_runs(address.path):
        return Check(name, "ok", "no server to try; the first call starts one")
    from jaxd.connecting import probe

    try:
        info = probe(address, settings)
    except JaxdError as error:
        return Check(name, "bad", str(address), str(error))
    differing = _differing_versions(info)
    if differing:
        advice = "Results may differ in detail; install the same versions on both sides."
        return Check(name, "note", f"{address}, other versions: {differing}", advice)
    return Check(name, "ok", str(address))


def _differing_versions(info: Mapping[str, Any]) -> str:
    """The packages that both sides have, in versions that are not the same."""
    theirs = info.get("versions") or {}
    pairs = [(name, _version(name), version) for name, version in theirs.items()]
    return ", ".join(
        f"{name} {here} here, {there} there"
        for name, here, there in pairs
        if here and here != there
    )
