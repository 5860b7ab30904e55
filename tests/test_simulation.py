"""The simulation of pools: small ones, of which all that happens can be said."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the benchmarks are not installed

from benchmarks.simulation.__main__ import main
from benchmarks.simulation.clock import Clock
from benchmarks.simulation.parameters import ASSUMED, Parameters
from benchmarks.simulation.routing import ConsistentHashing, Rendezvous, View, order_of
from benchmarks.simulation.run import JAXD, VARIANTS, Outcome, Simulation, Variant
from benchmarks.simulation.work import Work

from jaxd_protocol.network.pool_routing import ranked

SMALL = replace(Parameters(), functions_of_a_member=20, member_calls=150, programs=40)
NAMES = [f"member-{number}" for number in range(6)]


def simulated(
    variant: Variant = JAXD, parameters: Parameters = SMALL, members: int = 6, seed: int = 1
) -> Outcome:
    """What came out of a pool of six."""
    return Simulation(members, variant, parameters, seed).run()


def test_events_come_in_the_order_of_their_times() -> None:
    """Those of the same moment in the order in which they were asked for."""
    clock, seen = Clock(), []
    for delay, what in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        clock.after(delay, lambda what=what: seen.append((clock.now, what)))
    clock.every(1.5, lambda: seen.append((clock.now, "tick")), 0.5)
    clock.run(lambda: clock.now >= 2.0)
    assert seen == [(0.5, "tick"), (1.0, "a"), (1.0, "b"), (2.0, "c")]


def test_a_seed_gives_the_same_again() -> None:
    """And another seed something else."""
    assert asdict(simulated()) == asdict(simulated())
    assert simulated(seed=2).p99 != simulated().p99


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_call_is_answered_also_when_members_die(variant: Variant) -> None:
    """Those that a dead member had are sent again."""
    outcome = simulated(variant, replace(SMALL, deaths=0.5, notice_s=0.5, back_s=1.0))
    assert outcome.calls == 6 * 150
    assert outcome.repeated > 0


def test_what_is_shared_is_compiled_once_for_each_key() -> None:
    """Programs of an edited function are new; without sharing each member makes its own."""
    edited = replace(SMALL, edits_an_hour=600.0)
    together = simulated(VARIANTS[4], edited)
    apart = simulated(VARIANTS[5], edited)
    assert together.edits > 0
    assert 0 < together.compiles <= together.edits
    assert apart.compiles > 2 * together.compiles


def test_hashing_keeps_functions_where_they_are() -> None:
    """All of them are warm on their own members, and do not fit into the memory of each one."""
    still = replace(SMALL, edits_an_hour=0.0, deaths=0.0, programs=60)
    hashed, in_turn = simulated(VARIANTS[2], still), simulated(VARIANTS[4], still)
    assert hashed.warm == 1.0
    assert in_turn.warm < 0.9


def test_the_simulation_routes_as_the_product_does() -> None:
    """The first of the order that has not reached its limit; and none that is lost."""
    view = View(NAMES, 1, SMALL)
    router = Rendezvous(view, SMALL, Random(1))
    order = ranked(b"key", NAMES)
    assert list(order_of(b"key", NAMES)) == order
    assert router.choose(0, b"key") == router.homes(b"key")[0] == order[0]
    view.tell({order[0]: 3, order[1]: 0})
    assert router.choose(0, b"key") == order[1]
    view.lost(order[1])
    assert router.choose(0, b"key") == order[2]
    view.tell({}, {b"key".hex(): 4})
    assert router.homes(b"key") == order[:4]
    assert {router.choose(0, b"key") for _ in range(100)} == set(order[2:4])


def test_long_orders_are_whole() -> None:
    """Also beyond those of the first places, which alone are kept at first."""
    names = [f"member-{number}" for number in range(50)]
    order = order_of(b"key", names)
    assert [order[0], order[49]] == [ranked(b"key", names)[place] for place in (0, 49)]
    assert list(order) == list(order) == ranked(b"key", names)


def test_a_lost_member_is_passed_over_on_the_ring() -> None:
    """And nobody else's keys move."""
    view = View(NAMES, 1, SMALL)
    router = ConsistentHashing(view, SMALL, None)  # type: ignore[arg-type]
    keys = [number.to_bytes(8, "big") for number in range(300)]
    before = {key: router.choose(0, key) for key in keys}
    assert len(Counter(before.values())) == 6
    view.lost(NAMES[0])
    after = {key: router.choose(0, key) for key in keys}
    assert all(before[key] in (after[key], NAMES[0]) for key in keys)
    assert NAMES[0] not in after.values()


def test_work_is_as_much_as_was_asked_for() -> None:
    """The popular ones are called most, and the pool is busy for the share that was given."""
    work = Work(6, SMALL, seed=1)
    assert work.rate * float(work.shares @ work.run_s) == pytest.approx(0.5 * 6)
    times = [at for at, _, _ in work.arrivals()]
    assert len(times) == work.calls
    assert times == sorted(times)
    counts = Counter(work.drawn(5000))
    assert counts.most_common(1)[0][0] == 0
    assert counts[0] == pytest.approx(5000 * work.shares[0], rel=0.2)


def test_every_figure_has_a_source() -> None:
    """Or is said to be assumed; and those of others stand in documents that are there."""
    root = Path(__file__).resolve().parent.parent
    for what, figure, source in Parameters().rows():
        assert what
        assert figure
        for word in source.replace(":", " ").replace(";", " ").split():
            if word.startswith("docs/"):
                assert (root / word).exists()
    assert any(source != ASSUMED for _, _, source in Parameters().rows())


def test_the_command_prints_its_seeds_and_writes_page_chart_and_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a small size that only shows that everything runs."""
    assert main(["--quick", "--seeds", "7", "--output", str(tmp_path)]) == 0
    assert "Seeds: 7;" in capsys.readouterr().out
    page = (tmp_path / "scale.md").read_text()
    assert all(f"| {variant.name} |" in page for variant in VARIANTS)
    data = json.loads((tmp_path / "scale.json").read_text())
    assert {outcome["members"] for outcome in data["sizes"]} == {2, 6}
    assert {"stale", "bound", "refusing"} == data["studies"].keys()
    assert ET.fromstring((tmp_path / "scale.svg").read_text()).tag.endswith("svg")


def test_a_run_adds_to_a_page_that_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One size or way to route may take hours; all else of the page stays."""
    words = ["--quick", "--seeds", "7", "--studies", "--output", str(tmp_path), "--variants"]
    assert main([*words, "jaxd", "--members", "2", "3"]) == 0
    before = json.loads((tmp_path / "scale.json").read_text())["sizes"]
    assert main([*words, "round robin", "jaxd", "--members", "3", "--add"]) == 0
    after = json.loads((tmp_path / "scale.json").read_text())["sizes"]
    assert [(each["members"], each["variant"]) for each in after] == [
        (2, "jaxd"),
        (3, "jaxd"),
        (3, "round robin"),
    ]
    assert after[:2] == before
    assert "| round robin |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--quick", "--add"])
    assert "--output" in capsys.readouterr().err
