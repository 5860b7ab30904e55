"""Starts the local server in the background: exactly one, however many processes ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from jaxd.connection.control_client import send_request
from jaxd_protocol.errors import (
    ConfigurationError,
    DeadlineExceeded,
    NoServer,
    ServerStartFailed,
)
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import (
    LocalServerFiles,
    is_server_running,
    make_private_directory,
)

SERVER_COMMAND = (sys.executable, "-P", "-m", "jaxd_server")

_AUTO_IDLE_TIMEOUT_S = 3600
_START_TIMEOUT_S = 60.0
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.002, 0.05
_LOG_TAIL_LINES = 20


def start_background(
    files: LocalServerFiles,
    *,
    by_hand: bool = False,
    server_command: Sequence[str] = SERVER_COMMAND,
    deadline: float | None = None,
) -> None:
    """Returns when a server answers on `files.socket`; starts one if none does.

    Processes that race wait for the one that is first. The server outlives its starter; it stops
    after an idle hour, unless it was started `by_hand`. Its output is appended to `files.log`.

    Waits until the server can run calls. When that takes longer than a minute, or than until the
    deadline of `time.monotonic()`, but a server answers on the socket, the rest of the waiting is
    left to the caller's first call.

    Raises:
        DeadlineExceeded: when another process is starting it at the deadline.
        ServerStartFailed: when it ended before it answered; quotes the end of its log.
        NoServer: when it did not answer within a minute.
        ConfigurationError: when the directory cannot be made, is not private, or is full.
    """
    make_private_directory(files.directory)
    with _start_lock(files, deadline):
        if is_server_running(files.socket):
            return
        _print_line(f"starting a local server (log: {files.log})")
        log_begin = _log_size(files)
        process = _spawn(files, by_hand=by_hand, server_command=server_command)
        _wait_until_ready(process, files, log_begin, deadline)


@contextmanager
def _start_lock(files: LocalServerFiles, latest: float | None) -> Iterator[None]:
    """Held while a server is started; the file has the number of the process that holds it.

    Raises:
        NoServer: when another process has held it for a minute.
        DeadlineExceeded: when it is later than `latest`.
    """
    import fcntl

    deadline, look_s = time.monotonic() + _START_TIMEOUT_S, _SHORTEST_LOOK_S
    with _check_writable(files.lock) as descriptor:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _held_lock(files) from None
                if _is_over(latest):
                    raise DeadlineExceeded(
                        "the call's timeout_s passed while another process was starting the local "
                        "server. Give it more time, or start the server before: jaxd start"
                    ) from None
            time.sleep(look_s)
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
        with suppress(OSError):  # no room: then nobody learns who holds it
            os.truncate(descriptor, 0)
            os.write(descriptor, b"%d" % os.getpid())
        yield


def _held_lock(files: LocalServerFiles) -> NoServer:
    try:
        with open(files.lock, encoding="ascii") as file:
            holder = f"process {int(file.read())}"
    except (OSError, ValueError):
        holder = "another process"
    return NoServer(
        f"{holder} has been starting the local server for {_START_TIMEOUT_S:.0f} s, and holds "
        f"{files.lock}. If it is stopped or hangs, end it; or start a server with `jaxd serve`."
    )


@contextmanager
def _check_writable(path: str) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror}. Free some room, or set XDG_RUNTIME_DIR to a "
            "directory of yours on another disk."
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _log_size(files: LocalServerFiles) -> int:
    """The size of the log, which the host shortens when it is long."""
    try:
        return os.path.getsize(files.log)
    except OSError:
        return 0


def _spawn(
    files: LocalServerFiles, *, by_hand: bool, server_command: Sequence[str]
) -> subprocess.Popen[bytes]:
    lifetime = ["--idle-timeout-s", "0" if by_hand else str(_AUTO_IDLE_TIMEOUT_S)]
    listen = ["--listen", str(Address.unix(files.socket))]
    with _check_writable(files.log) as log:
        return subprocess.Popen(  # noqa: S603  our own server, without a shell
            [*server_command, *listen, *lifetime, *([] if by_hand else ["--auto"])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=files.directory,  # so that it holds no directory of its starter's
            start_new_session=True,
        )


def _wait_until_ready(
    process: subprocess.Popen[bytes],
    files: LocalServerFiles,
    log_begin: int,
    latest: float | None,
) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    look_s = _SHORTEST_LOOK_S
    try:
        while not _is_ready(files):
            if process.poll() is not None:
                raise _startup_error(files, log_begin)
            if time.monotonic() > deadline:
                _warn_slow_start(process, files)
                return
            if _is_over(latest) and is_server_running(files.socket):
                return  # who comes next finds it, and waits for it as long as its own time lasts
            time.sleep(look_s)
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
    finally:
        # The server outlives us on purpose; Popen would warn that it was not waited for.
        process.returncode = process.returncode or 0


def _is_over(latest: float | None) -> bool:
    return latest is not None and time.monotonic() >= latest


def _is_ready(files: LocalServerFiles) -> bool:
    """Whether calls can be run.

    Raises:
        ServerStartFailed: when the server says that none can: no worker of it starts.
    """
    status = send_request(files.control, {"ask": "status"})
    if status is not None and status.get("worker_state") == "broken":
        raise ServerStartFailed(str(status.get("why")))
    return status is not None and status.get("worker_state") not in {"starting", "dead"}


def _startup_error(files: LocalServerFiles, log_begin: int) -> ServerStartFailed:
    return ServerStartFailed(
        f"the local server ended before it answered. The end of its log, {files.log}:\n"
        f"{log_tail(files.log, log_begin)}\n"
        "Run `jaxd doctor`, or `jaxd serve` to watch it start."
    )


def _warn_slow_start(process: subprocess.Popen[bytes], files: LocalServerFiles) -> None:
    if is_server_running(files.socket):
        return
    process.kill()
    process.wait()
    raise NoServer(
        f"the local server did not answer within {_START_TIMEOUT_S:.0f} s and was ended. "
        f"See its log, {files.log}, or run `jaxd serve` to watch it start."
    )


def log_tail(path: str, begin: int) -> str:
    """The last lines of a log, of what was written from a byte on."""
    try:
        with open(path, "rb") as file:
            is_shortened = os.fstat(file.fileno()).st_size < begin
            file.seek(0 if is_shortened else begin)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        lines = [f"(cannot be read: {error.strerror})"]
    return "\n".join(f"    {line}" for line in lines[-_LOG_TAIL_LINES:]) or "    (nothing)"


def _print_line(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"jaxd: {text}\n")
        sys.stderr.flush()
