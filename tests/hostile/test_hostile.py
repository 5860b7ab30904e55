"""A short run of each hostile end in every run of the tests; `make hostile` is the long one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxd_protocol.errors import JaxdError
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.pytree import parse_skeleton
from tests.hostile.exchanges import Exchange, Step, read_exchange
from tests.hostile.generation import Generator
from tests.hostile.inventory import inventory
from tests.hostile.reverts import REVERTS, revert
from tests.hostile.running import (
    ClientRun,
    ServerRun,
    Violation,
    kind_of,
    replayed,
    vulnerability_of,
)
from tests.live_server import ROOT, source_environment

pytestmark = [pytest.mark.fuzz, pytest.mark.own_server]

SEED = 20261123
OWN = {
    "mark": "00",
    "fingerprint": "11" * 16,
    "objects": [{"codes": [[[], 0], [[0], 1]], "cells": 0, "names": ["a"]}],
    "live": [{"codes": [], "cells": 0, "names": []}],
    "calls_back": True,
    "classes": [],
    "contents": [],
    "code": [],
}


WARNED = {
    "text": "t",
    "category": ["builtins", "UserWarning"],
    "bases": [],
    "file": "canary/file.txt",
    "line": 1,
}
REPLY = Step("reply", (OK, b"N", b""))


@cache
def known() -> dict[str, Any]:
    """What is loaded here."""
    return {**inventory({}), "own": {"f": OWN}}


@pytest.fixture(scope="module")
def run() -> Iterator[ServerRun]:
    """A hostile server, and its victim."""
    run = ServerRun(SEED, libraries=False, keep=False)
    yield run
    run.close()


def test_a_client_does_nothing_for_a_hostile_server(run: ServerRun) -> None:
    """Nothing that no honest exchange does."""
    run.run(20.0, most=150)
    assert run.finds == {}
    assert {kind for kind, _ in run.counts} >= {"tag", "reference", "aim", "event", "question"}


@pytest.mark.slow
def test_a_server_does_nothing_for_a_hostile_client() -> None:
    """One of programs only: nothing is opened, imported, compiled or unpickled."""
    pytest.importorskip("flatbuffers")
    run = ClientRun(SEED, accepts="exported", keep=False)
    try:
        run.run(8.0, most=150)
        assert run.finds == {}
    finally:
        run.close()


@pytest.mark.slow
def test_an_exchange_that_was_kept_can_be_had_again(tmp_path: Path) -> None:
    """With a mend taken away it finds what it found; with it, nothing."""
    kept = tmp_path / "kept"
    event = Step("event", (None, "warned", json.dumps(WARNED)))
    kept.write_bytes(Exchange("call", "plain", (event, REPLY)).to_bytes())
    assert replayed(kept, libraries=False) == {}
    assert {
        vulnerability_of(find) for find in replayed(kept, libraries=False, reverts=["W"]).values()
    } == {"W"}


WITH_A_VICTIM = """
import sys
from pathlib import Path
from tests.hostile.running import Victim
from tests.hostile.server import HostileServer

folder = Path(sys.argv[1])
server = HostileServer(str(folder / "s.sock"))
victim = Victim("tests.hostile.victim_client", server.address, folder / "victim", "False", "")
print(victim.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_victim_ends_with_its_run(runtime: Path) -> None:
    """Also where that is killed while the victim hangs."""
    command = [sys.executable, "-c", WITH_A_VICTIM, str(runtime)]
    environment = source_environment(runtime)
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    run = subprocess.Popen(command, env=environment, text=True, **pipes)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    victim = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGSTOP)
        run.kill()
        run.communicate()
        assert select.select([victim], [], [], 60.0)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(victim, signal.SIGKILL)
        os.close(victim)


@pytest.mark.slow
def test_the_same_seed_says_the_same() -> None:
    """So that what was found can be found again."""
    one, two = (Generator(known(), 7) for _ in range(2))
    said = [one.exchange(number, "call", "f") for number in range(200)]
    assert said == [two.exchange(number, "call", "f") for number in range(200)]
    assert [read_exchange(each.to_bytes()) for each in said] == said


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_skeletons_of_arguments_are_read_or_refused(seed: int) -> None:
    """Never with another error than one of jaxd's own: also those that nobody would write."""
    generator = Generator(known(), seed, to_server=True)
    generator.draws.begin(seed)
    skeleton = generator.arguments((b"",))[0]
    with suppress(JaxdError):
        parse_skeleton(skeleton, lambda *_: tuple, bytes)


AUDITED = """
import os, sys
from tests.hostile.audit import Oracle

oracle = Oracle(1, {"os.remove": lambda args, frame: args[0] == "mine"})
oracle.install()
open("mine", "w").close()
open("theirs", "w").close()
oracle.arm()
os.remove("mine")
try:
    os.remove("theirs")
except Exception as error:
    print(type(error).__name__, flush=True)
os._exit(0)
"""


def test_the_oracle_stops_what_it_reports(tmp_path: Path) -> None:
    """Before it happens; what is allowed happens."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}"}
    command = [sys.executable, "-c", AUDITED]
    said = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert '"find": "os.remove"' in said
    assert "Stopped" in said
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_secret_in_an_answer_is_found(run: ServerRun) -> None:
    """What a client sends is looked through."""
    from tests.hostile.functions import SECRET

    before = dict(run.finds)
    run.server.said.append(SECRET.encode())
    run.try_one(Exchange("info", "plain", (Step("reply", "{}"),)))
    new = {kind: find for kind, find in run.finds.items() if kind not in before}
    assert [find.event for find in new.values()] == ["secret"]
    run.finds.clear()


def test_finds_of_one_place_are_one_kind() -> None:
    """Whatever the library below did."""
    stack = (
        "numpy/a.py:3 f",
        "client/jaxd/events/jax_callbacks.py:76 _call",
        "client/jaxd/connection/server_requests.py:1 x",
    )
    finds = [Violation("open", args, stack, None, 0) for args in ("a", "b")]
    assert len({kind_of(each) for each in finds}) == 1
    assert vulnerability_of(finds[0]) == "C2"


def test_every_mend_can_be_named() -> None:
    """And nothing else."""
    assert {"C1", "C2", "R", "W"} == set(REVERTS)
    with pytest.raises(KeyError):
        revert(["other"])
