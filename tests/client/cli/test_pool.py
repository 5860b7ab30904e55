"""`jaxd pool`, without Ray: a pool of servers that run already, and what is said without one."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jaxd.cli import pool as pool_command
from jaxd.cli.__main__ import main
from jaxd_protocol.network.local_server import PoolFiles, make_private_directory
from tests.live_pool import LiveDirector
from tests.live_server import LiveServer
from tests.server.host_process import HostProcess

pytestmark = pytest.mark.own_server

StartHost = Callable[..., HostProcess]

LISTED = """
name = "lab"
listen = "tls://127.0.0.1:0"
[[static]]
name = "a"
addresses = ["{address}"]
"""


class Up(NamedTuple):
    """A pool that was started.

    Attributes:
        path: of its file.
        said: what `jaxd pool up` printed.
    """

    path: Path
    said: str


@pytest.fixture
def host(start_host: StartHost) -> HostProcess:
    """A server with a worker that is none."""
    found = start_host()
    found.wait_until_ready()
    return found


@pytest.fixture
def pool(runtime: Path, host: HostProcess, capsys: pytest.CaptureFixture[str]) -> Iterator[Up]:
    """A pool of that server."""
    path = runtime / "pool.toml"
    path.write_text(LISTED.format(address=address_of(host)))
    yield Up(path, said(capsys, "up", str(path)))
    pid = director_pid()
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)  # it is a child of this process


def address_of(host: HostProcess) -> str:
    """Where it listens."""
    listening = next(json.loads(line) for line in host.said if '"listening"' in line)
    return str(listening["address"])


def director_pid() -> int:
    """The process of the director."""
    from jaxd.cli.query import ask_server

    found = ask_server(f"unix://{PoolFiles.of('lab').socket}", "pool_order", "status", "{}")
    return int(found["pid"])


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `jaxd pool WORDS` prints; it succeeds."""
    capsys.readouterr()
    assert main(["pool", *words]) == 0
    return capsys.readouterr().out


def test_a_pool_of_servers_that_run_already(pool: Up, capsys: pytest.CaptureFixture[str]) -> None:
    """It is up once they are ready, and prints the line for clients."""
    assert "a is ready" in pool.said
    assert "export JAXD_SERVER='pool://127.0.0.1:" in pool.said
    lines = said(capsys, "status", "--pool", "lab").splitlines()
    assert lines[0] == "pool lab: 1 ready, 0 lost, 0 draining, 1 wanted"
    assert lines[2].split()[:2] == ["a", "ready"]
    report = json.loads(said(capsys, "status", "--pool", "lab", "--json"))
    assert report["members"][0]["name"] == "a"


@pytest.mark.slow
def test_clients_see_the_same_from_afar(pool: Up, capsys: pytest.CaptureFixture[str]) -> None:
    """With the address that was printed, and the token."""
    address = pool.said.partition("JAXD_SERVER='")[2].partition("'")[0]
    lines = said(capsys, "status", "--director", address).splitlines()
    assert lines[2].split()[:2] == ["a", "ready"]


