"""Sends requests to a host on this machine, over its control socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from jaxd_protocol.errors import ConnectionLost, ProtocolError
from jaxd_protocol.network.addresses import Address

_REPLY_TIMEOUT_S = 5.0
_MAX_REPLY_BYTES = 1 << 26
_PIECE_BYTES = 1 << 18
_LEAST_TIMEOUT_S = 0.001


def send_request(
    path: str, request: Mapping[str, Any], uid: int | None = None, *, is_slow: bool = False
) -> dict[str, Any] | None:
    """The reply of the host whose control socket is at `path`; None when there is no host.

    Args:
        path: of a server of this user's, of root's, or of the user `uid`.
        request: the request.
        uid: whose server it may be as well.
        is_slow: whether the host may take as long as it likes for the reply.

    Raises:
        AuthenticationFailed: when another user holds the socket.
        ConnectionLost: when the socket is held but there is no reply within five seconds,
            ten times as long as a host waits for a worker that hangs.
        ProtocolError: when the reply is none of jaxd's.
    """
    control = _connect(path, uid)
    if control is None:
        return None
    with control:
        if is_slow:
            control.settimeout(None)
        return _exchange(control, path, request)


def stop_and_wait(path: str, *, now: bool = False, uid: int | None = None) -> bool:
    """Stops the host at `path` and returns when it is gone; False when there was none.

    It finishes its running calls first, however long they take, unless it is to stop `now`.

    Raises:
        AuthenticationFailed, ProtocolError: as `send_request`.
        ConnectionLost: when it does not even reply.
    """
    control = _connect(path, uid)
    if control is None:
        return False
    with control:
        replied = _exchange(control, path, {"ask": "stop", "now": now}) is not None
        control.settimeout(None)
        with suppress(ConnectionError):  # one more way of being gone
            control.recv(1)  # nothing more is sent: it returns at the end of the host
    return replied


class ControlStream:
    """What a host goes on to say after one request. One thread reads; any may close it.

    Args:
        control: connected to the host.
        path: of its control socket.
        request: has the host go on to say something.

    Raises:
        ConnectionLost: when the host has ended.
    """

    def __init__(self, control: socket.socket, path: str, request: Mapping[str, Any]) -> None:
        self._control = control
        self._path = path
        self._unread = bytearray()
        try:
            control.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self.close()
            raise self._lost() from error

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next object; None when there is none in so many seconds.

        Raises:
            ConnectionLost: when the host has ended, or the stream was closed.
            ProtocolError: when it says something else.
        """
        until = time.monotonic() + timeout_s
        while (end := self._unread.find(b"\n")) < 0:
            if not self._read(max(0.0, until - time.monotonic())):
                return None
        line, self._unread = self._unread[:end], self._unread[end + 1 :]
        return _parsed(bytes(line), self._path)

    def _read(self, timeout_s: float) -> bool:
        """Reads what there is; whether there was something in time."""
        try:
            self._control.settimeout(max(_LEAST_TIMEOUT_S, timeout_s))
            piece = self._control.recv(_PIECE_BYTES)
        except TimeoutError:
            return False
        except OSError as error:  # it was closed
            raise self._lost() from error
        if not piece or len(self._unread) > _MAX_REPLY_BYTES:
            raise self._lost()
        self._unread += piece
        return True

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(
            f"the server at {self._path} has ended. Wait until it is back, or run: jaxd start"
        )

    def close(self) -> None:
        """Ends it; a thread that reads gets `ConnectionLost`."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()


def open_stream(
    path: str, request: Mapping[str, Any], uid: int | None = None
) -> ControlStream | None:
    """What the host whose control socket is at `path` goes on to say; None: there is no host.

    Args:
        path: as of `send_request`.
        request: the request.
        uid: whose server it may be as well.

    Raises:
        AuthenticationFailed: when another user holds the socket.
        ConnectionLost: when the host has just ended.
    """
    control = _connect(path, uid)
    return None if control is None else ControlStream(control, path, request)


def _connect(path: str, uid: int | None) -> socket.socket | None:
    if not hasattr(socket, "AF_UNIX"):
        return None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.settimeout(_REPLY_TIMEOUT_S)
    try:
        control.connect(path)
    except OSError:
        control.close()
        return None
    from jaxd.connection.connect import check_owner  # imports rpyc: only where a host answers

    try:
        check_owner(control, Address.unix(path)._replace(uid=uid))
    except BaseException:
        control.close()
        raise
    return control


def _exchange(
    control: socket.socket, path: str, request: Mapping[str, Any]
) -> dict[str, Any] | None:
    try:
        control.sendall(json.dumps(request).encode() + b"\n")
        with control.makefile("rb") as replies:
            line = replies.readline(_MAX_REPLY_BYTES)
    except TimeoutError as error:
        raise ConnectionLost(
            f"the server's host holds {path} but does not reply. Find its process with "
            f"`lsof {path}`, and end it with `kill` and its number."
        ) from error
    except ConnectionError:
        return None  # it ended meanwhile
    if not line:
        return None
    return _parsed(line, path)


def _parsed(line: bytes, path: str) -> dict[str, Any]:
    reply = None
    with suppress(ValueError):
        reply = json.loads(line)
    if not isinstance(reply, dict):
        raise ProtocolError(
            f"what holds {path} does not reply as jaxd does. Find its process with `lsof {path}`."
        )
    return reply
