"""The page of the simulation: its tables, its chart, and what follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.chart import Panel, curves_as_svg
from benchmarks.report import format_bytes, format_seconds, table
from benchmarks.simulation.findings import AFTER, LIMITS, SUMMARY
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.run import Outcome
from benchmarks.simulation.studies import STUDIES, Study

PAGE: Final = "scale"


def _count(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else format_seconds(seconds)


def _percent(figure: float) -> str:
    return f"{100 * figure:.3g} %"


_COLUMNS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "warm": ("warm calls", _percent),
    "loads": ("loaded, of 1,000 calls", _count),
    "compiles": ("compiled, of 1,000 calls", _count),
    "p50": ("p50", _time),
    "p99": ("p99", _time),
    "p999": ("p99.9", _time),
    "busiest": ("busiest member / mean", _count),
    "deepest": ("most calls open at one", _count),
}
_OF_DIRECTOR: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "reports": ("reports heard in a second", _count),
    "messages": ("messages sent in a second", _count),
    "view": ("a whole view", format_bytes),
    "news": ("news sent in a second", format_bytes),
}


def sizes_as_markdown(outcomes: Sequence[Outcome]) -> str:
    """What came out of each way to route, by the size of the pool."""
    head = ("members", "routing", *(title for title, _ in _COLUMNS.values()))
    rows = [
        (f"{members:,}", variant, *_cells(found, _COLUMNS))
        for (members, variant), found in _grouped(outcomes).items()
    ]
    return table(head, rows)


def director_as_markdown(outcomes: Sequence[Outcome]) -> str:
    """What the director hears and says, where calls are routed as the product does."""
    rows = [
        (f"{members:,}", *_cells(found, _OF_DIRECTOR))
        for (members, variant), found in _grouped(outcomes).items()
        if variant == outcomes[0].variant
    ]
    return table(("members", *(title for title, _ in _OF_DIRECTOR.values())), rows)


def study_as_markdown(study: Study, outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """A table of what a study has varied."""
    head = (study.varied, "members", *(title for title, _ in _COLUMNS.values()))
    rows = [
        (setting, f"{members:,}", *_cells(found, _COLUMNS))
        for setting, results in outcomes.items()
        for (members, _), found in _grouped(results).items()
    ]
    return table(head, rows)


def _grouped(outcomes: Sequence[Outcome]) -> dict[tuple[int, str], list[Outcome]]:
    """Those of several seeds together."""
    found: dict[tuple[int, str], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.members, outcome.variant), []).append(outcome)
    return found


def _cells(
    outcomes: Sequence[Outcome], columns: Mapping[str, tuple[str, Callable[[float], str]]]
) -> list[str]:
    """The median of the seeds, and their range where there are several."""
    cells = []
    for name, (_, show) in columns.items():
        figures = [getattr(outcome, name) for outcome in outcomes]
        texts = show(min(figures)), show(max(figures))
        spread = f" ({texts[0]} to {texts[1]})" if texts[0] != texts[1] else ""
        cells.append(f"{show(statistics.median(figures))}{spread}")
    return cells


def parameters_as_markdown(parameters: Parameters) -> str:
    """What was assumed, and where each figure comes from."""
    return table(("what", "figure", "source"), list(parameters.rows()))


_PANELS: Final[Sequence[tuple[str, Callable[[Outcome], float], Callable[[float], str]]]] = (
    ("Calls that wait for a program, of 1,000", lambda one: 1000 * (1 - one.warm), _count),
    ("Programs compiled, of 1,000 calls", lambda one: one.compiles, _count),
    ("p99 of a call", lambda one: one.p99, _time),
    ("Work of the busiest member / mean", lambda one: one.busiest, _count),
)


def chart(outcomes: Sequence[Outcome], stale: Mapping[str, Sequence[Outcome]]) -> str:
    """Figures over the members of the pool, what the director sends, and what old loads do."""
    panels = [
        Panel(title, _lines(outcomes, figure), _size, show) for title, figure, show in _PANELS
    ]
    ours = [one for one in outcomes if one.variant == outcomes[0].variant]
    of_director = {
        "news in a second": _over_members(ours, lambda one: one.news),
        "a whole view": _over_members(ours, lambda one: one.view),
    }
    panels.append(Panel("What the director sends", of_director, _size, format_bytes))
    if stale:
        panels.append(_stale_panel(stale))
    return curves_as_svg(panels, "Pools of many members, simulated")


def _stale_panel(stale: Mapping[str, Sequence[Outcome]]) -> Panel:
    """p99 over the age of the loads that clients have, for each size of pool."""
    lines: dict[str, dict[int, float]] = {}
    for setting, outcomes in stale.items():
        for (members, _), found in _grouped(outcomes).items():
            age = round(1000 * float(setting.removesuffix(" s")))
            median = statistics.median(one.p99 for one in found)
            lines.setdefault(f"{members:,} members", {})[age] = median
    return Panel("p99 by how often loads are told", lines, lambda age: f"{age} ms", _time)


def _lines(
    outcomes: Sequence[Outcome], figure: Callable[[Outcome], float]
) -> dict[str, dict[int, float]]:
    variants = dict.fromkeys(outcome.variant for outcome in outcomes)
    return {
        variant: _over_members([one for one in outcomes if one.variant == variant], figure)
        for variant in variants
    }


def _over_members(
    outcomes: Sequence[Outcome], figure: Callable[[Outcome], float]
) -> dict[int, float]:
    groups = _grouped(outcomes).items()
    return {members: statistics.median(map(figure, found)) for (members, _), found in groups}


def _size(members: int) -> str:
    return f"{members:,}"


def as_data(
    outcomes: Sequence[Outcome], studies: Mapping[str, Mapping[str, Sequence[Outcome]]]
) -> dict[str, Any]:
    """All outcomes as plain data, one for each seed."""
    return {
        "sizes": [asdict(one) for one in outcomes],
        "studies": {
            name: {setting: [asdict(one) for one in found] for setting, found in study.items()}
            for name, study in studies.items()
        },
    }


_PREAMBLE: Final = """\
# Pools of many members, simulated

Written from runs of `python -m benchmarks.simulation`, the large sizes by themselves. Nobody here
has a thousand machines, so these pools are simulated, as discrete events: clients call functions,
members run one program at a time, keep programs in memory, compile what nobody has, die and come
back, and a director tells clients what it knows of them. What decides is the product's own code:
the order of the members for a key and the choice among them (`jaxd_protocol.network.pool_routing`),
and the messages of the director (`messages.pool_view`), whose bytes are counted. Durations were
measured elsewhere, one by one, or are said to be assumed: [all of them](#what-was-assumed).
Seeds: {seeds}; with several,
figures are medians of them, with the range in brackets; a row without a range is of one seed.

![Each figure over the members of the pool](scale.svg)
"""


def page(
    outcomes: Sequence[Outcome],
    studies: Mapping[str, Mapping[str, Sequence[Outcome]]],
    parameters: Parameters,
    seeds: Sequence[int],
) -> str:
    """All of it as Markdown."""
    parts = [_PREAMBLE.format(seeds=", ".join(map(str, seeds)))]
    parts += [SUMMARY, "## Sizes\n", sizes_as_markdown(outcomes), AFTER["sizes"]]
    parts += ["## The director\n", director_as_markdown(outcomes), AFTER["director"]]
    for study in STUDIES:
        if study.name in studies:
            table_of_it = study_as_markdown(study, studies[study.name])
            parts += [f"## {study.title}\n", table_of_it, AFTER[study.name]]
    parts += ["## What was assumed\n", parameters_as_markdown(parameters), LIMITS]
    return "\n".join(parts)
