"""`jaxd warm`, against a server that the test plays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.lockfile import read_lockfile, write_lockfile
from jaxd.request.arguments import encode_arguments
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jit.options import Options, function_key
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.messages.calls import OK, WARM
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recipes import Recipe, RecordedCall, dump_recipes
from tests.client.fake_server import FakeServer, Request, failed, warm_reply
from tests.end_to_end.terminals import TerminalProcess


def recipe(name: str, *arguments: Any) -> Recipe:
    """One of a function of that name, called with each of these and a static number."""
    manifest = FunctionManifest(name.encode().ljust(16))
    options = Options()
    statics = StaticArgs(frozenset(), frozenset({"steps"}))
    skeletons = [encode_arguments((x,), {"steps": 10}, statics, {}).skeleton for x in arguments]
    calls = tuple(map(RecordedCall, sorted(skeletons)))
    key = function_key(manifest.fingerprint, options)
    return Recipe(name, key, options.to_bytes(), manifest.to_message(), b"code", calls, ("x",))


RECIPES = [recipe("evaluate", 1.0), recipe("train", np.ones(3), {"a": 1.0})]
TITLES = [
    "evaluate(x=float, steps=10)",
    "train(x=float64[3], steps=10)",
    "train(x=dict of 1, steps=10)",
]
LEFT_OUT = {"name": "noise", "key": "00", "reason": "it reads a generator."}


def recipes(asked: Request) -> Any:
    """A mark, and later what was called."""
    if asked.args == ("",):
        return (json.dumps({"mark": "m"}),), ()
    messages, buffers = dump_recipes(RECIPES)
    return (json.dumps({"mark": "m", "left_out": [LEFT_OUT]}), *messages), buffers


@pytest.fixture
def server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """The server that commands find by themselves."""
    server = FakeServer(f"{runtime}/s.sock", call=lambda _: warm_reply(), recipes=recipes)
    monkeypatch.setenv("JAXD_SERVER", server.address)
    yield server
    server.close()


@pytest.fixture
def lock(tmp_path: Path) -> str:
    """A lockfile of two functions and three programs."""
    path = str(tmp_path / "warm.lock")
    write_lockfile(path, RECIPES)
    return path


def is_train(asked: Request) -> bool:
    """Whether it is about that one of the two functions."""
    return bool(asked.args[0] == RECIPES[1].key)


# building ---------------------------------------------------------------------------------------


def test_everything_is_built(
    server: FakeServer, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a pipe a line for each program, and how many there were in the end."""
    server.answers["call"] = lambda asked: warm_reply("load" if is_train(asked) else "compile", 8.2)
    assert main(["warm", lock]) == 0
    said = capsys.readouterr()
    *lines, summary = said.out.splitlines()
    assert sorted(lines) == sorted(
        f"{'loaded' if 'train' in title else 'compiled'} {title} in 8.2 s" for title in TITLES
    )
    assert re.fullmatch(r"0 ready, 2 loaded, 1 compiled; \d\.\d+ s", summary)
    assert said.err == ""
    assert all(asked.args[4] & WARM for asked in server.of("call"))
    assert len(server.asked) == 3


