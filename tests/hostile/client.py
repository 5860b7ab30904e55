"""A client that authenticates as any other, and then sends requests that no honest one would.

It is authenticated as a real one is: by its token, over TCP. Then it sends conversations: of every
verb, with argument trees of every tag, keys of functions that the server knows and of others, and
answers to what the server asks.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

import jaxd
from jaxd.connection.connect import open_connection
from jaxd.connection.connection import ClientConnection
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import DeadlineExceeded, JaxdError
from jaxd_protocol.fingerprint import Part
from jaxd_protocol.jit.options import Options, fingerprint_of, function_key
from jaxd_protocol.messages.data_locations import (
    DataLocation,
    ResultPolicy,
    pack_ids,
    pack_locations,
)
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.pytree import dump_literal
from tests.hostile.generation import Generator

_WAIT_S: Final = 20.0
_PICKLES: Final = (
    b"cos\nsystem\n(S'touch canary/ran'\ntR.",
    b"cbuiltins\neval\n(S'1'\ntR.",
    b"\x80\x04N.",
    b"",
)
"""One that runs a command, one that evaluates, one that is plain, one that is none."""


class HostileClient:
    """Speaks with one server; `close` it.

    Args:
        address: of the server, with a port, so that the token is needed.
        token: of the server.
        accepts: what the server takes, `code` or `exported`.
        inventory: what is loaded in a process like the server's.
        seed: of everything.
    """

    def __init__(
        self, address: str, token: str, accepts: str, inventory: Mapping[str, Any], seed: int
    ) -> None:
        self._settings = Settings(server=Address.parse(address), token=token, autostart=False)
        self._accepts = accepts
        self._seed = seed
        self._rng = random.Random(seed)
        self._generator = Generator(inventory, seed, to_server=True)
        self._draws = self._generator.draws
        self._honest = jaxd.connect(address, token=token)
        self._functions: list[Any] = [
            self._honest.persistent_call(lambda x: x + 1),
            self._honest.persistent_call(lambda x, n: {"a": x * n, "b": [x]}, static_argnames="n"),
        ]
        self._known: list[tuple[bytes, Any, bytes, bytes]] = []
        self._made: dict[bytes, tuple[Any, bytes]] = {}
        self._connection: ClientConnection | None = None
        self._asked = Counter[str]()

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """What was said, by kind and name."""
        return self._draws.counts

    def warm(self) -> None:
        """All that an honest client does, so that it is known what that does to the server."""
        x = np.arange(3, dtype=np.float32)
        client, (f, g) = self._honest, self._functions
        for value in (x, np.zeros((2, 2), np.float32), x.astype(np.int32)):
            f(value), f.submit(value).result(60), f.remote(value)
            g(value, n=2)
            array = client.put(value)
            client.get(array)
            client.get(f.remote(array))
            array[:1]
            client.put({"a": value}, name="n"), client.named("n"), client.forget("n")
        for look in (f.why, f.warm, f.lower, f.jaxpr):
            with suppress(JaxdError):
                str(look(x))
        client.statistics(), client.info(), client.devices()
        for verb, args in (("values", ()), ("functions", ()), ("recent", (3,))):
            with suppress(JaxdError):
                client.caller.session.ask(verb, *args)
        with suppress(JaxdError):
            client.caller.session.connection().request("recipes", ("",))
        for spec in list(client.caller._specs.values()):
            described = client.caller.answer_request("describe", (spec.key,))[0]
            code = client.caller.answer_request("code", (spec.snapshot.fingerprint,))[1]
            of = spec.snapshot.fingerprint
            self._known.append((spec.key, described, bytes(code[0]), of))
        for number in range(120):  # refusals are honest as well: somebody has another version
            self.converse(-1 - number)

    def converse(self, number: int) -> None:
        """The conversation of that number.

        Raises:
            TimeoutError: when the server does not answer.
        """
        self._rng = random.Random((self._seed << 40) + number)
        self._draws.begin(number)
        for _ in range(self._rng.randrange(1, 4)):
            verb = self._rng.choices(list(VERBS), [each[0] for each in VERBS.values()])[0]
            args, buffers = VERBS[verb][1](self, verb)
            if self._rng.random() < 0.04:
                args = tuple(self._draws.plain(2) for _ in range(self._rng.randrange(5)))
            self.counts["verb", verb] += 1
            self._send(verb, args, buffers)

    def _send(self, verb: str, args: tuple[Any, ...], buffers: Sequence[bytes]) -> None:
        if self._connection is None or not self._connection.alive:
            address = self._settings.server
            assert address is not None
            self._connection = open_connection(address, self._settings, None, self)[0]
        views = [memoryview(each) for each in buffers]
        try:
            if verb in _SILENT:
                return self._connection.notify(verb, args)
            self._connection.request(verb, args, views, deadline=time.monotonic() + _WAIT_S)
        except DeadlineExceeded as error:
            raise TimeoutError(verb) from error
        except (JaxdError, TypeError):
            pass
        return None

    def close(self) -> None:
        """Ends its connections."""
        self._honest.close()
        if self._connection is not None:
            self._connection.shut()

    # what the server asks ------------------------------------------------------------------------

    def answer_request(self, verb: str, args: tuple[Any, ...]) -> tuple[Any, Sequence[memoryview]]:
        """Describes functions and sends code, honestly or not."""
        self.counts["answer", verb] += 1
        if verb == "describe":
            return self._described(args[0]), ()
        if verb == "code":
            return (), (memoryview(self._code(args[0])),)
        raise KeyError(verb)

    def _described(self, key: bytes) -> Any:
        honest = next((said for known, said, *_ in self._known if known == key), None)
        said = self._made.get(key, (honest or self._known[0][1], b""))[0]
        if self._rng.random() < 0.5:
            return said
        name, options, manifest = said
        where = self._rng.randrange(4)
        if where == 0:
            return self._draws.plain(3)
        if where == 1:
            name = self._draws.text()
        elif where == 2:
            options = self._options()
        else:
            manifest = self._changed(manifest)
        return name, options, manifest

    def _options(self) -> bytes:
        plain = self._draws.plain
        names = ("static_argnums", "donate_argnums", "inline", "keep_unused", "static", "config",
                 "in_shardings", "extra_key", "transformations", "device", "other")  # fmt: skip
        pairs = tuple((self._rng.choice(names), plain(2)) for _ in range(2))
        return dump_literal(pairs) if self._rng.random() < 0.9 else self._draws.bytes()

    def _changed(self, value: Any) -> Any:
        """Plain values like these, some of them replaced."""
        if self._rng.random() < 0.1:
            return self._draws.plain(2)
        return tuple(map(self._changed, value)) if type(value) is tuple else value

    def _code(self, fingerprint: bytes) -> bytes:
        for made, code in self._made.values():
            if code and made is not None and fingerprint_of(code) == fingerprint:
                return code
        for _, _, code, known in self._known:
            if fingerprint == known or self._rng.random() < 0.5:
                return code
        if self._accepts == "code":  # which is code by definition
            return self._rng.choice((b"", b"no pickle", self._known[0][2]))
        return self._rng.choice((*_PICKLES, self._rng.randbytes(40), self._known[0][2][:-9]))

    def call_back(self, *_: Any) -> tuple[Any, Sequence[memoryview]]:
        """Whatever a program of its own calls back."""
        return self._draws.plain(2), ()

    def event(self, *_: Any) -> None:
        """It does not care."""

    # what it asks for ----------------------------------------------------------------------------

    def _key(self) -> bytes:
        if self._rng.random() < 0.05:
            return self._draws.bytes()
        if self._rng.random() < 0.06 and self._accepts == "exported":
            return self._program()
        return self._rng.choice(self._known)[0]

    def _program(self) -> bytes:
        """The key of a program of its own making: bytes like those that jax writes, or a pickle."""
        code = bytearray(self._rng.choice([each[2] for each in self._known]))
        if self._rng.random() < 0.5:
            code = bytearray(self._rng.choice(_PICKLES))
        elif self._rng.random() < 0.7:
            del code[self._rng.randrange(len(code)) :]
        fingerprint = fingerprint_of(bytes(code))
        parts = (Part("program", "f", fingerprint[:8]),)
        manifest = FunctionManifest(
            fingerprint, b"", parts, {}, {}, frozenset(), (), True
        ).to_message()
        key = function_key(fingerprint, Options())
        if len(self._made) > 64:
            self._made.clear()
        self._made[key] = ("f", Options().to_bytes(), manifest), bytes(code)
        return key

    def _arguments(self) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        pickles = _PICKLES if self._accepts == "exported" else _PICKLES[2:]
        return self._generator.arguments(pickles)

    def _call(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        rng = self._rng
        skeleton, blob, buffers = self._arguments()
        stay = rng.choice((b"", b"", ResultPolicy(rng.randrange(1 << 30), 0, 0).to_bytes(), b"x"))
        rows = b""
        if rng.random() < 0.3:
            rows = pack_locations(
                [DataLocation(rng.randrange(3), rng.randrange(6), rng.randrange(1 << 22))]
            )
        flags = rng.choice((0, 1, 2, 4, 8, 16, 32, 64, 127, -1))
        drops = b"" if rng.random() < 0.9 else pack_ids([rng.randrange(1 << 22)])
        return (self._key(), skeleton, blob, 5.0, flags, stay, rows, drops), buffers

    def _why(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        name, options, _ = self._rng.choice(self._known)[1]
        described = self._changed((name, self._rng.randbytes(16), options, (), (), True))
        return (self._key(), self._arguments()[0], described), ()

    def _stages(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        stage = self._rng.choice(("jaxpr", "lowered", "compiled", self._draws.text()))
        dialect = self._rng.choice(("stablehlo", "hlo", self._draws.text()))
        skeleton, _, buffers = self._arguments()
        return (self._key(), skeleton, stage, dialect, self._rng.random() < 0.5), buffers

    def _put(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        skeleton, blob, buffers = self._arguments()
        config = self._draws.plain(2) if self._rng.random() < 0.3 else ()
        return (self._rng.randrange(1 << 30), skeleton, blob, b"", config), buffers

    def _ids(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        ids = pack_ids([self._rng.randrange(1 << 22) for _ in range(self._rng.randrange(3))])
        if verb in ("fetch", "adopt"):
            return (ids, self._rng.choice((b"", ids + ids, self._draws.bytes()))), ()
        if verb == "name":
            skeleton = self._arguments()[0]
            return (self._draws.text(), skeleton, ids, self._rng.choice((None, 1.5, -1.0))), ()
        return (ids,), ()

    def _part(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        return (self._rng.randrange(1 << 22), self._draws.plain(2), 9, 7), ()

    def _named(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        name = self._draws.text()
        return (name, self._rng.randrange(1 << 30)) if verb == "named" else (name,), ()

    def _nothing(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        return (), ()

    def _number(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        return (self._rng.choice((0, 1, 3)),), ()

    def _any(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        return tuple(self._draws.plain(1) for _ in range(self._rng.randrange(3))), ()

    def _mark(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        return (self._rng.choice(("", self._draws.text())),), ()

    def _trace(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        return (self._draws.bytes(), self._draws.text()), ()

    def _forget(self, verb: str) -> tuple[tuple[Any, ...], Sequence[bytes]]:
        return (self._draws.bytes(),), ()


_SILENT: Final = frozenset({"drop", "unshare", "cancel", "bye"})

_Ask = Callable[[HostileClient, str], tuple[tuple[Any, ...], Sequence[bytes]]]

VERBS: Final[Mapping[str, tuple[float, _Ask]]] = {
    "call": (7, HostileClient._call),
    "why": (2, HostileClient._why),
    "stages": (2, HostileClient._stages),
    "put": (3, HostileClient._put),
    "fetch": (2, HostileClient._ids),
    "part": (2, HostileClient._part),
    "drop": (2, HostileClient._ids),
    "adopt": (2, HostileClient._ids),
    "share": (2, HostileClient._any),
    "unshare": (2, HostileClient._ids),
    "cancel": (2, HostileClient._number),
    "bye": (2, HostileClient._nothing),
    "name": (2, HostileClient._ids),
    "named": (2, HostileClient._named),
    "unname": (2, HostileClient._named),
    "values": (2, HostileClient._nothing),
    "statistics": (2, HostileClient._nothing),
    "info": (2, HostileClient._nothing),
    "devices": (2, HostileClient._nothing),
    "recent": (2, HostileClient._number),
    "functions": (2, HostileClient._nothing),
    "trace": (2, HostileClient._trace),
    "traced": (2, HostileClient._forget),
    "recipes": (2, HostileClient._mark),
    "forget": (2, HostileClient._forget),
    "view": (2, HostileClient._any),
    "detail": (2, HostileClient._any),
    "cancel_call": (2, HostileClient._any),
    "other": (2.4, HostileClient._any),
}
"""How often each is asked for, and with what."""
