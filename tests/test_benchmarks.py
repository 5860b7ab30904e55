"""The benchmarks' harness: turns, ratios and reports, and the peers that need no jax."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the benchmarks are not installed

from benchmarks.__main__ import main, write_reports
from benchmarks.accelerator import measure_accelerator
from benchmarks.answering import measure_throughput, median_seconds
from benchmarks.benchmark_run import BenchmarkRun, Sizes
from benchmarks.chart import Panel, as_svg, curves_as_svg
from benchmarks.curves import CURVES
from benchmarks.curves.curve import Curve, CurveResult, Line, measure_curve
from benchmarks.curves.report import page
from benchmarks.drivers import pool_routing
from benchmarks.facts import machine_facts
from benchmarks.harness import (
    Comparison,
    Row,
    RowResult,
    Sampler,
    Target,
    Variant,
    interleave,
    measure,
)
from benchmarks.processes import ChildFailed
from benchmarks.report import as_json, as_markdown, format_seconds
from benchmarks.rows import ROWS, training
from benchmarks.rows.accelerator import LIMITS
from benchmarks.rows.key import KEY

from jaxd.pool.members import MemberCaller
from jaxd.pool.routes import Pool

TINY = Sizes(calls=20, slow_calls=2, round_bytes=2**21, most_bytes=2**20, steps=2, blocks=1)


@pytest.fixture
def run() -> Iterator[BenchmarkRun]:
    """A run in which neither jaxd nor jax is there to be measured."""
    with BenchmarkRun.open(TINY, without=frozenset({"jaxd", "jax"})) as opened:
        yield opened


def constant(seconds: float) -> Callable[[BenchmarkRun], Sampler]:
    """Starts a variant that always takes the same time."""
    return lambda _: lambda: seconds


def row_of(*comparisons: Comparison, absent: str = "nosuchmodule") -> Row:
    """A row of two variants that take 1 s and 4 s, and one that cannot be measured."""
    variants = (
        Variant("fast", constant(1.0)),
        Variant("slow", constant(4.0)),
        Variant("absent", constant(2.0), needs=(absent,)),
    )
    return Row("made-up", "A made-up row", variants, comparisons)


FASTER = Comparison("slow / fast", ("slow",), ("fast",), Target("at least", 3))
CLOSE = Comparison("slow / fast", ("slow",), ("fast",), Target("at most", 3))
UNKNOWN = Comparison("absent / fast", ("absent",), ("fast",), Target("at least", 1))


def test_each_variant_is_sampled_in_turn_after_a_discarded_warm_up() -> None:
    """A B A B A B for two rounds: the first of each is thrown away."""
    order: list[str] = []

    def sampler(name: str) -> Sampler:
        def sample() -> float:
            order.append(name)
            return float(len(order))

        return sample

    figures = interleave({"a": sampler("a"), "b": sampler("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert figures == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_no_round_begins_without_time() -> None:
    """What was measured in whole rounds until then counts."""
    left = iter([True, True, True, False])
    figures = interleave({"a": lambda: 1.0, "b": lambda: 2.0}, 9, has_time=lambda: next(left))
    assert figures == {"a": [1.0, 1.0], "b": [2.0, 2.0]}


def _rows_of(folder: Path) -> dict[str, dict[str, float]]:
    data = json.loads((folder / "accelerator.json").read_text())
    return {row["name"]: row["median"] for row in data["rows"]}


def test_rows_for_an_accelerator_are_written_as_they_come(
    run: BenchmarkRun, tmp_path: Path
) -> None:
    """One that breaks, or had no time, is said and does not stop the next; it is measured again."""
    may_run = False
    measured: list[str] = []

    def start(run: BenchmarkRun) -> Sampler:
        measured.append("sometimes")
        if not may_run:
            raise ChildFailed("the device | is gone")
        return lambda: 2.0

    broken = Row("broken", "One that breaks", (Variant("sometimes", start),), ())
    limits = {replace(row_of(FASTER), name="first"): 60.0, broken: 60.0}
    limits |= {replace(row_of(FASTER), name="late"): 0.0, replace(row_of(CLOSE), name="last"): 60.0}
    assert not measure_accelerator(limits, run, 1, tmp_path, lambda _: None)
    medians = {"fast": 1.0, "slow": 4.0}
    assert _rows_of(tmp_path) == {"first": medians, "last": medians}
    page = (tmp_path / "accelerator.md").read_text()
    assert "| broken | sometimes |  | the device / is gone |" in page
    assert "| late | fast |  | no time was left |" in page
    may_run = True
    limits = dict.fromkeys(limits, 60.0)
    assert measure_accelerator(limits, run, 1, tmp_path, lambda _: None)
    assert _rows_of(tmp_path).keys() == {"first", "last", "broken", "late"}
    assert measured == ["sometimes"] * 2
    assert measure_accelerator(limits, run, 1, tmp_path, lambda _: None)
    assert measured == ["sometimes"] * 2, "what has a result is not measured again"


def test_each_row_for_an_accelerator_has_a_name_of_its_own() -> None:
    """By which its results are found again."""
    assert len({row.name for row in LIMITS}) == len(LIMITS)
    assert not {row.name for row in LIMITS} & {row.name for row in ROWS}


def test_a_ratio_is_one_of_sums_with_an_allowance_below() -> None:
    """(2 + 4) / (1 + 1.5 + 0.5) is 2."""
    ratio = Comparison("sums", ("a", "b"), ("c", "d"), None, allowance=0.5)
    assert ratio.ratio({"a": 2, "b": 4, "c": 1, "d": 1.5}) == 2


def test_a_budget_is_an_allowance_alone() -> None:
    """Nothing has to be measured below the line: 1 s of 4 s is a quarter."""
    budget = Comparison("a / 4 s", ("a",), (), Target("at most", 1), allowance=4)
    (outcome,) = RowResult(row_of(budget), {"a": [1.0, 1.0, 2.0]}).outcomes
    assert (outcome.ratio, outcome.highest, outcome.verdict) == (0.25, 0.5, "pass")


@pytest.mark.parametrize(
    ("target", "met", "missed"), [(Target("at most", 2), 2, 2.1), (Target("at least", 2), 2, 1.9)]
)
def test_a_target_is_met_up_to_its_bound(target: Target, met: float, missed: float) -> None:
    """The bound itself passes, and uses the whole target; beyond it the share is above one."""
    assert target.is_met_by(met)
    assert target.share_used(met) == 1
    assert not target.is_met_by(missed)
    assert target.share_used(missed) > 1


def test_outcomes_are_medians_with_the_range_of_single_rounds() -> None:
    """Medians 2 and 4 give 2; the rounds taken alone range from 1 to 4."""
    result = RowResult(row_of(FASTER), {"fast": [1, 2, 5], "slow": [4, 4, 5]})
    (outcome,) = result.outcomes
    assert (outcome.ratio, outcome.lowest, outcome.highest) == (2, 1, 4)
    assert outcome.verdict == "miss"


def test_what_is_not_installed_is_left_out_and_said(run: BenchmarkRun) -> None:
    """The other variants of the row are measured all the same."""
    result = measure(row_of(FASTER, CLOSE, UNKNOWN), run, rounds=2)
    assert [o.verdict for o in result.outcomes] == ["pass", "miss", "not measured"]
    assert result.left_out == {"absent": "no nosuchmodule here"}


def test_what_never_rests_is_there_only_while_it_is_measured(run: BenchmarkRun) -> None:
    """Its processes would take time from what is measured beside it. Some samples are for one."""
    told: list[str] = []

    def sampler(name: str) -> Sampler:
        told.append(f"{name} starts")
        figures = iter([100.0, 7.0, 1.0, 8.0, 9.0, 2.0])  # the warm-up first

        def sample() -> float:
            told.append(name)
            return next(figures)

        return sample

    def restless(own: BenchmarkRun) -> Sampler:
        own.enter(closing(SimpleNamespace(close=lambda: told.append("restless ends"))))
        return sampler("restless")

    quiet = Variant("quiet", lambda _: sampler("quiet"))
    variants = (quiet, Variant("restless", restless, is_restless=True))
    result = measure(Row("made-up", "A made-up row", variants, ()), run, rounds=1)
    visit = ["restless starts", *["restless"] * 6, "restless ends"]
    assert told == ["quiet starts", *(["quiet", *visit] * 2)]
    assert result.medians == {"quiet": 7, "restless": 7}


def test_what_finds_nothing_to_measure_is_left_out_and_says_why(run: BenchmarkRun) -> None:
    """As a driver does whose data does not go the way that it is about."""

    def start(run: BenchmarkRun) -> Sampler:
        program = (
            "from benchmarks.answering import report_skipped; report_skipped('no such way here')"
        )
        (run.directory / "declines.py").write_text(program)
        driver = run.driver("declines")
        return lambda: driver.seconds("anything", 1)

    row = Row("made-up", "A made-up row", (Variant("fast", constant(1.0)), Variant("x", start)), ())
    result = measure(row, run, rounds=1)
    assert (result.medians, result.left_out) == ({"fast": 1.0}, {"x": "no such way here"})


def test_an_optional_peer_waits_for_its_flag(run: BenchmarkRun) -> None:
    """Ray and Dask are measured only when they are asked for."""
    optional = Variant("peer", constant(1.0), flag="ray")
    assert optional.missing(run) == "asked for by --ray"


def test_variants_must_compute_the_same(run: BenchmarkRun) -> None:
    """A variant that is fast because it computes something else breaks the run."""
    run.agree("loss", 2.0)
    run.agree("loss", 2.00001)
    with pytest.raises(AssertionError, match="loss is 3"):
        run.agree("loss", 3.0)


@pytest.mark.parametrize(
    "name",
    [
        "scalar",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("small", "transfer-1MB", "fetch-64MB")
        ),
    ],
)
def test_the_peers_that_need_no_jax_run(run: BenchmarkRun, name: str) -> None:
    """Stock rpyc, raw sockets and bare interpreters give positive times."""
    (row,) = (row for row in ROWS if row.name == name)
    result = measure(row, run, rounds=1)
    assert result.medians
    assert all(seconds > 0 for seconds in result.medians.values())
    assert "jaxd is left out" in result.left_out.values()


@pytest.mark.soak
def test_the_key_is_measured_without_a_server_and_without_flax() -> None:
    """What needs flax is left out and said; all else gives positive times."""
    with BenchmarkRun.open(TINY, without=frozenset({"flax"})) as run:
        result = measure(KEY, run, rounds=1)
    left_out = {name for name in result.left_out if name.startswith("flax train step")}
    assert set(result.left_out) == left_out
    assert set(result.left_out.values()) == {"flax is left out"}
    assert len(result.medians) == len(KEY.variants) - len(left_out) == 8
    assert all(seconds > 0 for seconds in result.medians.values())
    verdicts = {o.comparison.text: o.verdict for o in result.outcomes}
    assert verdicts["flax train step / 0.5 ms"] == "not measured"


def test_the_row_of_the_key_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Without jaxd there is nothing to measure, and each line of it says so."""
    assert main(["--quick", "--peers", "--rows", "key"]) == 0
    printed = capsys.readouterr().out
    assert "| key | small function |  | jaxd is left out |" in printed
    assert "| fetch-64MB |" not in printed


