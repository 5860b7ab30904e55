"""The demo's verdict and its table."""

from __future__ import annotations

import dataclasses
import json

from jaxd.demo.report import COUNTERS, Report
from jaxd.demo.runs import Run

RUN = Run("a run", 1.0, 0.25, 1.25, 2.0, 0.98, ({"loss": 0.1, "accuracy": 0.98},), False)
BEFORE = dict.fromkeys(COUNTERS, 2)
AFTER = BEFORE | {"calls": 62, "executable_hits": 62}
GOOD = Report(RUN, RUN, RUN, RUN, BEFORE, AFTER, "/somewhere/digits.png")


def test_a_second_process_without_trace_and_compile_is_a_success() -> None:
    """Calls and hits may rise; nothing is complained about."""
    assert GOOD.complaints == ()


def test_a_trace_or_compile_in_the_second_process_is_complained_about() -> None:
    """The promise of the demo is that there is none, so one is a failure that names the count."""
    bad = dataclasses.replace(GOOD, after=AFTER | {"traces": 3, "compiles": 4})
    assert bad.complaints == (
        "the second process caused 1 traces; there should be none.",
        "the second process caused 2 compiles; there should be none.",
    )


def test_a_network_that_did_not_learn_is_complained_about() -> None:
    """A fast wrong answer is no success."""
    bad = dataclasses.replace(GOOD, second=dataclasses.replace(RUN, accuracy=0.5))
    assert ["50.0%" in complaint for complaint in bad.complaints] == [True]


def test_a_client_that_imported_jax_is_complained_about() -> None:
    """A client process needs no jax, and the demo watches that."""
    bad = dataclasses.replace(GOOD, cold=dataclasses.replace(RUN, jax_imported=True))
    assert ["imported jax" in complaint for complaint in bad.complaints] == [True]


def test_the_text_has_every_run_every_counter_and_the_plot() -> None:
    """A reader finds four rows of times, what the second process needed, and where the plot is."""
    text = GOOD.as_text()
    assert text.count("a run") == 4
    assert all(counter.replace("_", " ") in text for counter in COUNTERS)
    assert "plot: /somewhere/digits.png" in text


def test_the_json_says_what_the_second_process_needed() -> None:
    """A program reads the differences without doing sums."""
    facts = json.loads(json.dumps(GOOD.as_json()))
    assert facts["counters"]["second_process"] == {
        "calls": 60,
        "traces": 0,
        "compiles": 0,
        "executable_hits": 60,
        "executables": 0,
    }
    assert facts["runs"]["second"]["first_result_s"] == 1.25