def test_programs_that_are_not_on_disk_are_told_of_once(
    server: FakeServer, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All is ready, and yet an image that is made now would hold nothing."""

    def answer(asked: Request) -> Any:
        kept = not is_train(asked)
        return (OK, json.dumps({"verdict": "compile", "seconds": 1.0, "kept": kept})), ()

    server.answers["call"] = answer
    assert main(["warm", lock]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jaxd: warning: 2 of 3 programs are not on disk, such as train(")
    assert main(["warm", lock, "--json"]) == 0
    said = capsys.readouterr()
    assert sorted(json.loads(said.out)["not_kept"]) == sorted(TITLES[1:])
    assert len(said.err.splitlines()) == 1


def test_one_that_fails_stops_no_other(
    server: FakeServer, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told at once, in one line, and by the exit code."""
    error = failed(ValueError("no\nsuch shape"))
    server.answers["call"] = lambda asked: warm_reply("hit") if is_train(asked) else error
    assert main(["warm", lock]) == 1
    said = capsys.readouterr()
    assert said.err == "jaxd: evaluate(x=float, steps=10): ValueError: no such shape\n"
    assert "\n2 ready, 0 loaded, 0 compiled, 1 failed; " in said.out


def test_json_is_one_object(
    server: FakeServer, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts, and what failed."""
    error = failed(ValueError("no"))
    server.answers["call"] = lambda asked: warm_reply("hit") if is_train(asked) else error
    assert main(["warm", lock, "--json", "--server", server.address]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told.pop("seconds") >= 0
    assert told == {
        "file": lock,
        "hit": 2,
        "load": 0,
        "compile": 0,
        "failed": [{"function": "evaluate(x=float, steps=10)", "error": "ValueError: no"}],
        "not_kept": [],
    }


def test_a_check_builds_nothing(
    server: FakeServer, lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would have to be compiled is an error; what is on disk is not."""
    server.answers["why"] = lambda asked: (
        json.dumps({"verdict": "compile" if is_train(asked) else "load"}), ()
    )  # fmt: skip
    assert main(["warm", "--check", lock]) == 1
    said = capsys.readouterr().out
    assert "to be compiled: train(x=float64[3], steps=10)\n" in said
    assert "on disk: evaluate(x=float, steps=10)\n" in said
    assert "\n0 ready, 1 on disk, 2 to be compiled; " in said
    server.answers["why"] = {"verdict": "load"}
    assert main(["warm", "--check", "--json", lock]) == 0
    assert json.loads(capsys.readouterr().out)["load"] == 3
    assert server.of("call") == []


def test_a_terminal_gets_a_bar(server: FakeServer, lock: str, runtime: Path) -> None:
    """And failures above it; nothing of it is left in the end."""
    error = failed(ValueError("no"))
    server.answers["call"] = lambda asked: warm_reply() if is_train(asked) else error
    program = "import sys; from jaxd.cli.__main__ import main; sys.exit(main(sys.argv[1:]))"
    with TerminalProcess(
        program, ["warm", lock], os.environ | {"XDG_RUNTIME_DIR": str(runtime)}
    ) as one:
        code, printed = one.end()
    assert code == 1
    assert "] 3/3" in one.said
    assert "jaxd: evaluate(x=float, steps=10): ValueError: no" in one.said
    assert printed.splitlines()[-1].startswith("0 ready, 0 loaded, 2 compiled, 1 failed; ")


def test_no_server_is_no_list_of_failures(
    runtime: Path, lock: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once."""
    assert main(["warm", lock, "--server", f"unix://{runtime}/none.sock"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("JAXD_INLINE", "1")
    assert main(["warm", lock]) == 1
    assert "Unset JAXD_INLINE" in capsys.readouterr().err


def test_neither_jax_nor_numpy_is_needed(server: FakeServer, lock: str) -> None:
    """The code of a lockfile stays closed here."""
    program = (
        "import sys; from jaxd.cli.__main__ import main; code = main(sys.argv[1:])\n"
        "sys.exit(code or bool({'jax', 'numpy', 'cloudpickle'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, "warm", lock], check=False)
    assert done.returncode == 0
    assert len(server.of("call")) == 3


@contextmanager
def warming(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`jaxd warm` as a process of its own group, as a shell starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxd.cli", "warm", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_stops_building(server: FakeServer, lock: str) -> None:
    """At once, however long the builds that are under way take."""
    begun, end = threading.Event(), threading.Event()

    def answer(_: Request) -> Any:
        begun.set()
        end.wait(30)
        return warm_reply()

    server.answers["call"] = answer
    with warming(lock) as process:
        assert begun.wait(20)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    end.set()


# recording --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_recording_ends_with_a_signal(number: int, tmp_path: Path) -> None:
    """What was called until then is in the file."""
    with warming("--record", str(tmp_path / "new.lock")) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("; Ctrl-C ends\n")
        process.send_signal(number)
        assert process.wait(20) == 0
        assert "recorded 3 programs of 2 functions in " in process.stderr.read()
    assert read_lockfile(str(tmp_path / "new.lock")) == RECIPES


def record(tmp_path: Path, *words: str) -> int:
    """Records a program that says where it ran."""
    return main(["warm", "--record", str(tmp_path / "new.lock"), *words])


def shell(program: str, *words: str) -> Sequence[str]:
    """The words that run a Python program."""
    return ("--", sys.executable, "-c", program, *words)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("code", [0, 7])
def test_a_program_is_recorded_while_it_runs(code: int, tmp_path: Path) -> None:
    """Its exit code is ours; its words are its own, and its calls go to the server."""
    program = (
        "import sys, os, json; out, code, *words = sys.argv[1:]\n"
        "json.dump([words, os.environ.get('JAXD_SERVER')], open(out, 'w')); sys.exit(int(code))"
    )
    out = tmp_path / "out"
    words = shell(program, str(out), str(code), "--", "--json", "-c")
    assert record(tmp_path, *words) == code
    assert json.loads(out.read_text()) == [["--", "--json", "-c"], os.environ["JAXD_SERVER"]]
    assert read_lockfile(str(tmp_path / "new.lock")) == RECIPES


def test_a_server_that_was_named_is_the_programs_too(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing of it would be recorded."""
    monkeypatch.setenv("JAXD_SERVER", "unix:///nowhere.sock")
    program = "import sys, os; open(sys.argv[1], 'w').write(os.environ['JAXD_SERVER'])"
    words = ("--server", server.address, *shell(program, str(tmp_path / "out")))
    assert record(tmp_path, *words) == 0
    assert (tmp_path / "out").read_text() == server.address


@pytest.mark.usefixtures("server")
def test_ctrl_c_ends_the_program_and_not_the_recording(tmp_path: Path) -> None:
    """A shell sends it to both."""
    program = "print('up', flush=True); import time; time.sleep(60)"
    with warming("--record", str(tmp_path / "new.lock"), *shell(program)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT
    assert read_lockfile(str(tmp_path / "new.lock")) == RECIPES


@pytest.mark.usefixtures("server")
def test_sigterm_is_handed_on(tmp_path: Path) -> None:
    """As a supervisor sends it, to this process alone."""
    program = "print('up', flush=True); import time; time.sleep(60)"
    with warming("--record", str(tmp_path / "new.lock"), *shell(program)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert read_lockfile(str(tmp_path / "new.lock")) == RECIPES


@pytest.mark.parametrize(("ends_with", "code"), [(0, 1), (7, 7)])
def test_a_server_that_was_started_since_has_nothing_to_tell(
    server: FakeServer,
    tmp_path: Path,
    ends_with: int,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That is said, and no lockfile is written that would hold only a part."""
    forgot = failed(ProtocolError("it was started since. Record again."))
    server.answers["recipes"] = lambda asked: recipes(asked) if asked.args == ("",) else forgot
    assert record(tmp_path, *shell(f"raise SystemExit({ends_with})")) == code
    assert capsys.readouterr().err == "jaxd: it was started since. Record again.\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("server")
def test_how_much_was_recorded_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To people on stderr, beside what the program prints; to programs as JSON."""
    assert record(tmp_path, *shell("")) == 0
    file = str(tmp_path / "new.lock")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "jaxd: noise is not recorded: it reads a generator.",
        f"jaxd: recorded 3 programs of 2 functions in {file}",
    ]
    assert record(tmp_path, "--json", *shell("")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"file": file, "functions": 2, "programs": 3, "left_out": [LEFT_OUT]}


def test_nothing_is_run_in_vain(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A place where nothing can be written, and a program that is not there, are told first."""
    marker = tmp_path / "ran"
    words = shell(f"open({str(marker)!r}, 'w')")
    assert main(["warm", "--record", str(tmp_path / "no" / "where"), *words]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert not marker.exists()
    assert server.asked == []
    assert record(tmp_path, "--", str(tmp_path / "none")) == 1
    assert "cannot run" in capsys.readouterr().err


def test_a_program_without_record_is_a_mistake(
    lock: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what is missing."""
    assert main(["warm", lock, "--", "python", "train.py"]) == 1
    assert "Add --record" in capsys.readouterr().err
