"""What is said of a program and of a part of a suite from their runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus import report
from tests.corpus.comparing import last_line, output_agreement, summary
from tests.corpus.suites import part_summary


def run(fell_back: int = 0, **more: Any) -> dict[str, Any]:
    """A run by `jaxd run --report`, or by `python`."""
    said = f"a warning\njaxd: 3 calls, {fell_back} fell back, 0.0 s saved\n  1 x f: why\n"
    return {
        "status": 0,
        "stdout": "loss 1.5\n",
        "stderr": said,
        "cpu_s": 2.0,
        "wall_s": 3.0,
        "server": {"traces": 0},
        "worker_restarts": 0,
        **more,
    }


def runs(**changed: Any) -> dict[str, Any]:
    """Five runs that agree, but for those that are given."""
    return {n: run() for n in ("plain", "plain_again", "plain_warm", "cold", "warm")} | changed


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "served"),
        ({"cold": run(fell_back=1)}, "fell back"),
        ({"warm": run(fell_back=10)}, "fell back"),
        ({"warm": run(stdout="loss 1.6\n")}, "differs"),
        ({"warm": run(stderr="")}, "fell back"),
        ({"cold": run(status=1)}, "fails"),
        ({"warm": run(status="gave up")}, "fails"),
        ({"plain": run(status=1)}, "fails in plain jax"),
    ],
)
def test_the_verdict_is_the_worst_that_is_true(changed: Any, verdict: str) -> None:
    """Of either run: of what was printed, and of the report at its end."""
    found = summary(runs(**changed))
    assert found["verdict"] == verdict
    if verdict == "served":
        assert found["said"]["warm"][1] == "  1 x f: why"


def test_printed_lines_count_where_plain_jax_prints_them_twice() -> None:
    """Times and addresses are other ones in each process."""
    five = runs(
        plain=run(stdout="loss 1.5\ntook 3 s\n"),
        plain_again=run(stdout="loss 1.5\ntook 4 s\n"),
        cold=run(stdout="loss 1.6\ntook 5 s\n"),
    )
    found = output_agreement(five, five["cold"])
    assert (found["lines"], found["missing"], found["example"]) == (1, 1, "loss 1.5")


def test_a_time_in_a_line_is_not_compared() -> None:
    """Plain jax may take equally long twice; the rest of the line counts."""
    five = runs(
        plain=run(stdout="epoch 1 in 0.03 sec: 0.9\n"),
        plain_again=run(stdout="epoch 1 in 0.03 sec: 0.9\n"),
        cold=run(stdout="epoch 1 in 0.05 sec: 0.9\n"),
        warm=run(stdout="epoch 1 in 0.03 sec: 0.8\n"),
    )
    assert output_agreement(five, five["cold"])["missing"] == 0
    assert output_agreement(five, five["warm"])["missing"] == 1


def test_the_line_that_says_what_went_wrong() -> None:
    """The last one of a traceback that names an error."""
    text = "Traceback (most recent call last):\n  File x\nValueError: no\nsome log line\n"
    assert last_line(text) == "ValueError: no"


def test_tests_are_compared_where_they_pass_in_plain_jax() -> None:
    """What fails there is no fault of ours; what was not reached here is."""
    plain = {"a": "passed", "b": "passed", "c": "failed: x", "d": "passed"}
    served = {"a": "passed", "b": "failed: y", "c": "failed: x"}
    each = {"wall_s": 1.0, "cpu_s": 2.0, "said": []}
    ways: dict[str, Any] = {"plain": {**each, "outcomes": plain}}
    ways |= {mode: {**each, "outcomes": served} for mode in ("first", "second")}
    found = part_summary(ways, 0)
    assert (found["tests"], found["pass_in_plain_jax"], found["verdict"]) == (4, 3, "fails")
    lost = {"first: b": "failed: y", "first: d": "None", "second: b": "failed: y"}
    assert found["lost"] == {**lost, "second: d": "None"}


def test_the_page_has_a_row_for_each_program_and_nothing_of_the_machine() -> None:
    """Reasons are one line each, without folders and addresses."""
    said = "jaxd: 3 calls, 1 fell back, 0.0 s saved\n  1 x f: /some/place/f.py has 0x7f12 in it\n"
    found = summary(runs(warm=run(stderr=said)))
    about = {"kind": "run", "project": "p", "version": "1", "title": "t.py", "note": ""}
    skipped = {**about, "title": "u.py", "summary": {"verdict": "skipped", "error": "no clone"}}
    page = report.page([{**about, "summary": found}, skipped])
    assert "| p | 1 | t.py | 3 | 1 | 1: 0 / 0 | 0 / 0 | 2.0 / 2.0 / 2.0 / 2.0 |" in page
    assert "1 x f: …/f.py has 0x… in it" in page
    assert "- p, u.py: skipped: no clone" in page
