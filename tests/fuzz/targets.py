"""What is given bytes: one function for each thing that parses, with examples to begin from.

A target returns, or raises one of its own errors. Anything else is a finding.
"""

from __future__ import annotations

import asyncio
import atexit
import io
import json
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import numpy as np

from jaxd import lockfile
from jaxd.aims import function_at
from jaxd.results import ResultReader
from jaxd.settings import Settings
from jaxd_protocol import handshake, tokens
from jaxd_protocol.accounts import Account
from jaxd_protocol.addresses import Address
from jaxd_protocol.calls import Options
from jaxd_protocol.certificates import client_context, server_context
from jaxd_protocol.compression import deflate, inflate
from jaxd_protocol.descriptions import Description
from jaxd_protocol.elsewhere import (
    PACKED,
    VALUE,
    Row,
    Stay,
    pack_ids,
    pack_rows,
    unpack_ids,
    unpack_numbers,
    unpack_rows,
)
from jaxd_protocol.errors import Busy, JaxdError
from jaxd_protocol.failures import describe_failure, rebuild_failure
from jaxd_protocol.fingerprint import Part
from jaxd_protocol.meanings import Meaning
from jaxd_protocol.peers import this_end
from jaxd_protocol.recipes import load_recipes
from jaxd_protocol.trees import dump_literal, load_literal, parse_skeleton
from jaxd_protocol.trees.forms import argument_forms
from jaxd_protocol.trees.references import load_reference
from jaxd_protocol.wire.frames import Frame
from jaxd_protocol.wire.reading import FrameReader
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.control import _reply
from jaxd_server.kept_calls import KeptCall
from jaxd_server.lines import messages
from jaxd_server.result_forms import ResultForm
from jaxd_server.store.files import Broken, encode, read_file, read_header
from tests.certificates import authority
from tests.shared.trees import samples

__all__ = ["TARGETS", "Target", "close"]


class Target(NamedTuple):
    """Something that parses.

    Attributes:
        run: is given bytes.
        seeds: bytes that it takes, to begin from.
        errors: what it may raise.
    """

    run: Callable[[bytes], object]
    seeds: Sequence[bytes]
    errors: tuple[type[Exception], ...] = (JaxdError,)


