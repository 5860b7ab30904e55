"""Checks of the installation: packages, configuration and shared files."""

from __future__ import annotations

import os
import platform
import shutil
from importlib.util import find_spec

from jaxd.cli.doctor.context import Check, DoctorContext
from jaxd.connection.discovery import has_server_extra
from jaxd.connection.settings import config_file
from jaxd_protocol import __version__
from jaxd_protocol.base import shared_memory
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.network.addresses import MAX_PATH_BYTES
from jaxd_protocol.network.local_server import make_private_directory
from jaxd_protocol.network.tokens import (
    STORE_KEY_VARIABLES,
    default_token_file,
    read_store_key,
    store_key_file,
    without_password,
)

_REQUIRED_PACKAGES = ("rpyc", "cloudpickle", "numpy")
_MIN_FREE_BYTES = 64 << 20


def python(context: DoctorContext) -> Check:
    """Which Python, and which jaxd: both ends need the same minor version of the first."""
    return Check("python", "ok", f"{platform.python_version()}, jaxd {__version__}")


def packages(context: DoctorContext) -> Check:
    """What the client needs."""
    versions = {name: context.version(name) for name in _REQUIRED_PACKAGES}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        words = f"not installed: {', '.join(missing)}"
        return Check("packages", "bad", words, "Install jaxd again, from its checkout or wheel.")
    return Check("packages", "ok", ", ".join(f"{name} {v}" for name, v in versions.items()))


def server_extra(context: DoctorContext) -> Check:
    """Whether a server could run here, where one is needed."""
    if has_server_extra():
        return Check("server extra", "ok", f"jax {context.version('jax')}")
    needed = context.settings.server is None
    advice = "To run a server here: pip install 'jaxd[server]'. Else set JAXD_SERVER."
    return Check("server extra", "bad" if needed else "note", "no jax here", advice)


def configuration(context: DoctorContext) -> Check:
    """Where lasting choices would be."""
    path = config_file()
    return Check("config file", "ok", path if os.path.exists(path) else f"none ({path})")


def runtime_directory(context: DoctorContext) -> Check:
    """The folder of the local server's socket."""
    name, directory = "runtime directory", context.files.directory
    longest = max(map(os.fsencode, (context.files.socket, context.files.control)), key=len)
    if len(longest) > MAX_PATH_BYTES:
        words = (
            f"{os.fsdecode(longest)} has {len(longest)} bytes, and a socket's path may have "
            f"{MAX_PATH_BYTES}"
        )
        return Check(name, "bad", words, "Set XDG_RUNTIME_DIR to a shorter path.")
    if not os.path.lexists(directory):
        return Check(name, "ok", f"{directory}, made when it is needed")
    try:
        return Check(name, "ok", f"{make_private_directory(directory)}, private")
    except JaxdError as error:
        return Check(name, "bad", directory, str(error))


def disk(context: DoctorContext) -> Check:
    """Room for a socket, a lock and a log."""
    place = context.files.directory
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    found = f"{free / 1e6:,.0f} MB free at {place}"
    if free < _MIN_FREE_BYTES:
        return Check("disk", "bad", found, "Free some room, or set XDG_RUNTIME_DIR elsewhere.")
    return Check("disk", "ok", found)


def shared_memory_files(context: DoctorContext) -> Check | None:
    """Whether large arrays can go to a server on this machine without a socket."""
    if not context.is_server_local:
        return None
    if shared_memory.available():
        return Check("memory to share", "ok", "files in memory (memfd), no folder needed")
    advice = "Nothing to do: large arrays go through the socket, and take a little longer."
    return Check("memory to share", "note", "this system has no memfd_create", advice)


def token(context: DoctorContext) -> Check:
    """The secret for TCP and TLS."""
    settings = context.settings
    try:
        found = settings.read_token()
    except JaxdError as error:
        return Check("token", "bad", "not usable", str(error))
    if found is not None:
        place = settings.token_file or default_token_file()
        return Check("token", "ok", "from JAXD_TOKEN" if settings.token else f"in {place}")
    if context.address.needs_token:
        advice = (
            "Copy the server's (~/.config/jaxd/token there) to the same place here, or name "
            "it with JAXD_TOKEN_FILE."
        )
        return Check("token", "bad", f"none, and {context.address.kind}:// needs one", advice)
    return Check("token", "ok", "none (only TCP and TLS need one)")


def store(context: DoctorContext) -> Check | None:
    """The store that `JAXD_STORE` names, as far as it shows from here what it is."""
    named = context.environment.get("JAXD_STORE", "")
    if named in ("", "none"):
        return None
    name, shown = "store", without_password(named)
    if "://" in named and find_spec("fsspec") is None:
        return Check(name, "bad", f"{shown} needs fsspec", "Run: pip install 'jaxd[store]'")
    if "://" not in named and not os.path.isabs(named):
        return Check(name, "bad", shown, "Name the folder with its absolute path, or give a URL.")
    try:
        key = _place_of_store_key(context)
    except JaxdError as error:
        return Check(name, "bad", f"{shown} is not used without its key", str(error))
    access = "read only" if _is_readable_only(context, named) else "read and written"
    return Check(name, "ok", f"{shown}, {access}, {key}")


def _place_of_store_key(context: DoctorContext) -> str:
    """Where the key of the store is, or will be; it is read where it is, and not made.

    Raises:
        ConfigurationError: when it cannot be used.
    """
    given = next((each for each in STORE_KEY_VARIABLES if each in context.environment), None)
    if given is None and not os.path.exists(store_key_file()):
        return f"its key will be made in {store_key_file()}"
    read_store_key()
    return f"its key in {given or store_key_file()}"


def _is_readable_only(context: DoctorContext, named: str) -> bool:
    is_said = context.environment.get("JAXD_STORE_READ_ONLY", "") not in ("", "0")
    is_web = named.startswith(("http://", "https://"))
    return is_said or is_web or (os.path.isdir(named) and not os.access(named, os.W_OK))
