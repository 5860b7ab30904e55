"""Somebody who has taken a server's place: passes the conversation on, or answers by himself.

Run as a program, so that it can be another user: root starts it, and it becomes that user before
it listens. It needs nothing but the standard library, which it has loaded by then.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Self

_PATIENCE_S = 30.0


class Squatter:
    """Waits for one client; ends with the `with`.

    Args:
        place: where it listens: a path, or a host and a port.
        uid: the user that it becomes; None: it stays who the tests are.
        target: the port of the server that it passes the client on to.
        tls: whether it speaks TLS there.
        answer: what it says instead, when it has heard the client's first message.

    Attributes:
        port: where it listens.
        heard: all that its client has said; known at the end.
        said: all that it has told its client; known at the end.
    """

    def __init__(
        self,
        place: str | tuple[str, int],
        uid: int | None,
        *,
        target: int | None = None,
        tls: bool = False,
        answer: bytes = b"",
    ) -> None:
        told = {"place": place, "uid": uid, "target": target, "tls": tls, "answer": answer.hex()}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.heard = self.said = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        words = self._process.communicate("", _PATIENCE_S)[0]  # the end of its stdin is its own
        report = json.loads(words)
        self.heard, self.said = bytes.fromhex(report["heard"]), bytes.fromhex(report["said"])


def _listening(place: str | list[Any]) -> socket.socket:
    if isinstance(place, str):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(place)
        os.chmod(place, 0o777)
    else:
        sock = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
        sock.bind((place[0], place[1]))
    sock.listen()
    return sock


def _pass_on(source: socket.socket, sink: socket.socket, noted: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            noted.extend(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def _serve(
    listening: socket.socket, told: dict[str, Any], heard: bytearray, said: bytearray
) -> None:
    with suppress(OSError):
        client, _ = listening.accept()
        if told["target"] is None:
            heard.extend(client.recv(1 << 16))
            said.extend(bytes.fromhex(told["answer"]))
            client.sendall(said)
            _pass_on(client, socket.socketpair()[0], heard)
            return
        server = socket.socket()
        server.connect(("127.0.0.1", told["target"]))
        if told["tls"]:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            server = context.wrap_socket(server)
        threading.Thread(target=_pass_on, args=(client, server, heard), daemon=True).start()
        _pass_on(server, client, said)


def main() -> None:
    """Listens, says where, and tells at the end of stdin what it has heard and said."""
    told = json.loads(sys.argv[1])
    if told["uid"] is not None:
        os.setgroups([])
        os.setgid(told["uid"])
        os.setuid(told["uid"])
    listening = _listening(told["place"])
    name = listening.getsockname()
    print(0 if isinstance(name, str) else name[1], flush=True)
    heard, said = bytearray(), bytearray()
    threading.Thread(target=_serve, args=(listening, told, heard, said), daemon=True).start()
    sys.stdin.read()
    print(json.dumps({"heard": heard.hex(), "said": said.hex()}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    import encodings.idna  # noqa: F401  the library may lie where the other user cannot read

    main()
