"""What a server has done, as those who had it done are told: by real clients of a real server."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd import connect
from jaxd.cli.__main__ import main
from jaxd_protocol.messages.report import Report
from tests.live_server import TOKEN, LiveServer, run_client

StartLive = Callable[..., LiveServer]
Captured = pytest.CaptureFixture[str]

PROGRAM = """
import sys
import numpy as np
from jaxd import persistent_call

RATE = 0.0
x = np.ones(4, "f4")

@persistent_call(static_argnames="n")
def repeated(x, n):
    return x * n

@persistent_call
def of_any_length(x):
    return x.sum()

@persistent_call
def scaled(x, by):
    return x * by

@persistent_call
def step(x):
    return x - RATE * x

@persistent_call
def well_made(x):
    return x + 1

well_made(x)
well_made(x)
if "badly" in sys.argv:
    for n in range(9):
        repeated(x, n)
        of_any_length(np.ones(n + 1, "f4"))
    scaled(x, 2.0)
    scaled(x, np.float32(2.0))
    for n in range(6):
        RATE = 0.1 * n
        step(x)
"""

EDITED = """
import sys
import numpy as np
from jaxd import persistent_call
source = "@persistent_call\\ndef edited(x):\\n    " + sys.argv[1] + "\\n    return x * 3\\n"
with open(sys.argv[2] + "/changing.py", "w") as file:
    file.write("from jaxd import persistent_call\\n\\n" + source)
sys.path.insert(0, sys.argv[2])
import changing
changing.edited(np.ones(4, "f4"))
"""


def run(server: LiveServer, program: str, *arguments: str) -> None:
    """Runs a client program, which must succeed."""
    done = run_client(program, *arguments, environment=server.environment)
    assert done.returncode == 0, done.stderr


def report_of(server: LiveServer) -> Report:
    """What the owner of a server is told."""
    with connect(server.unix, token=TOKEN) as client:
        return Report.from_dict(client.caller.session.ask("report"))


@pytest.mark.slow
def test_what_was_saved_is_what_a_process_did_not_build(start_live: StartLive) -> None:
    """The build, once for each process that did not make it, however often it calls."""
    server = start_live()
    run(server, PROGRAM)
    first = report_of(server)
    assert (first.total.compiled, first.total.found, first.total.saved_s) == (1, 0, 0.0)
    assert first.total.built_s > 0
    for _ in range(2):
        run(server, PROGRAM)
    report = report_of(server)
    assert (report.total.compiled, report.total.found) == (1, 2)
    assert report.total.saved_s == pytest.approx(2 * first.total.built_s, rel=0.2)
    (function,) = report.functions
    assert (function.name, function.use) == ("well_made", report.total)
    (principal,) = report.principals
    assert principal.use == report.total
    assert report.needless == ()


@pytest.mark.slow
def test_it_outlives_the_server(start_live: StartLive) -> None:
    """With the moment at which counting began; what comes from disk is less what that took."""
    first = start_live(name="a")
    run(first, PROGRAM)
    before = report_of(first)
    first.close()
    second = start_live(name="b")
    run(second, PROGRAM)
    after = report_of(second)
    assert (after.since, after.outlives_server) == (before.since, True)
    assert (after.total.compiled, after.total.loaded, after.total.found) == (1, 1, 0)
    assert after.total.built_s == before.total.built_s
    assert after.total.saved_s > 0
    with connect(second.unix, token=TOKEN) as client:
        assert client.statistics().saved_s == pytest.approx(after.total.saved_s)


@pytest.mark.slow
def test_functions_of_one_name_in_two_files_are_two(start_live: StartLive, tmp_path: Path) -> None:
    """Each with its place."""
    server = start_live()
    for name, source in (("first", PROGRAM), ("second", PROGRAM.replace("x + 1", "x + 2"))):
        (tmp_path / f"{name}.py").write_text(source)
        run(server, f"import sys; sys.path.insert(0, sys.argv[1]); import {name}", str(tmp_path))
    functions = report_of(server).functions
    assert [(each.name, each.use.compiled) for each in functions] == [("well_made", 1)] * 2
    assert {each.where.partition(":")[0] for each in functions} == {"first.py", "second.py"}


@pytest.mark.slow
def test_needless_builds_are_found(start_live: StartLive) -> None:
    """Each with its kind, what it is about, and how many programs there need not have been."""
    server = start_live()
    run(server, PROGRAM, "badly")
    report = report_of(server)
    found = {one.function: (one.kind, one.subject, one.programs) for one in report.needless}
    assert found == {
        "repeated": ("static", "argument n", 8),
        "of_any_length": ("shapes", "argument x", 8),
        "scaled": ("weak", "argument by", 1),
        "step": ("scalar", "global RATE", 5),
    }
    spent = {one.name: one.use.built_s for one in report.functions}
    for one in report.needless:
        assert 0 < one.seconds < spent[one.function]
        assert one.where.startswith("<string>:") or one.where.rpartition(":")[2].isdigit()


@pytest.mark.slow
def test_an_edit_that_changes_nothing_is_found(start_live: StartLive, tmp_path: Path) -> None:
    """It was traced once more, and the program was there already; with the line of the edit.

    One that makes another program is none.
    """
    server = start_live()
    for line in ("pass", "unused = 1", "x = x + 1"):
        run(server, EDITED, line, str(tmp_path))
    (one,) = report_of(server).needless
    assert (one.kind, one.function, one.programs) == ("unchanged", "edited", 1)
    assert one.where == "changing.py:3"


@pytest.mark.slow
def test_the_command_says_it_and_draws_it(
    start_live: StartLive, tmp_path: Path, capsys: Captured
) -> None:
    """As text, as JSON, and as a picture in the format of its name."""
    pytest.importorskip("matplotlib")
    server = start_live()
    run(server, PROGRAM, "badly")
    run(server, PROGRAM)
    options = ("--server", server.unix)
    for name, begin in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        path = tmp_path / name
        assert main(["report", *options, "--top", "2", "--picture", str(path)]) == 0
        assert path.read_bytes().startswith(begin)
    drawn = path.read_text()
    assert "well_made" in drawn
    assert "9 programs" not in drawn
    assert len(re.findall(r"\d programs", drawn)) == 2, "rows of needless builds, as --top says"
    said = capsys.readouterr().out
    assert "\ncompiled needlessly: 22 programs, " in said
    assert "and 2 more (--top 4)" in said
    assert "bucket=" in said
    assert main(["report", *options, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert Report.from_dict(shown) == report_of(server)
    folder = str(tmp_path / "absent" / "a.png")
    assert main(["report", *options, "--picture", folder]) == 1
    assert capsys.readouterr().err.startswith(f"jaxd: cannot write {folder}: No such file")


@pytest.mark.parametrize(("name", "why"), [("a.gif", "is no name of"), ("a.png", "jaxd[report]")])
def test_a_picture_that_cannot_be_is_an_error(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, name: str, why: str
) -> None:
    """Before a server is asked: another format, or no matplotlib."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", "--picture", str(runtime / name)]) == 1
    assert why in capsys.readouterr().err


def test_without_a_server_it_exits_with_3(runtime: Path) -> None:
    """And starts none."""
    assert main(["report"]) == 3
