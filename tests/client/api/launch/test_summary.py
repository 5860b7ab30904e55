"""What a program of several processes says at its end."""

from __future__ import annotations

from pathlib import Path

from jaxd.api.launch.summary import Summary, leave, left_for


def test_the_line_has_the_counts_with_separators() -> None:
    """Short seconds with a digit behind the point; watched calls where there are any."""
    told = Summary(calls=1912, compiled=41, spared=37, fell_back=3, saved_s=188.4)
    assert told.line() == "jaxd: 1,912 calls, 41 compiled, 1,871 warm, 3 fell back, 188 s saved"
    watched = Summary(calls=2, compiled=2, spared=1, watched=5, left=1, saved_s=0.25)
    assert watched.line(programs=True) == (
        "jaxd: 2 calls, 2 compiled, 0 warm, 1 traces and compiles saved, 0 fell back, "
        "5 under a debugger or coverage, 1 functions left to jax.jit, 0.2 s saved"
    )


def test_parts_add_up_by_reason() -> None:
    """Those of most calls are told first."""
    parts = [
        Summary(calls=1, saved_s=0.5, reasons={"f: no": 1}),
        Summary(calls=2, saved_s=1, reasons={"g:\n why": 3, "f: no": 1}),
    ]
    total = Summary.total(parts)
    assert (total.calls, total.saved_s) == (3, 1.5)
    assert list(total.reasons_text()) == ["  3 x g: why", "  2 x f: no"]
    assert Summary.total([]) == Summary()


def test_processes_leave_theirs_for_the_main_one_once(runtime: Path) -> None:
    """In a folder of the user's own, of which nothing stays; what is no summary is passed over."""
    leave(Summary(calls=4, reasons={"f": 1}), 17)
    (folder,) = (runtime / "jaxd").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    for name, text in (("a.json", "[]"), ("b.json", "no"), ("c.json", '{"other": 1}')):
        (folder / name).write_text(text)
    assert left_for(17) == [Summary(calls=4, reasons={"f": 1})]
    assert not folder.exists()
    assert left_for(17) == []


def test_one_that_cannot_be_left_is_not_missed(runtime: Path) -> None:
    """The exit of a process does not depend on it."""
    (runtime / "jaxd").touch()
    leave(Summary(calls=1), 17)
    assert left_for(17) == []
