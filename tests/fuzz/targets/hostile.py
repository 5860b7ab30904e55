"""A real client, to which a hostile server says what the bytes draw; an oracle looks on.

The bytes stand where `tests.hostile` has random numbers. So what a fuzzer learns by coverage is a
conversation: events, questions, callbacks, a reply, and what the client does with all of them.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import sys
import zlib
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.fuzz.target import Target
from tests.fuzz.targets.files import folder


class _BytesRandom(random.Random):
    """Random numbers that are the given bytes, as long as there are any."""

    def __init__(self, data: bytes) -> None:
        self._rest = memoryview(data)
        super().__init__(zlib.crc32(data))

    def getrandbits(self, k: int) -> int:
        nbytes = (k + 7) // 8
        if len(self._rest) < nbytes:
            return super().getrandbits(k)
        taken, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return int.from_bytes(taken, "big") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(16) / (1 << 16) if len(self._rest) > 1 else super().random()


class _HostilePair:
    """A hostile server and its client, both in this process, and the oracle."""

    def __init__(self) -> None:
        from tests.hostile.audit import Oracle
        from tests.hostile.functions import SECRET
        from tests.hostile.generation import Generator
        from tests.hostile.inventory import inventory
        from tests.hostile.running import create_canaries
        from tests.hostile.server import HostileServer
        from tests.hostile.victim_client import Victim, allowed_to_clients, prepare

        os.environ["JAXD_HOSTILE_SECRET"] = SECRET
        create_canaries(Path(folder()))
        os.chdir(folder())
        self._secret = SECRET.encode()
        self._nowhere = open(os.devnull, "w")  # noqa: SIM115  until the process ends
        sys.unraisablehook = lambda _: None
        prepare(libraries=False)
        self._server = HostileServer(f"{folder()}/hostile.sock")
        self._victim = Victim(self._server.address, libraries=False)
        self._generator = Generator(inventory(self._victim.persistent), 0)
        self._found, report_to = os.pipe2(os.O_NONBLOCK)
        allowed = allowed_to_clients(self._server.address.removeprefix("unix://"))
        self._oracle = Oracle(report_to, {**allowed, "socket.__new__": _is_of_an_end})
        self._oracle.install()
        atexit.register(self._oracle.disarm)  # before the folder is removed
        for exchange in self._generator.all_honest():
            self._server.plan(exchange)
            self._act(exchange.act, exchange.name)

    def converse(self, data: bytes) -> None:
        """One exchange.

        Raises:
            AssertionError: when it does what no honest one does.
        """
        from tests.hostile.running import ACTS

        drawn = self._generator.draws.rng = _BytesRandom(data)
        act = drawn.choices(*ACTS)[0]
        name = drawn.choice(list(self._victim.persistent))
        self._server.plan(self._generator.drawn(act, name))
        self._oracle.arm()
        self._act(act, name)
        said = list(self._server.said)
        self._server.said.clear()
        try:
            finds = os.read(self._found, 1 << 16)
        except BlockingIOError:
            finds = b""
        if finds or any(self._secret in each for each in said):
            self._oracle.disarm()  # for who writes it down
            raise AssertionError(json.loads(finds.splitlines()[0]) if finds else "a secret")

    def _act(self, act: str, name: str) -> None:
        with redirect_stdout(self._nowhere), redirect_stderr(self._nowhere):
            self._victim.act(act, name)


def _is_of_an_end(args: tuple[Any, ...], frame: Any) -> bool:
    """A client connects, and the server accepts it."""
    at = frame.f_back
    if at is not None and at.f_code.co_name == "accept":
        at = at.f_back
    ends = ("jaxd/connection/connect.py", "tests/client/fake_server.py")
    return at is not None and at.f_code.co_filename.endswith(ends)


@cache
def _ends() -> _HostilePair:
    return _HostilePair()


HOSTILE: Final = {
    "what a hostile server says": Target(
        lambda data: _ends().converse(data),
        [random.Random(seed).randbytes(16 << seed % 7) for seed in range(128)],
        (),
    )
}
