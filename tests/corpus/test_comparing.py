"""What is said of a program from its runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus import report, suites
from tests.corpus.comparing import agreement, last_line, output_agreement, run_summary, summary


def run(results: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A run with one function, that was called as often as there are results."""
    kept = results if results is not None else {"0": ["aa", [1.0]]}
    function = {"served": len(kept), "local": 0, "raised": 0, "inside": 0, "reasons": {}}
    counts = dict.fromkeys(("traces", "lowers", "compiles", "cache_hits"), 1)
    return {
        "status": 0,
        "stdout": "loss 1.5\n",
        "stderr": "",
        "cpu_s": 2.0,
        "events": counts,
        "records": [
            {
                "functions": {"m.f:1": {**function, "results": kept, **more.pop("function", {})}},
                "not_served": more.pop("not_served", {}),
            }
        ],
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
        ({"cold": run({"0": ["bb", [2.0]]})}, "differs"),
        ({"warm": run({"0": ["bb", [2.0]]})}, "differs"),
        ({"cold": run(function={"local": 1, "reasons": {"why": 1}})}, "fell back"),
        ({"cold": run(not_served={"the option backend": 1})}, "fell back"),
        ({"cold": run(status=1)}, "fails"),
        ({"warm": run(status="gave up")}, "fails"),
        ({"plain": run(status=1)}, "fails in plain jax"),
    ],
)
def test_the_verdict_is_the_worst_that_is_true(changed: Any, verdict: str) -> None:
    """Of either process on the server."""
    assert summary(runs(**changed))["verdict"] == verdict


def by_command(fell_back: int = 0, **more: Any) -> dict[str, Any]:
    """A run by `jaxd run --report`."""
    said = f"a warning\njaxd: 3 calls, {fell_back} fell back, 0.0 s saved\n  1 x f: why\n"
    return run(**{"wall_s": 3.0, "stderr": said, **more})


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "served"),
        ({"cold": by_command(fell_back=1)}, "fell back"),
        ({"warm": by_command(fell_back=10)}, "fell back"),
        ({"warm": by_command(stdout="loss 1.6\n")}, "differs"),
        ({"warm": by_command(stderr="")}, "fell back"),
        ({"cold": by_command(status=1)}, "fails"),
        ({"plain": by_command(status=1)}, "fails in plain jax"),
    ],
)
def test_the_verdict_on_jaxd_run_is_of_what_was_printed(changed: Any, verdict: str) -> None:
    """Nothing is recorded in the program: there are its output, and the report."""
    given = {name: by_command() for name in runs()} | changed
    found = run_summary(given)
    assert found["verdict"] == verdict
    if verdict == "served":
        assert found["said"]["warm"][1] == "  1 x f: why"


@pytest.mark.parametrize(
    ("found", "again", "kind"),
    [
        (["aa", [1.0]], ["aa", [1.0]], "same"),
        (["bb", [1.00001]], ["aa", [1.0]], "close"),
        (["bb", [1.1]], ["aa", [1.0]], "differs"),
        (["bb", [1.1]], ["cc", [1.2]], "unsteady"),
        (["bb", []], ["aa", [1.0]], "differs"),
        (["bb", [float("nan")]], ["aa", [1.0]], "differs"),
    ],
)
def test_bits_count_where_plain_jax_gives_the_same_bits_twice(
    found: Any, again: Any, kind: str
) -> None:
    """Other bits with close sums are named as such; what is unsteady in plain jax is no fault."""
    five = runs(cold=run({"0": found}), plain_again=run({"0": again}))
    assert agreement(five, five["cold"])["worst"] == kind


def test_a_result_that_is_not_there_is_missing() -> None:
    """A function that was called less often is not taken for one that agrees."""
    five = runs(cold=run({}))
    assert agreement(five, five["cold"])["worst"] == "missing"


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
    """What fails there, or was not reached here, is no fault of ours."""
    plain = {"outcomes": {"a": "passed", "b": "passed", "c": "failed: x", "d": "passed"}}
    served = {"outcomes": {"a": "passed", "b": "failed: y", "c": "failed: x"}, "records": []}
    found = suites.comparison({**plain, "cpu_s": 1}, {**served, "cpu_s": 2})
    assert (found["pass_in_plain_jax"], found["reached"], found["pass"]) == (3, 2, 1)
    assert found["failed"] == {"b": "failed: y"}


def test_the_page_has_a_row_for_each_program_and_nothing_of_the_machine() -> None:
    """Reasons are one line each, without folders and addresses."""
    reason = "PackingError: /root/some/file.py has 0x7f12 in\nit"
    found = summary(runs(cold=run(function={"local": 1, "reasons": {reason: 1}})))
    about = {"kind": "program", "project": "p", "version": "1", "title": "t.py", "note": ""}
    skipped = {**about, "title": "u.py", "summary": {"verdict": "skipped", "error": "no clone"}}
    page = report.page([{**about, "summary": found}, skipped])
    assert "| p | 1 | t.py | 0/1 | 1/2 | the same bits | 0 / 0 |" in page
    assert "PackingError: …/file.py has 0x… in it" in page
    assert "- p, u.py: skipped: no clone" in page