class Said:
    """A line on which all was said beforehand."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        """What is left."""
        return self._stream.read(count)

    def sendall(self, data: bytes, /) -> None:
        """Nobody listens."""


def _spoken(*said: dict[str, Any]) -> bytes:
    texts = [json.dumps(each).encode() for each in said]
    return b"".join(struct.pack("!H", len(text)) + text for text in texts)


HELLO = {**this_end({"jax": "1"}).to_message(), "session": "s", "nonce": "0" * 32}
ACCOUNTS = [Account.named("alice", "a" * 43), Account.unnamed("b" * 43)]


def _greeted_by_a_client(data: bytes) -> None:
    for accounts in ((), ACCOUNTS):
        handshake.greet_client(Said(data), {}, accounts, "uid:1")


def _greeted_by_a_server(data: bytes) -> None:
    for token in (None, "a" * 43):
        with suppress(JaxdError):
            handshake.greet_server(Said(data), {}, token, None)
    handshake.greet_server(Said(data), {}, "b" * 43, "session")


def _frames(data: bytes) -> None:
    for inflates in (False, True):
        stream = io.BytesIO(data)

        def receive(views: list[memoryview], counts: list[int], stream: Any = stream) -> None:
            count = stream.readinto(views[0])
            if not count:
                raise EOFError
            counts.append(count)

        reader = FrameReader(receive, 1 << 20, inflates=inflates)
        with suppress(JaxdError, EOFError):
            while True:
                reader.peek()
                reader.advance()


def _frame(body: bytes, flags: int = 0, beside: bytes = b"") -> bytes:
    return struct.pack("!LB", len(body), flags) + body + b"\n" + beside


@cache
def _connection() -> Any:
    from jaxd_protocol.wire.connection import BulkConnection

    connection: Any = BulkConnection.__new__(BulkConnection)
    connection.on_request = connection.on_reply = lambda *_: None
    connection._channel = Mock()
    return connection


def _message(data: bytes) -> None:
    _connection().dispatch(Frame(data))


def _wire_messages() -> list[bytes]:
    from jaxd_protocol.wire.connection import encode_reply, encode_request
    from tests.shared.wire.test_connection import FORGED

    good = [
        encode_request(5, "call", (b"key", 3, "text", (1, 2.5, None, True))),
        encode_request(500, "event", (1, "kind", "{}")),
        encode_reply(500, (0, b"skeleton", slice(1, 2), frozenset([1]), 1j)),
    ]
    return good + [bytes(frame) for frame in FORGED.values()]


def _skeleton(data: bytes) -> None:
    """As a server reads it, but for what it unpickles, which is code by design."""
    layout = parse_skeleton(
        data,
        lambda *_: samples.Point,
        bytes,
        open_template=lambda _: tuple,
        close=lambda *_: None,
    )
    layout.build([0] * len(layout.leaves))


def _result(data: bytes) -> None:
    """As a client reads it, with the data that it says it has."""
    reader = ResultReader({})
    layout = reader.layout(data)
    if layout.whole.blob_bytes > 1 << 16 or layout.whole.buffers > 64:
        return
    sizes = [leaf.nbytes for leaf in layout.leaves if leaf.tag in "AK"]
    if sum(sizes) < 1 << 16:
        spare = [memoryview(bytearray(size)) for size in sizes]
        reader.read(data, bytes(layout.whole.blob_bytes), spare[: layout.whole.buffers], "numpy")


def _skeletons() -> list[bytes]:
    arrays = np.arange(6, dtype=np.float32).reshape(2, 3)
    trees: list[Any] = [
        ((1.0, True, None, 3j), {"a": [1, (2, {"b": "text"})]}),
        ((arrays, samples.Point(arrays, [np.zeros(5000)])), {}),
        ((samples.Weak(arrays), samples.Keys("fry", np.zeros((2, 2), np.uint32))), {"k": b"x"}),
    ]
    return [samples.encode(tree).skeleton for tree in trees]


def _literal(data: bytes) -> Any:
    return load_literal(data, 0)[0]


def _of_literal(parse: Callable[[Any], object]) -> Callable[[bytes], None]:
    """What is said in rpyc's values, which have the same forms as literals."""

    def run(data: bytes) -> None:
        parse(_literal(data))

    return run


def _rows(data: bytes) -> None:
    head, rest = data[:1], data[1:]
    for parse in (
        lambda: unpack_rows(rest, head[0] if head else 0),
        lambda: unpack_ids(rest),
        lambda: unpack_numbers(rest),
    ):
        with suppress(JaxdError):
            parse()
    Stay.from_bytes(rest)


def _callback(value: Any) -> None:
    """What a server may have called, of a function that reaches these."""

    def outer(x: Any) -> Any:
        return lambda y: x + y

    held: list[Any] = []
    found = function_at(value, [outer, held, os], [held, os])
    assert found is not os.system
    assert getattr(found, "__module__", "") not in ("posix", "os", "builtins")


def _failure(value: Any) -> None:
    str(rebuild_failure(value))


def _failures() -> list[bytes]:
    found = []
    for error in (ValueError("x", 1), KeyError("é"), OSError(2, "no"), Busy("later", 3.0)):
        try:
            error.add_note("a note")
            raise error from KeyError("before")  # noqa: TRY301  for its traceback
        except Exception as raised:  # noqa: BLE001  whatever it is
            found.append(dump_literal(describe_failure(raised)))
    return found


def _inflated(data: bytes) -> None:
    nbytes = int.from_bytes(data[:2], "big")
    assert len(inflate(memoryview(data[2:]), nbytes)) == nbytes


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="jaxd-fuzz-", dir="/tmp")  # a socket's path is short
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.mkdir(f"{folder}/jaxd")
    return folder


def _written(name: str, data: bytes) -> str:
    path = f"{_folder()}/{name}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    return path


def _record(data: bytes) -> None:
    path = _written("record", data)
    for read in (
        lambda: read_header(path, check=True),
        lambda: read_file(path, "calls", b"n" * 16, "target"),
    ):
        with suppress(Broken):
            read()


def _forged_record(data: bytes) -> None:
    """With digests that fit, as somebody makes them who can write there."""
    pieces = encode("calls", b"n" * 16, "target", None, b"")
    import hashlib

    prefix = pieces[0][:12] + struct.pack("!Q", len(data))
    digest = hashlib.blake2b(prefix + data, digest_size=16).digest()
    path = _written("forged", prefix + digest + data)
    record = read_file(path, "calls", b"n" * 16, "target")
    KeptCall.from_content(record.content)