def test_the_choice_of_a_member_is_timed_as_a_call_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all that is looked at for it, and without a server."""
    chosen: list[str] = []
    of_key = Pool.of_key

    def counted(pool: Pool, key: bytes) -> MemberCaller:
        found = of_key(pool, key)
        chosen.append(found.member.name)
        return found

    monkeypatch.setattr(Pool, "of_key", counted)
    assert pool_routing.routing(4)(100) > 0.0
    assert len(chosen) >= 64 + 100
    assert len(set(chosen)) > 1


def test_children_end_with_their_row(run: BenchmarkRun) -> None:
    """Nothing that a row started is left when its run closes."""
    with run.fresh() as row_run:
        path = row_run.socket_path("echo")
        row_run.service("benchmarks.echo_server", path)
        driver = row_run.driver("benchmarks.drivers.rpyc_echo", path)
        assert driver.service.process.poll() is None
    assert driver.service.process.poll() is not None


def test_a_child_that_fails_is_quoted(run: BenchmarkRun) -> None:
    """Its last words are in the error, whether it was to serve or to run to its end."""
    with pytest.raises(ChildFailed, match="No module named"):
        run.service("benchmarks.no_such_peer")
    with pytest.raises(ChildFailed, match=r"exited with 1:\n(?s:.*)ZeroDivisionError"):
        run.process_seconds("-c", "1 / 0")


def test_calls_are_timed_one_by_one_and_together() -> None:
    """Both figures are positive, and the function is called as often as asked."""
    calls: list[int] = []
    assert median_seconds(lambda: calls.append(1), 9) > 0
    assert measure_throughput(lambda count: calls.extend(range(count)))(4) > 0
    assert len(calls) == 13


def test_reports_hold_every_verdict_and_nothing_that_names_the_machine(
    run: BenchmarkRun, tmp_path: Path
) -> None:
    """The Markdown, the data and the plot are written, free of host names and paths."""
    results = [measure(row_of(FASTER, UNKNOWN), run, rounds=2)]
    write_reports(results, machine_facts(), 2, tmp_path / "docs")
    written = {file.suffix: file.read_text() for file in (tmp_path / "docs").iterdir()}
    assert "| slow / fast | **4** | 4 to 4 | ≥ 3 | pass |" in written[".md"]
    assert "not measured" in written[".md"]
    (row,) = json.loads(written[".json"])["rows"]
    assert row["ratios"][0]["measured"] == 4
    assert row["ratios"][1]["verdict"] == "not measured"
    named = {"processor", "cores", "system", "Python", "TCP congestion control"}
    packages = {"jax", "jaxlib", "rpyc", "numpy", "cloudpickle", "flax", "optax", "ray", "dask"}
    assert set(machine_facts()) <= named | packages
    for secret in (str(tmp_path), str(run.directory), sys.prefix):
        assert not any(secret in text for text in written.values())


def test_the_plot_has_a_bar_for_every_measured_target() -> None:
    """Bars are cut at twice the target; what was not measured has none."""
    result = RowResult(row_of(FASTER, CLOSE, UNKNOWN), {"fast": [1.0], "slow": [100.0]})
    picture = ET.fromstring(as_svg([result]))
    bars = picture.findall("{*}rect")[1:]  # the first is the background
    target = picture.find("{*}line")
    assert target is not None
    left, right = float(bars[0].get("x", "")), float(target.get("x1", ""))
    assert [float(bar.get("width", "")) for bar in bars] == [
        pytest.approx((right - left) * 0.03, abs=0.1),
        (right - left) * 2,
    ]


def curve_of(*lines: Line) -> Curve:
    """A made-up one, of which every figure is 3 and 2 more for each leaf."""

    def start(_: BenchmarkRun, most: int) -> Callable[[int], dict[str, float]]:
        assert most == 1000
        return lambda size: {line.name: 3.0 + 2.0 * size for line in lines}

    sizes = (1, 10, 100, 1000)
    return Curve("made-up", "Leaves", "leaf", sizes, (1, 10), lines, start, "So.", "Nothing.")


def test_a_curve_is_measured_in_turn_and_has_a_slope(run: BenchmarkRun) -> None:
    """All sizes of a round come before the next, and the largest three decide the slope."""
    seen: list[str] = []
    curve = curve_of(Line("call", "B"), Line("part", "B", ((1, 10), (10, 1000))))
    result = measure_curve(curve, run, 2, curve.sizes, seen.append)
    rounds = [step.partition(": ")[2] for step in seen[1:]]
    assert rounds == [f"round {turn} of 2, {size}" for turn in (1, 2) for size in curve.sizes]
    slopes = [slope for line in curve.lines for slope in result.slopes(line)]
    assert [(slope.first, slope.last) for slope in slopes] == [(10, 1000), (1, 10), (10, 1000)]
    assert [slope.value for slope in slopes] == pytest.approx([2.0, 2.0, 2.0])


def test_the_page_of_curves_has_tables_slopes_and_the_machine(run: BenchmarkRun) -> None:
    """A size without a figure has an empty cell; a rate has no slope."""
    curve = curve_of(Line("call", "B"), Line("rate", "/s"))
    few = {"call": {1: [5.0, 5.0], 10: [23.0]}, "rate": {10: [23.0]}}
    text = page([CurveResult(curve, few)], {"cores": "2"}, 2)
    assert "|  | 1 | 10 | for each leaf |" in text
    assert "| call | 5 B (5 B to 5 B) | 23 B | 2 B |" in text
    assert "| rate |  | 23 |  |" in text
    assert "**What bounds it.** Nothing." in text
    assert "| cores | 2 |" in text


def test_curves_are_drawn_on_logarithmic_axes() -> None:
    """Equal factors are equal distances; what is not positive has no point."""
    line = {1: 1e-3, 10: 1e-2, 100: 0.0, 1000: 1.0}
    picture = ET.fromstring(curves_as_svg([Panel("a", {"call": line}, str, str)]))
    points = [
        (float(c.get("cx", "")), float(c.get("cy", ""))) for c in picture.iter() if c.get("r")
    ]
    (x0, y0), (x1, y1), (x3, y3) = points
    assert x3 - x0 == pytest.approx(3 * (x1 - x0), abs=0.3)
    assert y3 - y0 == pytest.approx(3 * (y1 - y0), abs=0.3)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_quick_run_of_the_curves_measures_every_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With a server, clients and jax; what does not run at small sizes is not left out unseen."""
    assert main(["--curves", "--quick", "--output", str(tmp_path)]) == 0
    assert "## Values that live on the server" in capsys.readouterr().out
    data = json.loads((tmp_path / "curves.json").read_text())
    measured = {
        line["name"] for curve in data["curves"] for line in curve["lines"] if line["rounds"]
    }
    assert measured == {line.name for curve in CURVES for line in curve.lines}
    assert {file.suffix for file in tmp_path.iterdir()} == {".md", ".json", ".svg"}


