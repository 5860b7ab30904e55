from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.tenant_settings import Tenant
from jaxd_server.processes.supervision.worker_process import WorkerProcess
from jaxd_server.runtime import system_memory
from jaxd_server.runtime.system_memory import MemoryLoss

PRELUDE = """
import json, socket, sys
from jaxd_server.runtime.child_startup import read_argument
argument = read_argument()
tether = socket.socket(fileno=argument["tether_fd"]).makefile("rw")
def say(**message):
    tether.write(json.dumps(message) + "\\n")
    tether.flush()
"""

PATIENCE_S = 30.0
ALICE = Tenant("account:alice", "none")


def run(
    program: str,
    scenario: Callable[[WorkerProcess], Awaitable[None]],
    options: ServerOptions | None = None,
    tenant: Tenant | None = None,
) -> WorkerProcess:
    """Starts a worker that does `program`, plays `scenario` with it, and ends it."""

    async def play() -> WorkerProcess:
        command = [sys.executable, "-P", "-c", PRELUDE + program]
        worker = WorkerProcess(command, options or ServerOptions(), [], 7, tenant=tenant)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, worker.collect)
        try:
            await asyncio.wait_for(scenario(worker), PATIENCE_S)
        finally:
            worker.kill()
            await worker.exited.wait()
            worker.close()
            worker.last_lines()
        return worker

    return asyncio.run(play())


