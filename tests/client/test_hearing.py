from __future__ import annotations

import io
import logging
import sys
import warnings
from typing import Any

import pytest

from jaxd.hearing import Hearing
from jaxd.notices import Notices
from jaxd.progress import Progress

CALL = object()


@pytest.fixture
def notices() -> Notices:
    """What waits for the thread of the call."""
    return Notices()


@pytest.fixture
def hearing(notices: Notices) -> Hearing:
    """Of one server."""
    return Hearing(notices, Progress())


def printed(text: str, **more: Any) -> dict[str, Any]:
    """A line on stdout."""
    return {"stream": "stdout", "text": text, "flush": False} | more


def warned(text: str, line: int = 3, **more: Any) -> dict[str, Any]:
    """A warning."""
    own = {"category": ["builtins", "UserWarning"], "bases": ["UserWarning", "Warning"]}
    return {"text": text, "file": "train.py", "line": line} | own | more


def test_numbered_events_are_heard_once(
    hearing: Hearing, capsys: pytest.CaptureFixture[str]
) -> None:
    """Live, and again from another build of the same program."""
    for _ in range(2):
        hearing.event(CALL, 1, "print", printed("a\n", of="build", at=0))
        hearing.event(CALL, 2, "print", printed("b\n", of="build", at=1))
    hearing.event(CALL, 2, "print", printed("a\n", of="another", at=0))
    for _ in range(2):
        hearing.event(CALL, 2, "print", printed("runs\n"))
    assert capsys.readouterr().out == "a\nb\na\nruns\nruns\n"


def test_what_a_stream_cannot_encode_is_said_all_the_same(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the way in which Python itself does it on stderr."""
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, "ascii"))
    hearing.event(CALL, 1, "print", printed("süß\n"))
    hearing.event(CALL, 1, "print", printed("and on\n", flush=True))
    assert data.getvalue() == b"s\\xfc\\xdf\nand on\n"


@pytest.mark.parametrize("forget", ["unsaid", "cleared"])
def test_what_is_traced_anew_is_heard_anew(
    hearing: Hearing, capsys: pytest.CaptureFixture[str], forget: str
) -> None:
    """After a failure, and after `clear()`."""
    name = b"key".hex() + "more"
    hearing.event(CALL, 1, "print", printed("a\n", of=name, at=0))
    if forget == "unsaid":
        hearing.event(CALL, 1, "unsaid", {"of": name})
    else:
        hearing.forget(b"key")
    hearing.event(CALL, 1, "print", printed("a\n", of=name, at=0))
    assert capsys.readouterr().out == "a\na\n"


def test_a_broken_stream_harms_nobody(hearing: Hearing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the connection goes on; a process without stdout prints nowhere."""
    hearing_of = hearing.event

    class Broken:
        def write(self, _: str) -> None:
            raise OSError("no space")

    monkeypatch.setattr(sys, "stdout", Broken())
    hearing_of(CALL, 1, "print", printed("a\n"))
    monkeypatch.setattr(sys, "stdout", None)
    hearing_of(CALL, 1, "print", printed("a\n"))


def test_a_warning_is_shown_once_for_each_place(hearing: Hearing) -> None:
    """As Python's default filter does it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for line in (3, 3, 4):
            hearing.event(CALL, 1, "warned", warned("slow", line))
    assert [(str(w.message), w.filename, w.lineno) for w in seen] == [
        ("slow", "train.py", 3),
        ("slow", "train.py", 4),
    ]


def test_a_category_that_is_not_here_counts_as_the_nearest_of_pythons_own(
    hearing: Hearing,
) -> None:
    """So that filters for that still fit."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        bases = ["Odd", "FutureWarning", "Warning"]
        content = warned("w", category=["not_here", "Odd"], bases=bases)
        hearing.event(CALL, 1, "warned", content)
        hearing.event(CALL, 1, "warned", warned("w", category=["os", "system"], bases=[]))
    assert [w.category for w in seen] == [FutureWarning, UserWarning]


def test_a_warning_that_is_an_error_is_raised_where_the_call_is(
    hearing: Hearing, notices: Notices
) -> None:
    """And not where it is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hearing.event(CALL, 1, "warned", warned("slow"))
    notices.issue(CALL, 2)
    with pytest.raises(UserWarning, match="slow"):
        notices.issue(CALL, 1)
    assert not notices.waiting


def logged(text: str, level: int = logging.INFO) -> dict[str, Any]:
    """A record."""
    place = {"file": "train.py", "line": 3, "function": "step", "traceback": None}
    return {"name": "of_a_user", "level": level, "text": text} | place


def test_levels_are_those_of_this_process(
    hearing: Hearing, caplog: pytest.LogCaptureFixture
) -> None:
    """A percent sign in a message is only that."""
    caplog.set_level(logging.INFO, "of_a_user")
    hearing.event(CALL, 1, "logged", logged("100 %s"))
    hearing.event(CALL, 1, "logged", logged("hidden", logging.DEBUG))
    assert [(r.name, r.getMessage(), r.lineno) for r in caplog.records] == [
        ("of_a_user", "100 %s", 3)
    ]


def test_what_jax_compiles_is_logged_for_who_wants_to_know(
    hearing: Hearing, notices: Notices, caplog: pytest.LogCaptureFixture
) -> None:
    """In the thread of the call, for which alone it may be set."""
    import jax

    hearing.event(CALL, 1, "compiled", logged("Compiling f"))
    with jax.log_compiles(True):
        hearing.event(CALL, 2, "compiled", logged("Compiling g", logging.WARNING))
        notices.issue(CALL, 2)
    notices.issue(CALL, 1)
    assert caplog.messages == ["Compiling g"]
