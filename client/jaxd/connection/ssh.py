"""`ssh://` addresses: a Unix socket on another machine, reached by the user's own ssh.

Each connection is one ssh process, whose stdin and stdout are our socket; over there
`jaxd.connection.ssh_relay` joins them with the server's. ssh authenticates both ends: no token and
no open port are needed. The user's configuration holds: aliases, jump hosts, and a master
connection, with which another process costs no login. It ends with the connection, and the next
connection starts another.
"""

from __future__ import annotations

import base64
import os
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib import resources
from typing import IO, Final

from jaxd.connection.ssh_relay import CONNECTED, REFUSED
from jaxd_protocol.errors import ConfigurationError, NoServer
from jaxd_protocol.network.addresses import Address

_CONNECT_TIMEOUT_S: Final = 120.0
"""For logging in; the user may have to type a password."""

_MAX_GREETING_BYTES: Final = 1 << 16
_STDERR_LINES: Final = 5

_IGNORING_SIGINT: Final = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "jaxd")
"""A Ctrl-C is for the call, not for the connection: it reaches all processes of a terminal."""


def dial_over_ssh(
    address: Address, seconds: Callable[[float], float] = lambda most: most
) -> socket.socket:
    """A socket that is connected to the server behind an `ssh://` address.

    Args:
        address: of the server.
        seconds: gives the time for the next step, which is no more than its argument; raises
            `TimeoutError` when there is none.

    Raises:
        NoServer: when ssh cannot log in, or no server runs over there. Its cause is a
            `PermissionError` where it is of no use to try again.
        ConfigurationError: when there is no ssh here.
    """
    ours, theirs = socket.socketpair()
    with ExitStack() as on_error:
        on_error.callback(ours.close)
        with theirs, tempfile.TemporaryFile() as stderr:
            process = _start(ssh_command(address), theirs.fileno(), stderr)
            theirs.close()  # so that its end is ours
            greeting = _read_greeting(ours, seconds)
            if greeting != CONNECTED:
                raise _connect_error(address, greeting, process, stderr)
        on_error.pop_all()
    return ours


def ssh_command(address: Address) -> list[str]:
    """What is run here, with what is to be run there."""
    # no agent, display, port or Kerberos ticket of this machine over there, whatever is configured
    command = ["ssh", "-a", "-k", "-x", "-T", "-o", "ClearAllForwardings=yes", "-o", "Tunnel=no"]
    command += ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"]
    if not _has_terminal():
        command += ["-o", "BatchMode=yes"]  # no one could type
    if address.port:
        command += ["-p", str(address.port)]
    if address.user:
        command += ["-l", address.user]
    return [*command, "--", address.host, _remote_command(address)]


def _remote_command(address: Address) -> str:
    """For whatever shell is there: one line, in which nothing has a meaning to any of them."""
    source = resources.files("jaxd.connection").joinpath("ssh_relay.py").read_bytes()
    program = f'import base64;exec(base64.b64decode("{base64.b64encode(source).decode()}"))'
    words = [program, address.path, *([] if address.uid is None else [str(address.uid)])]
    return f"exec python3 -c {shlex.join(words)}"


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True


def _start(command: Sequence[str], line: int, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    untouched = _IGNORING_SIGINT if os.name == "posix" else ()
    try:
        process = subprocess.Popen(  # noqa: S603  the user's ssh; a host cannot be an option
            [*untouched, *command], stdin=line, stdout=line, stderr=stderr
        )
    except OSError as error:
        raise ConfigurationError(
            f"ssh cannot be started here: {error.strerror}. Install it (openssh-client), or use "
            "another address."
        ) from error
    with suppress(RuntimeError):  # to reap it; without a thread, this process's end does
        threading.Thread(target=process.wait, name="jaxd-ssh", daemon=True).start()
    return process


def _read_greeting(line: socket.socket, seconds: Callable[[float], float]) -> str:
    """The first line of the relay; what a login prints comes before it. Empty when it ended."""
    greeting = b""
    with suppress(OSError):  # it took too long among them
        for _ in range(_MAX_GREETING_BYTES):
            line.settimeout(seconds(_CONNECT_TIMEOUT_S))
            byte = line.recv(1)
            if not byte:
                break
            greeting += byte
            if byte == b"\n":
                text = greeting.decode(errors="replace").strip()
                if text == CONNECTED or text.startswith(REFUSED):
                    return text
                greeting = b""
    return ""


_REFUSALS: Final = (
    *("Permission denied", "Host key verification failed", "Too many authentication failures"),
    *("listens at", "others can put a socket", "several servers run"),
)
"""What ssh, and our program over there, say where only a person can change something."""


def _connect_error(
    address: Address, greeting: str, process: subprocess.Popen[bytes], stderr: IO[bytes]
) -> NoServer:
    if greeting:
        words = greeting.removeprefix(REFUSED)
        return _with_cause(
            NoServer(f"no server answers at {address}: on that machine, {words}"), words
        )
    process.terminate()
    process.wait()
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").strip().splitlines()[-_STDERR_LINES:]
    words = "; ".join(line.strip() for line in lines) or "it said nothing"
    login = f"{address.user}@{address.host}" if address.user else address.host
    if process.returncode == _NOT_FOUND:
        missing = NoServer(
            f"{address} cannot be reached: python3 is not there, or ssh is not here ({words}). "
            f"Try: ssh {login} python3 -V"
        )
        missing.__cause__ = PermissionError(words)
        return missing
    port = f"-p {address.port} " if address.port else ""
    found = NoServer(f"ssh cannot reach {address}: {words}. Try: ssh {port}{login} true")
    return _with_cause(found, words)


_NOT_FOUND: Final = 127
"""The exit code of a shell that does not find a program."""


def _with_cause(error: NoServer, words: str) -> NoServer:
    is_refused = any(refusal in words for refusal in _REFUSALS)
    error.__cause__ = PermissionError(words) if is_refused else ConnectionError(words)
    return error
