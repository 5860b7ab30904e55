"""Runs a victim against what is generated, counts, and keeps what is found."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.hostile.client import HostileClient
from tests.hostile.drawing import CANARIES
from tests.hostile.exchanges import Exchange, Step, read_exchange
from tests.hostile.functions import SECRET
from tests.hostile.generation import Generator
from tests.hostile.inventory import inventory
from tests.hostile.server import HostileServer
from tests.hostile.victim_server import ARM, FINDS
from tests.live_server import ROOT, TOKEN, LiveServer, source_environment

FOUND: Final = Path(__file__).parent / "found"
"""Exchanges in which something was found once: a folder for each kind, a file for each."""

HANG_S: Final = 20.0
"""No exchange takes as long, on a busy machine either."""

START_S: Final = 180.0
_ACTS: Final = (
    *(("call", 60), ("submit", 6), ("remote", 8), ("fetch", 4), ("part", 4), ("why", 2)),
    *(("warm", 2), ("lower", 1), ("jaxpr", 1), ("statistics", 2), ("info", 2), ("devices", 2)),
    *(("put", 2), ("name", 2), ("named", 2), ("unname", 2), ("values", 2), ("functions", 2)),
    *(("recent", 2), ("recipes", 2), ("forget", 2)),
)
ACTS: Final = ([name for name, _ in _ACTS], [weight for _, weight in _ACTS])
"""What the victim does, and how often."""


class Violation(NamedTuple):
    """Something that no honest exchange does.

    Attributes:
        event: the audit event, or `hang`, `canary`, `secret` or `end`.
        args: of the event, for people.
        stack: innermost first.
        exchange: in which it happened.
        number: of that exchange.
    """

    event: str
    args: str
    stack: tuple[str, ...]
    exchange: Exchange | None
    number: int


def vulnerability_of(find: Violation) -> str:
    """Which hole it is: `C2` callbacks, `W` the file of a warning, `C1` what came as a result.

    `R` is what a client tells of its process. It is empty for those that need no name of their
    own: a tracebacks' files, hangs and ends.
    """
    text = "\n".join(find.stack)
    if find.event == "secret" and "read" in find.args:
        return "R"
    if find.event == "secret" or "jaxd/events/jax_callbacks.py" in text:
        return "C1" if "jaxd_protocol/pytree/" in text else "C2"
    if "jaxd/request/process_answers.py" in text:
        return "R"
    if "jaxd/events/output.py" in text:
        return "W"
    if find.event in ("hang", "end", "canary") or "linecache.py" in text:
        return ""
    return "C1"


def kind_of(find: Violation) -> str:
    """The same for all that come out at the same place: the event, and where jaxd was left."""
    ours = [each for each in find.stack if each.startswith(("client/", "shared/", "server/"))]
    place = (ours or list(find.stack) or ["?"])[0].partition(" ")[0]
    return f"{find.event} {vulnerability_of(find)} by {place}"


def create_canaries(folder: Path) -> None:
    """Makes the canaries in it."""
    (folder / "canary/sub").mkdir(parents=True)
    (folder / CANARIES[0]).write_text("canary\n" * 9)
    (folder / CANARIES[2]).write_bytes(b"canary")
    os.mkfifo(folder / CANARIES[1])
    (folder / ".env").write_text(SECRET)
    outside = folder.parent / f"{folder.name}.outside"
    outside.write_text(SECRET)
    (folder / "canary/link").symlink_to(outside)


_TETHERED: Final = (
    "import os, sys\n"
    "from jaxd_server.runtime.child_startup import die_with_the_parent\n"
    "die_with_the_parent()\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def tethered(*arguments: str) -> list[str]:
    """The command of a Python that ends with its parent, however that ends, also while it hangs.

    A process of its own asks for that, as a victim is to have loaded nothing of a server.
    """
    return [sys.executable, "-P", "-c", _TETHERED, *arguments]


class Victim:
    """The process of a victim; `close` ends it.

    Attributes:
        inventory: what it has loaded.
        folder: where it works.
        pid: of it.
    """

    def __init__(self, module: str, address: str, folder: Path, *arguments: str) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        create_canaries(folder)
        self._before = self._canaries()
        more = {"HOME": str(folder), "TMPDIR": str(folder), "JAXD_HOSTILE_SECRET": SECRET}
        environment = source_environment(folder, **more)
        environment["PYTHONPATH"] += os.pathsep + str(ROOT)
        self._errors = (folder.parent / f"{folder.name}.errors").open("w")
        self._process = subprocess.Popen(
            tethered("-P", "-m", module, address, *arguments),
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._rest, self.pid = b"", self._process.pid
        self.inventory: dict[str, Any] = self._line(START_S) or {}
        if not self.inventory:
            self.close()
            raise RuntimeError(Path(self._errors.name).read_text()[-4000:])

    def act(self, line: str) -> Iterator[dict[str, Any]]:
        """Tells it what to do; yields what its oracle reports meanwhile.

        Raises:
            TimeoutError: when it does not come back.
            EOFError: when it has ended.
        """
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode() + b"\n")
        except BrokenPipeError as error:
            raise EOFError from error
        while True:
            said = self._line(HANG_S)
            if said is None:
                raise EOFError
            if "done" in said:
                return
            yield said

    def _line(self, seconds: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], seconds)[0]:
                raise TimeoutError
            more = os.read(descriptor, 1 << 20)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def changed(self) -> str:
        """Which canary is not what it was; empty when all are."""
        now = self._canaries()
        return ", ".join(sorted(set(map(str, self._before ^ now)))) if now != self._before else ""

    def _canaries(self) -> frozenset[tuple[str, bytes]]:
        found = set()
        for path in sorted((self.folder / "canary").rglob("*")):
            data = path.read_bytes() if path.is_file() else b""
            found.add((str(path.relative_to(self.folder)), data))
        return frozenset(found)

    def stacks(self) -> tuple[str, ...]:
        """Where its threads are, of one that hangs; where they were, of one that has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGUSR1)
            self._process.wait(0.3)
        with suppress(OSError):
            lines = (self.folder / "stacks").read_text().splitlines()
            return (f"exit code {self._process.poll()}", *(line.strip() for line in lines[:60]))
        return ()

    def close(self) -> None:
        """Kills it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with suppress(OSError):
                stream.close()


class Run:
    """One hostile end and its victim; `close` it.

    Args:
        seed: of everything that is said.
        keep: whether to write down what is found.

    Attributes:
        name: of the hostile end.
        finds: the first of each kind.
        count: exchanges so far.
    """

    name = ""

    def __init__(self, seed: int, *, keep: bool) -> None:
        self.seed = seed
        self._keep = keep
        self.folder = Path(tempfile.mkdtemp(prefix="jaxd-hostile-", dir="/tmp"))
        self.finds: dict[str, Violation] = {}
        self.count = 0

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """What was said, by kind and name."""
        raise NotImplementedError

    def next(self) -> None:
        """One exchange, and what comes of it."""
        raise NotImplementedError

    def run(
        self, seconds: float, most: int | None = None, until: Callable[[], bool] = lambda: False
    ) -> None:
        """Exchanges until the time is over.

        Args:
            seconds: for all of them.
            most: exchanges.
            until: says when it is enough.
        """
        end = time.monotonic() + seconds
        last = None if most is None else self.count + most
        while time.monotonic() < end and self.count != last and not until():
            self.next()

    def note(self, find: Violation) -> bool:
        """Keeps what was found; whether nothing of its kind was found before."""
        kind = kind_of(find)
        before = self.finds.get(kind)
        if before is not None and _size(before.exchange) <= _size(find.exchange):
            return False
        self.finds[kind] = find
        if before is None:
            print(_said(self.name, kind, find, self.seed), flush=True)
        if self._keep:
            _save(self.name, kind, find, self.seed)
        return before is None

    def close(self) -> None:
        """Ends both."""
        shutil.rmtree(self.folder, ignore_errors=True)


class ServerRun(Run):
    """A hostile server, and a client.

    Args:
        seed, keep: see `Run`.
        libraries: whether the victim has imported jax and what is installed beside it.
        reverts: the mends that are taken away, see `reverts`.
    """

    name = "server"

    def __init__(
        self, seed: int, *, libraries: bool, reverts: Sequence[str] = (), keep: bool = True
    ) -> None:
        super().__init__(seed, keep=keep)
        self._libraries = libraries
        self._reverts = reverts
        self.server = HostileServer(str(self.folder / "s.sock"))
        self._rng = random.Random(seed)
        self._alone: deque[Exchange] = deque(maxlen=64)
        self._victim = self._start()
        self._generator = Generator(self._victim.inventory, seed)
        self._names = list(self._victim.inventory["own"])

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """What was said, by kind and name."""
        return self._generator.draws.counts

    def _start(self) -> Victim:
        victim = Victim(
            "tests.hostile.victim_client",
            self.server.address,
            self.folder / "victim",
            str(self._libraries),
            ",".join(self._reverts),
        )
        honest = Generator(victim.inventory, 0).all_honest()
        for exchange in honest * 2:
            self.server.plan(exchange)
            list(victim.act(f"{exchange.act} {exchange.name}"))
        list(victim.act("arm"))
        for exchange in honest:
            self.server.plan(exchange)
            for said in victim.act(f"{exchange.act} {exchange.name}"):
                victim.close()
                raise AssertionError(f"an honest exchange is stopped: {said}")
        return victim

    def next(self) -> None:
        """One exchange: drawn, or a part of one in which something was found."""
        if self._alone:
            return self.try_one(self._alone.popleft())
        act = self._rng.choices(*ACTS)[0]
        return self.try_one(
            self._generator.exchange(self.count, act, self._rng.choice(self._names))
        )

    def try_one(self, exchange: Exchange) -> None:
        """One exchange, and what comes of it."""
        number, self.count = self.count, self.count + 1
        self.server.plan(exchange)
        try:
            for said in self._victim.act(f"{exchange.act} {exchange.name}"):
                self._note(said["find"], said["args"], said["stack"], exchange, number)
        except TimeoutError:
            self._note("hang", "", self._victim.stacks(), exchange, number)
            self._restart()
        except EOFError:
            self._note("end", "", self._victim.stacks(), exchange, number)
            self._restart()
        if any(SECRET.encode() in each for each in self.server.said):
            asked = {step.verb for step in exchange.steps}
            what = "an answer to read has it" if "read" in asked else "an answer has it"
            self._note("secret", what, (), exchange, number)
        self.server.said.clear()
        if number % 64 == 0:
            changed = self._victim.changed()
            if changed:
                self._note("canary", changed, (), exchange, number)
                self._restart()

    def _restart(self) -> None:
        self._victim.close()
        self._victim = self._start()

    def _note(
        self, event: str, args: str, stack: Sequence[str], exchange: Exchange, number: int
    ) -> None:
        is_new = self.note(Violation(event, args, tuple(stack), exchange, number))
        if is_new and len(exchange.steps) > 1:  # which of its steps is it?
            reply = Step("reply", (0, b"N", b"", b"", b""))
            steps: list[tuple[Step, ...]] = [(step, reply) for step in exchange.steps[:-1]] + [
                exchange.steps[-1:]
            ]
            self._alone.extend(exchange._replace(steps=tuple(each)) for each in steps)

    def close(self) -> None:
        """Ends both."""
        self._victim.close()
        self.server.close()
        super().close()


class ClientRun(Run):
    """A hostile client, and a server: host, worker and jax.

    Args:
        seed, keep: see `Run`.
        accepts: what the server takes, `code` or `exported`.
    """

    name = "client"

    def __init__(self, seed: int, *, accepts: str, keep: bool = True) -> None:
        super().__init__(seed, keep=keep)
        self.name = f"client of {accepts}"
        os.mkfifo(self.folder / ARM)
        hook = str(Path(__file__).parent / "hook")
        path = source_environment(self.folder)["PYTHONPATH"]
        self._server = LiveServer(
            self.folder,
            *("--accept", accepts, "--cache-dir", "none", "--build-in", "worker"),
            PYTHONPATH=f"{hook}{os.pathsep}{path}",
            JAXD_HOSTILE_FOLDER=str(self.folder),
            JAXD_HOSTILE_ROOT=str(ROOT),
            JAXD_HOSTILE_ACCEPT=accepts,
        )
        importlib.import_module("jax")  # as in the server
        known = inventory({})
        nothing: dict[str, Any] = {"mark": "", "fingerprint": "", "calls_back": False}
        known["own"] = {
            "f": nothing | {name: [] for name in ("objects", "live", "classes", "contents")}
        }
        self._client = HostileClient(self._server.tcp, TOKEN, accepts, known, seed)
        self._client.warm()
        self.counts.clear()
        with (self.folder / ARM).open("wb") as fifo:
            fifo.write(b"x")
        self._looked_at = len(self._server.lines)
        self._finds = (self.folder / FINDS).open("rb")
        until = time.monotonic() + START_S
        while not self._finds.readline():
            assert time.monotonic() < until, "the oracle is not armed"
            time.sleep(0.01)

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """What was said, by kind and name."""
        return self._client.counts

    def _has_new_worker(self) -> bool:
        lines = self._server.lines[self._looked_at :]  # a log of half an hour is long
        self._looked_at += len(lines)
        return any(line["event"] == "worker_started" for line in lines)

    def next(self) -> None:
        """One conversation."""
        number, self.count = self.count, self.count + 1
        try:
            self._client.converse(number)
        except TimeoutError as error:
            self.note(Violation("hang", str(error), (), None, number))
        for line in self._finds:
            said = json.loads(line)
            self.note(Violation(said["find"], said["args"], tuple(said["stack"]), None, number))
        if self._has_new_worker():
            lines = (self.folder / "stacks").read_text().splitlines()[-40:]
            self.note(Violation("end", "a worker died", tuple(map(str.strip, lines)), None, number))
            raise RuntimeError("the worker died, and the next one has no oracle")

    def close(self) -> None:
        """Ends both."""
        self._client.close()
        self._server.close()
        self._finds.close()
        super().close()


def _size(exchange: Exchange | None) -> int:
    return 0 if exchange is None else len(exchange.to_bytes())


def _said(name: str, kind: str, find: Violation, seed: int) -> str:
    lines = [f"FOUND by {name}: {kind} ({find.args}), exchange {find.number} of seed {seed}"]
    return "\n".join([*lines, *(f"    {each}" for each in find.stack[:14])])


def _save(end: str, kind: str, find: Violation, seed: int) -> None:
    """The shortest exchange of each kind; of a client, which number of which seed it was."""
    name = hashlib.sha256(kind.encode()).hexdigest()[:12]
    FOUND.mkdir(exist_ok=True)
    if find.exchange is not None:
        (FOUND / name).write_bytes(find.exchange.to_bytes())
    (FOUND / f"{name}.txt").write_text(_said(end, kind, find, seed) + f"\n{find.exchange}\n")


def replayed(path: Path, *, libraries: bool, reverts: Sequence[str] = ()) -> dict[str, Violation]:
    """What is found when an exchange that was kept is had again."""
    run = ServerRun(0, libraries=libraries, reverts=reverts, keep=False)
    try:
        run.try_one(read_exchange(path.read_bytes()))
        return run.finds
    finally:
        run.close()


def table(counts: Counter[tuple[str, str]]) -> str:
    """What was said, as a table."""
    lines = []
    for kind in sorted({kind for kind, _ in counts}):
        of_kind = sorted((name, count) for (each, name), count in counts.items() if each == kind)
        lines.append(f"{kind}:")
        lines += [f"    {name:<14} {count:>10,}" for name, count in of_kind]
    return "\n".join(lines)