def _lockfile(data: bytes) -> None:
    """With a digest that fits."""
    body = zlib.compress(data, 1)
    whole = lockfile._MAGIC + lockfile._digest(body) + body
    lockfile.read_lockfile(_written("lockfile", whole))


def _lockfile_of(content: Any) -> bytes:
    body = zlib.compress(dump_literal(content))
    return lockfile._MAGIC + lockfile._digest(body) + body


def _raw_lockfile(data: bytes) -> None:
    lockfile.read_lockfile(_written("lockfile", data))


def _control(data: bytes) -> None:
    """Lines, as the host hears them; its answers can be written."""

    async def speak() -> None:
        reader = asyncio.StreamReader(limit=1 << 12)
        reader.feed_data(data)
        reader.feed_eof()
        host = Mock()

        async def status() -> dict[str, Any]:
            return {}

        host.status = status
        async for request in messages(reader):
            json.dumps(await _reply(request, host))

    asyncio.run(speak())


def _address(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    address = Address.parse(text)
    assert Address.parse(str(address)) == address


def _config(data: bytes) -> None:
    _written("jaxd/config.toml", data)
    with patch.dict(os.environ, XDG_CONFIG_HOME=_folder()):
        Settings.resolve()


def _token(data: bytes) -> None:
    token = tokens.read_token_file(_written("token", data))
    assert token.isprintable()
    assert token == token.strip()


def _tls(data: bytes) -> None:
    """What comes before the handshake of jaxd on such an address."""
    client, server = socket.socketpair()
    with client, server:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        line = TlsSocket(server, _tls_context(), server_side=True)
        line.settimeout(1.0)
        line.do_handshake()
        line.recv(4)


@cache
def _tls_context() -> Any:
    return server_context(*authority())


def _tls_hello() -> bytes:
    """The first bytes of a client."""
    client, server = socket.socketpair()
    with client, server:
        line = TlsSocket(client, client_context(pinned=True), server_name="h")
        line.settimeout(0.0)
        with suppress(OSError, EOFError):
            line.do_handshake()
        return server.recv(1 << 16)


@cache
def _shop() -> Any:
    """A whole worker in this process; `close` ends it."""
    from tests.server.in_process import Shop

    return Shop()


def close() -> None:
    """Ends what targets have started in this process."""
    if _shop.cache_info().currsize:
        _shop().close()
        _shop.cache_clear()


def _requests(data: bytes) -> None:
    """Messages of a client that was let in; the connection ends, and nothing is left of it."""
    shop = _shop()
    with shop.raw() as sock, suppress(OSError):
        handshake.greet_server(sock, {}, None, None)
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    until = time.monotonic() + 20.0
    budget = shop.parts._budget
    while shop.parts.status.now()["connections"] or budget.calls or budget.used:
        assert time.monotonic() < until, (shop.parts.status.now(), budget.calls, budget.used)
        os.sched_yield()


class _Impostor:
    """A server that greets, and says to whoever calls what it was told to say."""

    def __init__(self) -> None:
        self.says = b""
        self.path = f"{_folder()}/impostor.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with sock, suppress(OSError, EOFError):
                sock.recv(len(handshake.MAGIC), socket.MSG_WAITALL)
                handshake.greet_client(sock, {}, (), "me")
                welcome = {"auth": "none", "session": "s", "slots": 8, "max_frame_bytes": 1 << 20}
                handshake.finish_greeting(sock, {}, None, welcome)
                sock.recv(1 << 16)  # the call
                sock.sendall(self.says)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass


@cache
def _impostor() -> _Impostor:
    return _Impostor()


HELD: list[Any] = []


def _victim(x: Any) -> Any:
    return x + len(HELD) + len(os.sep)


def _answers(data: bytes) -> None:
    """What a server says to a client while a call is open; the caller gets an error of ours."""
    from jaxd import connect

    impostor = _impostor()
    impostor.says = data
    with (
        patch.dict(os.environ, XDG_CONFIG_HOME=f"{_folder()}/none"),
        warnings.catch_warnings(),
        connect(f"unix://{impostor.path}") as client,
    ):
        warnings.simplefilter("ignore")
        client.persistent_call(_victim, results="numpy")(1.0)
    assert not HELD


def _replies() -> list[bytes]:
    from jaxd_protocol.wire.connection import encode_reply, encode_request

    def frames(*bodies: bytes) -> bytes:
        return b"".join(map(_frame, bodies))

    failure = describe_failure(ValueError("x"))
    events = [
        ("stage", {"stage": "trace", "function": "f"}),
        ("built", {"function": "f", "seconds": 3.0, "reason": "r"}),
        ("warning", {"function": "f", "text": "t"}),
        ("print", {"text": "", "stream": "stdout"}),
        ("warned", {"text": "t", "category": "UserWarning"}),
        ("logged", {"name": "jaxd.fuzz", "level": 10, "text": "t"}),
        ("compiled", {"text": "t"}),
        ("unsaid", {}),
    ]
    return [
        frames(encode_reply(1, (0, _RESULT, bytes(samples.parse(_RESULT).whole.blob_bytes)))),
        frames(encode_reply(1, (1, failure))),
        frames(encode_reply(1, (1, failure)), encode_reply(2, (1, failure))),
        *[
            frames(encode_request(1, "event", (1, kind, json.dumps(content))))
            for kind, content in events
        ],
        frames(encode_request(1, "describe", (b"k" * 16,)), encode_request(2, "code", (b"f",))),
        frames(encode_request(1, "callback", (1, SKELETON, b"", 1))),
    ]


def _request(verb: str, *args: Any) -> bytes:
    from jaxd_protocol.wire.connection import encode_request

    return _frame(encode_request(1, verb, args))


def _conversations() -> list[bytes]:
    number = Stay(1, 0, 0).to_bytes()
    call = (b"k" * 16, SKELETON, b"", None, 1, b"", b"", b"")
    return [
        _request("statistics") + _request("info") + _request("bye"),
        _request("call", *call),
        _request("call", *call[:5], number, pack_rows([Row(1, VALUE, 1 << 20, 0)]), pack_ids([7])),
        _request("put", 1, samples.encode((1.0, 2)).skeleton, bytes(16), b"", ())
        + _request("name", "n", b"", pack_ids([1 << 20]), 3.5)
        + _request("named", "n", 9)
        + _request("values"),
        _request("fetch", pack_ids([1]), b"") + _request("part", 1, (1, None), 1, 2),
        _request("drop", pack_ids([1])) + _request("adopt", pack_ids([1]), b"") + _request("share"),
        _request("functions")
        + _request("recent", 3)
        + _request("recipes", "")
        + _request("forget"),
        _request("why", b"k" * 16, SKELETON, ("f", b"f" * 16, Options().to_bytes(), (), (), True)),
        _request("stages", "lower", b"k" * 16, SKELETON, b"", ()),
    ]


MEANING = Meaning(
    b"f" * 16,
    b"salt",
    (Part("function", "f", b"d" * 16, "shown", "f.py:1"),),
    {},
    {"f": True},
    frozenset(["g"]),
    (),
    True,
).to_message()
_RESULT = samples.encode([np.arange(3), {"a": (np.zeros((2, 2), np.float32), None)}]).skeleton
SKELETON = samples.encode(((1.0, np.arange(3)), {})).skeleton
KEPT = KeptCall(
    *("f", b"k" * 16, b"f" * 16, SKELETON, (), (), ("x",), b"p" * 16, None),
    *(ResultForm.of(SKELETON, (0,)), 0.1, 0.2, 1e9, b"e" * 16, "uid:1", ""),
)

TARGETS: dict[str, Target] = {
    "greeting of a client": Target(
        _greeted_by_a_client,
        [_spoken(HELLO, {"proof": "0" * 64}), _spoken({**HELLO, "protocol": 99}), b"\0\2{}"],
        (JaxdError, EOFError),
    ),
    "greeting of a server": Target(
        _greeted_by_a_server,
        [
            _spoken({**HELLO, "auth": "token"}, {"proof": "0" * 64, "slots": 1}),
            _spoken({**HELLO, "auth": "none"}),
            _spoken({"error": "Busy", "text": "later", "retry_after_s": 3}),
        ],
        (JaxdError, EOFError),
    ),
    "frames": Target(
        _frames,
        [
            _frame(b"body"),
            _frame(zlib.compress(b"x" * 4000), 1),
            _frame(b"body", 2, struct.pack("!LQQ", 2, 3, 4) + b"abcdefg") + _frame(b""),
        ],
    ),
    "message": Target(_message, _wire_messages(), (JaxdError, EOFError)),
    "skeleton of arguments": Target(_skeleton, _skeletons()),
    "skeleton of a result": Target(_result, [_RESULT, *_skeletons()]),
    "forms of arguments": Target(lambda data: argument_forms(data, ("a", "b")), _skeletons()),
    "literal": Target(
        lambda data: dump_literal(_literal(data)),
        [dump_literal((1, "a", b"b", 2.5, None, True, (1 << 70, ("x",))))],
    ),
    "rows": Target(
        _rows,
        [
            b"\0" + Stay(1, 2, 3).to_bytes(),
            b"\4" + pack_rows([Row(0, VALUE, 7, 0), Row(2, PACKED, 1, 2)]),
            b"\0" + pack_ids([1, 2]),
        ],
    ),
    "options": Target(Options.from_bytes, [Options().to_bytes()]),
    "meaning": Target(_of_literal(Meaning.from_message), [dump_literal(MEANING)]),
    "description": Target(
        _of_literal(Description.from_message),
        [dump_literal(("f", b"f" * 16, Options().to_bytes(), (), ("x",), True))],
    ),
    "reference": Target(
        _of_literal(load_reference),
        [dump_literal(("n", ((b"mark", 1),), b"token", "about")), dump_literal(("o", (), b"", ""))],
    ),
    "recipes": Target(
        _of_literal(lambda value: load_recipes(value, [memoryview(b"code")])),
        [dump_literal((("f", b"k" * 16, b"", MEANING, ((SKELETON, ()),), ("x",)),))],
    ),
    "failure": Target(_of_literal(_failure), _failures()),
    "aim": Target(
        _of_literal(_callback),
        [
            dump_literal(aim)
            for aim in (
                ("object", 0),
                ("live", 0, ()),
                ("get", ("object", 1), "append"),
                ("made", ("object", 0), (0,), (("value", 1),), None, None),
                ("partial", ("object", 0), (("value", 1),), ()),
                ("live", 1, ("system",)),
                ("get", ("object", 2), "system"),
            )
        ],
    ),
    "compressed data": Target(_inflated, [b"\x0f\xa0" + deflate(memoryview(b"x" * 4000)), b"\0\0"]),
    "record": Target(
        _record,
        [b"".join(encode("calls", b"n" * 16, "target", (("a", 1),), b"p" * n)) for n in (0, 9999)],
    ),
    "forged record": Target(
        _forged_record,
        [encode("calls", b"n" * 16, "target", KEPT.to_content(), b"")[2]],
        (Broken, JaxdError, TypeError, ValueError),  # which is what a shelf expects of a record
    ),
    "lockfile": Target(
        _lockfile,
        [
            dump_literal((lockfile._python(), (), ())),
            dump_literal(
                (
                    lockfile._python(),
                    ((b"d" * 16, b"code"),),
                    (("f", b"k" * 16, b"", MEANING, b"d" * 16, ((SKELETON, (), ()),), ("x",)),),
                )
            ),
        ],
    ),
    "raw lockfile": Target(_raw_lockfile, [_lockfile_of((lockfile._python(), (), ()))]),
    "line on the control socket": Target(
        _control,
        [b'{"ask": "status"}\n{"ask": "stop", "now": true}\n', b'{"ask": null}\n[]\n'],
        (ValueError,),  # which the host answers
    ),
    "address": Target(
        _address,
        [
            b"unix:///run/x.sock",
            b"tcp://[::1]:18861",
            b"tls://h:1#sha256=" + b"0f" * 32,
            b"ssh://user@host:22/p",
        ],
    ),
    "configuration file": Target(
        _config, [b'server = "tcp://h:1"\ntoken_file = "~/x"\nautostart = false\n']
    ),
    "tls": Target(_tls, [_tls_hello()], (JaxdError, OSError, EOFError)),
    "answers": Target(_answers, _replies(), (JaxdError, ValueError)),  # one of them says that
    "requests": Target(_requests, _conversations(), (JaxdError,)),
    "token file": Target(_token, [b"a" * 43 + b"\n", b" \xff\n"]),
}