def test_a_server_is_no_director(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever gives its address is told what to give."""
    assert main(["pool", "status", "--director", live.unix]) == 1
    assert "is no director of a pool. Use the line" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fixed_list_cannot_be_scaled(pool: Up, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says what to do."""
    for words in (["scale", "2"], ["drain", "a"], ["down"]):
        assert main(["pool", *words, "--pool", "lab"]) == 1
        assert "change pool.toml and run `jaxd pool up`" in capsys.readouterr().err


@pytest.mark.slow
def test_a_server_that_ends_is_lost_and_comes_back(
    pool: Up, host: HostProcess, start_host: StartHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """As another epoch."""
    host.signal(signal.SIGKILL)
    while " lost " not in said(capsys, "status", "--pool", "lab"):
        pass
    again = start_host()
    again.wait_until_ready()
    while json.loads(said(capsys, "status", "--pool", "lab", "--json"))["members"][0]["epoch"] != 2:
        pass


@pytest.mark.slow
def test_another_up_takes_over(pool: Up, capsys: pytest.CaptureFixture[str]) -> None:
    """With the settings that the file has now."""
    before = director_pid()
    pool.path.write_text(pool.path.read_text().replace('"a"', '"b"'))
    assert "takes over" in said(capsys, "up", str(pool.path))
    assert "b  " in said(capsys, "status", "--pool", "lab")
    assert director_pid() != before


@pytest.mark.parametrize("ends", [False, True])
def test_a_pool_that_does_not_end_is_not_said_to_be_down(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: bool
) -> None:
    """Neither while the director tries to end a member, nor when it has given up itself."""
    monkeypatch.setattr(pool_command, "_STUCK_S", 1e9 if ends else 0.0)
    monkeypatch.setattr(pool_command, "_LOOK_S", 0.01)
    files = PoolFiles.of("lab")
    folder = Path(make_private_directory(files.directory))

    def obey(order: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
        if order == "status" and ends:
            Path(files.log).write_text("the head is gone")
            threading.Thread(target=director.close).start()
        return {"members": [{"name": "m1", "why": "Ray does not end it"}]}

    director = LiveDirector(folder, obey=obey)
    assert main(["pool", "down", "--pool", "lab"]) == 1
    complaint = capsys.readouterr().err
    assert "m1 (Ray does not end it)" in complaint
    assert ("ended before all members had" in complaint) is ends
    assert ("the head is gone" in complaint) is ends
    if not ends:
        director.close()


def test_a_drain_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls, arrays, and those under names; each once, until the member is gone."""
    monkeypatch.setattr(pool_command, "_LOOK_S", 0.01)
    counts = iter([(1, 3, 1), (0, 2, 0), (0, 2, 0), (2, 0, 0), (0, 0, 0)])

    def order(*_: object, **__: object) -> dict[str, Any]:
        members = []
        for load, values, named in itertools.islice(counts, 1):
            held = {"values": values, "value_bytes": 4000, "named": named, "sessions": 1}
            members.append({"name": "m1", "load": load, **held})
        return {"members": members}

    monkeypatch.setattr(pool_command, "_order", order)
    assert main(["pool", "drain", "m1", "--pool", "lab"]) == 0
    assert [line.removeprefix("m1 is ") for line in capsys.readouterr().out.splitlines()] == [
        (
            "drained: waits for 1 calls and 3 arrays (4 kB) of 1 clients; the arrays go where "
            "another member has room for them; 1 of them are under names, which go with jaxd.forget"
        ),
        (
            "drained: waits for 0 calls and 2 arrays (4 kB) of 1 clients; the arrays go where "
            "another member has room for them"
        ),
        "drained: waits for 2 calls and 0 arrays (4 kB) of 1 clients",
        "drained: it is empty, and ends",
        "gone",
    ]


def test_a_member_that_does_not_get_ready_is_told(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, with what to do; it is waited for all the same."""
    monkeypatch.setattr(pool_command, "_STUCK_S", 0.0)
    monkeypatch.setattr(pool_command, "_LOOK_S", 0.01)
    looks = iter(["starting"] * 9 + ["ready"])

    def order(*_: object) -> dict[str, Any]:
        member = {"name": "m1", "state": next(looks), "why": "", "node": ""}
        return {"members": [member], "wanted": 1, "clients": ["export X"]}

    monkeypatch.setattr(pool_command, "_order", order)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pool_command._follow_start(process, PoolFiles.of("lab"), 0, waits=True)
    said = capsys.readouterr().out
    assert said.count("still waiting for m1: no node of Ray has as many devices free") == 1
    assert said.endswith("export X\n")


def test_without_a_pool_the_commands_say_how_to_start_one(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And how to name another."""
    for words in (["status"], ["scale", "2"], ["drain", "m1"], ["down"]):
        assert main(["pool", *words]) == 1
        error = capsys.readouterr().err
        assert "jaxd pool up pool.toml" in error
        assert "--pool" in error


def test_a_mistake_in_the_file_is_told(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command, with the words of the director."""
    path = runtime / "pool.toml"
    path.write_text("[members]\ncount = -1\n")
    assert main(["pool", "up", str(path)]) == 1
    assert "members.count must be a whole number" in capsys.readouterr().err
    assert main(["pool", "up", str(runtime / "none.toml")]) == 1
    assert "docs/pool.md" in capsys.readouterr().err
    path.write_text('name = "../lab"\n')
    assert main(["pool", "up", str(path)]) == 1
    assert "name must be up to 31 letters" in capsys.readouterr().err
    assert list(runtime.iterdir()) == [path]


def test_a_mistake_in_the_file_ends_no_director(
    pool: Up, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that runs goes on with the settings that it has."""
    before = director_pid()
    pool.path.write_text(pool.path.read_text().replace("static", "statics"))
    assert main(["pool", "up", str(pool.path)]) == 1
    assert "statics is not a setting" in capsys.readouterr().err
    assert director_pid() == before


def test_pools_that_run_are_named(pool: Up, capsys: pytest.CaptureFixture[str]) -> None:
    """To who has left out, or mistaken, the name."""
    assert main(["pool", "status"]) == 1
    assert "--pool lab" in capsys.readouterr().err


def test_without_ray_it_says_what_to_install(runtime: Path) -> None:
    """Ray is hidden, where it is installed."""
    path = runtime / "pool.toml"
    path.write_text('listen = "tls://127.0.0.1:0"\n')
    hide = "import sys; sys.modules['ray'] = None; sys.argv = ['x', sys.argv[1]]"
    run = "from jaxd_server.pool.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}\n{run}", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("list servers that run already in pool.toml, as [[static]]).\n")
    assert "pip install 'jaxd[ray]'" in done.stderr


def test_nobody_but_the_adapter_needs_ray(runtime: Path) -> None:
    """A client, and the director of a fixed list, do not import it."""
    code = "import jaxd, jaxd_server.pool.__main__, sys; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_real_server_is_ready_over_tls_alone(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server on another machine is asked as a client asks it."""
    from jaxd_server.pool.member_server import StaticServer
    from tests.live_server import TOKEN

    report = StaticServer([live.tls], TOKEN).report()
    assert (report.state, report.addresses) == ("ready", (live.tls,))
    with pytest.raises(ConnectionError):
        StaticServer([live.tls], "another-token-for-tests").report()
    with pytest.raises(ConnectionError):
        StaticServer([live.tls.replace(live.tls[-4:], "0000")], TOKEN).report()
