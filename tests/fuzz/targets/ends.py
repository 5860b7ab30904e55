"""Whole ends, a worker, a client and a host, with a peer that sends arbitrary messages."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import warnings
from contextlib import suppress
from functools import cache
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

from jaxd_protocol.errors import JaxdError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.data_locations import (
    VALUE,
    DataLocation,
    ResultPolicy,
    pack_ids,
    pack_locations,
)
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.network import handshake
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.host import Host
from jaxd_server.runtime.json_lines import messages
from tests.fuzz.examples import RESULT, SKELETON
from tests.fuzz.target import Target
from tests.fuzz.targets.connections import frame
from tests.fuzz.targets.files import folder
from tests.server.staging import until
from tests.shared.pytree import samples


def _control(data: bytes) -> None:
    """Lines, as the host hears them; its answers can be written."""

    async def speak() -> None:
        reader = asyncio.StreamReader(limit=1 << 12)
        reader.feed_data(data)
        reader.feed_eof()
        host = Host(ServerOptions(cache_dir="none"))
        host._workers = Mock()
        host._workers.configure_mock(
            status=AsyncMock(return_value={}), restart=AsyncMock(return_value={})
        )
        for sync in ("describe", "quarantined", "release"):
            getattr(host._workers, sync).return_value = {}
        async for request in messages(reader):
            json.dumps(await host.reply(request))

    asyncio.run(speak())


@cache
def _in_process_server() -> Any:
    """A whole worker in this process; `close` ends it."""
    from tests.server.in_process import InProcessServer

    return InProcessServer()


def close() -> None:
    """Ends what targets have started in this process."""
    if _in_process_server.cache_info().currsize:
        _in_process_server().close()
        _in_process_server.cache_clear()


def _requests(data: bytes) -> None:
    """Messages of a client that was let in; the connection ends, and nothing is left of it."""
    in_process_server = _in_process_server()
    with in_process_server.raw() as sock, suppress(OSError):
        handshake.handshake_with_server(sock, handshake.UNIX, {}, None, None)
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    now, budget = in_process_server.parts.status.now, in_process_server.parts._worker_context.budget
    until(lambda: not (now()["connections"] or budget.calls or budget.used))


class _FakeServer:
    """A server that greets, and says to whoever calls what it was told to say."""

    def __init__(self) -> None:
        self.says = b""
        self.path = f"{folder()}/impostor.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with sock, suppress(OSError, EOFError):
                sock.recv(len(handshake.MAGIC), socket.MSG_WAITALL)
                handshake.handshake_with_client(sock, handshake.UNIX, (), "me")
                welcome = {"auth": "none", "session": "s", "slots": 8, "max_frame_bytes": 1 << 20}
                handshake.finish_handshake(sock, {}, None, welcome)
                sock.recv(1 << 16)  # the call
                sock.sendall(self.says)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass


@cache
def _fake_server() -> _FakeServer:
    return _FakeServer()


HELD: list[Any] = []


def _callee(x: Any) -> Any:
    return x + len(HELD) + len(os.sep)


def _server_messages(data: bytes) -> None:
    """What a server says to a client while a call is open; the caller gets an error of ours."""
    from jaxd import connect

    impostor = _fake_server()
    impostor.says = data
    with (
        patch.dict(os.environ, XDG_CONFIG_HOME=f"{folder()}/none"),
        warnings.catch_warnings(),
        connect(f"unix://{impostor.path}") as client,
    ):
        warnings.simplefilter("ignore")
        client.persistent_call(_callee, results="numpy")(1.0)
    assert not HELD


def _replies() -> list[bytes]:
    from jaxd_protocol.wire.connection import encode_reply, encode_request

    def frames(*bodies: bytes) -> bytes:
        return b"".join(map(frame, bodies))

    failure = encode_failure(ValueError("x"))
    events = [
        ("stage", {"stage": "trace", "function": "f"}),
        ("built", {"function": "f", "seconds": 3.0, "reason": "r"}),
        ("warning", {"function": "f", "text": "t"}),
        ("print", {"text": "", "stream": "stdout"}),
        ("warned", {"text": "t", "category": "UserWarning"}),
        ("logged", {"name": "jaxd.fuzz", "level": 10, "text": "t"}),
        ("compiled", {"text": "t"}),
    ]
    return [
        frames(encode_reply(1, (0, RESULT, bytes(samples.parse(RESULT).whole.blob_bytes)))),
        frames(encode_reply(1, (1, failure))),
        frames(encode_reply(1, (1, failure)), encode_reply(2, (1, failure))),
        *[
            frames(encode_request(1, "event", (1, kind, json.dumps(content))))
            for kind, content in events
        ],
        frames(encode_request(1, "describe", (b"k" * 16,)), encode_request(2, "code", (b"f",))),
        frames(encode_request(1, "callback", (1, SKELETON, b"", 1, 0, 0))),
    ]


def _request(verb: str, *args: Any) -> bytes:
    from jaxd_protocol.wire.connection import encode_request

    return frame(encode_request(1, verb, args))


def _conversations() -> list[bytes]:
    number = ResultPolicy(1, 0, 0).to_bytes()
    call = (b"k" * 16, SKELETON, b"", None, 1, b"", b"", b"")
    return [
        _request("statistics") + _request("info") + _request("bye"),
        _request("call", *call),
        _request(
            "call",
            *call[:5],
            number,
            pack_locations([DataLocation(1, VALUE, 1 << 20, 0)]),
            pack_ids([7]),
        ),
        _request("put", 1, samples.encode((1.0, 2)).skeleton, bytes(16), b"", ())
        + _request("name", "n", b"", pack_ids([1 << 20]), 3.5)
        + _request("named", "n", 9)
        + _request("values"),
        _request("fetch", pack_ids([1]), b"") + _request("part", 1, (1, None), 1, 2),
        _request("drop", pack_ids([1])) + _request("adopt", pack_ids([1]), b"") + _request("share"),
        _request("functions")
        + _request("recent", 3)
        + _request("recipes", "")
        + _request("trace", b"name", "1.1")
        + _request("traced", b"name")
        + _request("profile", "begin", 1)
        + _request("forget"),
        _request("view", 0, "")
        + _request("detail", b"k" * 16, "", "")
        + _request("cancel_call", "c"),
        _request("why", b"k" * 16, SKELETON, ("f", b"f" * 16, Options().to_bytes(), (), (), True)),
        _request("stages", "lower", b"k" * 16, SKELETON, b"", ()),
    ]


ENDS: dict[str, Target] = {
    "line on the control socket": Target(
        _control,
        [
            b'{"ask": "status"}\n{"ask": "stop", "now": true}\n',
            b'{"ask": null}\n[]\n',
            b'{"ask": "watch", "every_s": 0.5}\n',
        ],
        (ValueError,),  # which the host answers
    ),
    "answers": Target(
        _server_messages, _replies(), (JaxdError, ValueError)
    ),  # one of them says that
    "requests": Target(_requests, _conversations(), (JaxdError,)),
}