def test_reports_of_nothing_measured_have_no_plot(run: BenchmarkRun) -> None:
    """A page without ratios does not show an empty picture."""
    results = [measure(row_of(UNKNOWN), run, rounds=1)]
    assert ".svg" not in as_markdown(results, {}, 1)
    assert as_json(results, {}, 1)["rows"][0]["left_out"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(31.24e-6, "31.2 µs"), (0.01236, "12.4 ms"), (2.812, "2.81 s")]
)
def test_times_have_three_digits_and_a_unit_that_suits(seconds: float, text: str) -> None:
    """Microseconds, milliseconds or seconds."""
    assert format_seconds(seconds) == text


def test_rows_of_bytes_are_shown_in_bytes() -> None:
    """In the table and in the data."""
    row = replace(row_of(CLOSE), unit="B")
    result = RowResult(row, {"fast": [33_100.0], "slow": [6_400_000.0]})
    assert "| made-up | fast | 33.1 kB |" in as_markdown([result], {}, 1)
    assert "| made-up | slow | 6.4 MB |" in as_markdown([result], {}, 1)
    assert as_json([result], {}, 1)["rows"][0]["unit"] == "B"


def test_the_bytes_of_a_batch_are_those_of_the_training_program() -> None:
    """The row names them without having flax."""
    pytest.importorskip("flax")
    pytest.importorskip("optax")
    from benchmarks.programs import training as program

    (batch, *_) = program.make_batches()
    assert sum(array.nbytes for array in batch.values()) == training.BATCH_BYTES


def test_an_unknown_row_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """A typing mistake must not look like a run without results."""
    with pytest.raises(SystemExit) as ended:
        main(["--rows", "smal"])
    assert ended.value.code == 2
    assert "there is no row smal; choose from fresh, scalar, small" in capsys.readouterr().err


def test_a_quick_run_prints_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A part of the rows is printed, and written where it is asked for."""
    arguments = ["--quick", "--peers", "--rows", "fetch", "--output", str(tmp_path)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "| fetch-64MB | raw Unix socket | " in printed.out
    assert printed.err == "", "no progress where nobody watches"
    assert {file.suffix for file in tmp_path.iterdir()} == {".md", ".json", ".svg"}
