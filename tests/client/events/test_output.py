from __future__ import annotations

import io
import linecache
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from jaxd.events.output import OutputPrinter
from jaxd.events.progress import Progress
from jaxd.events.warnings import WarningQueue

CALL = object()


@pytest.fixture
def notices() -> WarningQueue:
    """What waits for the thread of the call."""
    return WarningQueue()


@pytest.fixture
def output_printer(notices: WarningQueue) -> OutputPrinter:
    """Of one server."""
    return OutputPrinter(notices, Progress())


def printed(text: str, **more: Any) -> dict[str, Any]:
    """A line on stdout."""
    return {"stream": "stdout", "text": text, "flush": False} | more


def warned(text: str, line: int = 3, **more: Any) -> dict[str, Any]:
    """A warning."""
    own = {"category": ["builtins", "UserWarning"], "bases": ["UserWarning", "Warning"]}
    return {"text": text, "file": "train.py", "line": line} | own | more


def test_what_a_stream_cannot_encode_is_said_all_the_same(
    output_printer: OutputPrinter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the way in which Python itself does it on stderr."""
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, "ascii"))
    output_printer.event(CALL, 1, "print", printed("süß\n"))
    output_printer.event(CALL, 1, "print", printed("and on\n", flush=True))
    assert data.getvalue() == b"s\\xfc\\xdf\nand on\n"


def test_a_broken_stream_harms_nobody(
    output_printer: OutputPrinter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the connection goes on; a process without stdout prints nowhere."""
    output_printer_of = output_printer.event

    class Broken:
        def write(self, _: str) -> None:
            raise OSError("no space")

    monkeypatch.setattr(sys, "stdout", Broken())
    output_printer_of(CALL, 1, "print", printed("a\n"))
    monkeypatch.setattr(sys, "stdout", None)
    output_printer_of(CALL, 1, "print", printed("a\n"))


def test_a_category_that_is_not_here_counts_as_the_nearest_of_pythons_own(
    output_printer: OutputPrinter,
) -> None:
    """So that filters for that still fit."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        bases = ["Odd", "FutureWarning", "Warning"]
        content = warned("w", category=["not_here", "Odd"], bases=bases)
        output_printer.event(CALL, 1, "warned", content)
        output_printer.event(CALL, 1, "warned", warned("w", category=["os", "system"], bases=[]))
    assert [w.category for w in seen] == [FutureWarning, UserWarning]


class Acts(UserWarning):
    """One that does more than to have a name."""

    def __init__(self, text: str) -> None:
        raise SystemExit(text)


class Named(UserWarning):
    """One that filters know by its class."""


def test_a_category_that_runs_code_is_not_made(output_printer: OutputPrinter) -> None:
    """A server chooses the class; the nearest of Python's own takes its place."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for name in ("Acts", "Named"):
            content = warned("w", category=[__name__, name], bases=["UserWarning", "Warning"])
            output_printer.event(CALL, 1, "warned", content)
    assert [w.category for w in seen] == [UserWarning, Named]


def logged(text: str, level: int = logging.INFO) -> dict[str, Any]:
    """A record."""
    place = {"file": "train.py", "line": 3, "function": "step", "traceback": None}
    return {"name": "of_a_user", "level": level, "text": text} | place


def test_a_file_that_a_server_names_is_not_opened(
    output_printer: OutputPrinter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a warning, as Python shows it by default, nor for a record of the log."""
    path = tmp_path / "diary.txt"
    path.write_text("secret = 42")
    said: list[str] = []
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(logging.Formatter("%(pathname)s:%(lineno)d %(message)s"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(
            warnings, "showwarning", lambda *shown: said.append(warnings.formatwarning(*shown[:4]))
        )
        output_printer.event(CALL, 1, "warned", warned("slow", 1, file=str(path)))
    logger = logging.getLogger("jaxd.tests.names")
    logger.addHandler(handler)
    record = {"name": logger.name, "level": 40, "file": str(path), "line": 1, "text": "slow"}
    output_printer.event(CALL, 1, "logged", record | {"function": "f", "traceback": None})
    assert said == [f"<{path}>:1: UserWarning: slow\n"]
    assert log.getvalue() == f"{path}:1 slow\n"
    assert str(path) not in linecache.cache


def test_a_line_of_a_file_of_this_process_is_shown(
    output_printer: OutputPrinter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with any warning."""
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(
            warnings, "showwarning", lambda *shown: said.append(warnings.formatwarning(*shown[:4]))
        )
        output_printer.event(CALL, 1, "warned", warned("slow", 1, file=__file__))
    assert said == [f"{__file__}:1: UserWarning: slow\n  from __future__ import annotations\n"]


def test_what_is_remembered_of_files_is_bounded(
    notices: WarningQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may name as many as it likes."""
    monkeypatch.setattr("jaxd.events.output._MAX_FILES", 20)
    output_printer = OutputPrinter(notices, Progress())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(30):
            output_printer.event(CALL, 1, "warned", warned("slow", file=f"{number}.py"))
    assert 0 < len(output_printer._registries) <= 20


def test_loggers_are_bounded(output_printer: OutputPrinter) -> None:
    """Those that a server names first are made, the rest is logged by the root."""
    before = len(logging.root.manager.loggerDict)
    for number in range(400):
        output_printer.event(CALL, 1, "logged", {**logged("text"), "name": f"made.up{number}"})
    assert len(logging.root.manager.loggerDict) - before <= 257