async def until_ready(worker: WorkerProcess) -> None:
    """Returns when the worker has said so."""
    while not worker.was_ready:  # noqa: ASYNC110  it is the worker that decides
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("kills", "how", "from_outside"),
    [
        ((3, 3), "SIGKILL", True),
        ((3, 4), "SIGKILL: the system had no memory left", False),
        ((None, None), "SIGKILL", False),
    ],
)
def test_a_kill_is_told_from_a_lack_of_memory(
    kills: tuple[int | None, int | None],
    how: str,
    from_outside: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what the system has counted meanwhile; where it counts nothing, it may be either."""
    counted = [kills[0]]
    monkeypatch.setattr(system_memory, "_kills_in", lambda _: counted[0])

    async def scenario(worker: WorkerProcess) -> None:
        counted[0] = kills[1]
        os.kill(worker.pid, signal.SIGKILL)
        await worker.exited.wait()

    worker = run("import signal; signal.pause()", scenario)
    assert (worker.how, worker.was_killed_from_outside) == (how, from_outside)


ON_CPU = {"platform": "cpu", "value_bytes": 90}
LOSSES: list[tuple[dict[str, Any], MemoryLoss]] = [
    ({}, MemoryLoss(50)),
    ({"platform": "cuda", "value_bytes": 9}, MemoryLoss(50)),
    ({**ON_CPU, "heaviest": "many"}, MemoryLoss(50)),
    (
        {**ON_CPU, "heaviest": {"session": "a", "principal": "b", "nbytes": 10**400}},
        MemoryLoss(50),
    ),
    (
        {
            **ON_CPU,
            "value_bytes": 9,
            "heaviest": {"session": "a\n", "principal": "uid:1", "nbytes": 8},
        },
        MemoryLoss(9, "a?", "uid:1", 8),
    ),
]


def test_what_values_took_is_known_from_the_last_report() -> None:
    """Of workers whose arrays are in the memory that the system lacks; the least counts."""

    async def scenario(worker: WorkerProcess) -> None:
        for worker.snapshot, expected in LOSSES:
            assert worker.memory_loss(MemoryLoss(50)) == expected

    run("import signal; signal.pause()", scenario)


def test_the_worker_is_told_everything_in_one_argument(
    runtime: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Options, listeners, host channel and epoch; what it writes goes to the host's stderr."""

    async def scenario(worker: WorkerProcess) -> None:
        await worker.exited.wait()

    run("print(sys.argv[1])", scenario)
    argument: dict[str, Any] = json.loads(capfd.readouterr().err)
    assert argument["epoch"] == 7
    assert argument["listeners"] == []
    assert ServerOptions.from_json(argument["options"]) == ServerOptions()


def test_what_one_principals_worker_is_told_is_not_for_all_users_of_the_machine(
    runtime: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They can read its command line, where neither its principal nor its folder stands."""

    async def scenario(worker: WorkerProcess) -> None:
        await worker.exited.wait()

    run(
        'print(open("/proc/self/cmdline").read().split("\\0")[-2]); print(argument["principal"])',
        scenario,
        tenant=ALICE,
    )
    shown, principal = capfd.readouterr().err.splitlines()
    assert list(json.loads(shown)) == ["argument_fd"]
    assert principal == "account:alice"


def test_it_is_ready_once_it_says_so(runtime: Path) -> None:
    """Before that it is starting, and after its end dead."""

    async def scenario(worker: WorkerProcess) -> None:
        states = [worker.state]
        await until_ready(worker)
        assert [*states, worker.state] == ["starting", "ready"]

    worker = run('say(event="ready"); tether.read()', scenario)
    assert worker.state == "dead"
    assert worker.ending == {"signal": "SIGKILL"}


def test_only_one_question_is_on_its_way(runtime: Path) -> None:
    """However many want to know, a worker that hangs finds one question when it wakes up."""
    program = """
say(event="ready")
first = tether.readline()
tether.readline()  # "drain", which is sent only after everybody has given up waiting
say(status={"first": first})
tether.read()
"""

    async def scenario(worker: WorkerProcess) -> None:
        await until_ready(worker)
        assert not any(await asyncio.gather(*(worker.refresh(0.01) for _ in range(10))))
        asker = asyncio.create_task(worker.refresh(PATIENCE_S))
        worker.drain()
        assert await asker
        assert json.loads(worker.snapshot["first"]) == {"ask": "status"}

    run(program, scenario)


def test_nobody_waits_for_an_answer_of_a_dead_worker(runtime: Path) -> None:
    """The end of the host channel is an answer too."""

    async def scenario(worker: WorkerProcess) -> None:
        await until_ready(worker)
        assert not await worker.refresh(2 * PATIENCE_S)

    run('say(event="ready"); tether.readline(); sys.exit(3)', scenario)


def test_garbage_on_the_host_channel_does_not_harm_the_host(runtime: Path) -> None:
    """Such a worker is asked nothing more."""

    async def scenario(worker: WorkerProcess) -> None:
        await worker.exited.wait()
        assert worker.ending == {"exit_code": 0}
        assert not await worker.refresh(PATIENCE_S)

    run('tether.write("garbage\\n"); tether.flush(); tether.read()', scenario)


FLOOD = """
say(event="ready")
tether.readline()
while True:
    tether.write('{}\\n' * 1000)
    tether.flush()
"""


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"event": "draining"}',
        '{"status": 7}',
        '{"seen": {"change": {}}}',
        '{"seen": 7}',
    ],
)
def test_a_worker_of_one_principal_that_floods_its_host_is_ended(runtime: Path, line: str) -> None:
    """What it does there is no work, and others wait meanwhile; also where it was asked."""

    async def scenario(worker: WorkerProcess) -> None:
        await until_ready(worker)
        assert not await worker.refresh(PATIENCE_S)
        await worker.exited.wait()
        await worker.read_remaining()

    worker = run(FLOOD.replace("{}", line), scenario, tenant=ALICE)
    assert worker.how == "it never stopped talking to its host"


def test_what_was_asked_for_is_never_too_much(runtime: Path) -> None:
    """However often somebody looks at the status, or at the view."""
    program = """
say(event="ready")
for line in tether:
    say(**({"status": {}} if "status" in line else {"seen": {"change": {}}}))
"""

    async def scenario(worker: WorkerProcess) -> None:
        await until_ready(worker)
        for _ in range(300):
            assert await worker.refresh(PATIENCE_S)
            assert await worker.see(0, "", PATIENCE_S) == {"change": {}}

    run(program, scenario, tenant=ALICE)


def test_what_cannot_be_done_does_not_make_the_host_deaf(
    runtime: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker, or the gateway, says next is heard as well."""
    monkeypatch.setattr(logging.getLogger("jaxd"), "propagate", True)

    def fail(_: WorkerProcess, said: Mapping[str, Any]) -> NoReturn:
        raise OSError(24, "Too many open files")

    async def scenario(worker: WorkerProcess) -> None:
        worker.on_message = fail
        await until_ready(worker)

    run('say(event="wanted"); say(event="ready"); tether.read()', scenario)
    assert "Too many open files" in caplog.text


def test_a_process_that_one_principals_worker_leaves_behind_costs_the_host_nothing(
    runtime: Path,
) -> None:
    """It keeps the pipe open; the thread that reads from there ends all the same."""
    program = """
import os, subprocess
left = subprocess.Popen(["sleep", "60"], start_new_session=True)
say(event="ready", left=left.pid)
print("left", left.pid, flush=True)
"""

    async def scenario(worker: WorkerProcess) -> None:
        await worker.exited.wait()
        await worker.read_remaining()

    worker = run(program, scenario, tenant=ALICE)
    worker._relay.join(PATIENCE_S)
    assert not worker._relay.is_alive()
    (line,) = worker.last_lines()
    os.kill(int(line.split()[1]), signal.SIGKILL)


def test_what_one_principals_worker_says_does_not_make_its_host_stumble(runtime: Path) -> None:
    """Neither its host, nor what compares, adds up or shows that."""
    program = """
say(event="ready")
tether.readline()
nonsense = {"run_s": 10**400, "idle_s": "x", "running": [1]}
say(status={"calls": 2, **nonsense, "platform": "cpu"})
tether.read()
"""

    async def scenario(worker: WorkerProcess) -> None:
        await until_ready(worker)
        assert await worker.refresh(PATIENCE_S)
        own = {"platform": "cpu", "heaviest": None, "is_short": False}
        assert worker.snapshot == {"calls": 2, "running": [], **own}

    run(program, scenario, tenant=ALICE)


def test_what_is_true_already_is_said_once(
    runtime: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can fill the log with it."""
    monkeypatch.setattr(logging.getLogger("jaxd"), "propagate", True)

    async def scenario(worker: WorkerProcess) -> None:
        await worker.exited.wait()
        await worker.read_remaining()

    with caplog.at_level(logging.INFO, "jaxd"):
        run('[say(event="outdated") for _ in range(50)]', scenario)
    assert caplog.messages.count("worker_outdated") == 1


def test_one_principals_worker_says_nothing_very_long(runtime: Path) -> None:
    """Reading it would hold up everybody; of the worker of all it may be a status."""
    program = """
say(event="ready", padding="x" * (3 << 20))
tether.read()
"""

    async def scenario(worker: WorkerProcess) -> None:
        await worker.exited.wait()
        await worker.read_remaining()

    assert not run(program, scenario, tenant=ALICE).was_ready
    assert run(program, until_ready).was_ready
