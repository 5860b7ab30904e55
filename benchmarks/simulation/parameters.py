"""All that the simulation assumes: what was measured, with its source, and what was not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

from jaxd_protocol.messages.pool_view import LOAD_EVERY_S
from jaxd_protocol.network.pool_routing import BOUND, SPREAD

ASSUMED: Final = "assumed"


def _given(default: Any, what: str, source: str = ASSUMED) -> Any:
    return field(default=default, metadata={"what": what, "source": source})


@dataclass(frozen=True, slots=True)
class Parameters:
    """One pool and its work; each field says what it is, and where its figure comes from."""

    busy: float = _given(0.5, "share of the members' time that calls take")
    functions_of_a_member: int = _given(100, "functions for each member")
    clients_of_a_member: int = _given(2, "client processes for each member")
    zipf: float = _given(1.0, "popularity: the function of rank r is called in proportion to r^-x")
    run_median_s: float = _given(
        0.0087, "a run, median of all functions", "docs/gpu.md: a step of a GPT on an H100"
    )
    run_sigma: float = _given(
        1.5, "spread of runs: 5 % are shorter than 0.7 ms, 5 % longer than 0.1 s (lognormal)"
    )
    call_s: float = _given(
        92.7e-6, "all else of a warm call", "docs/benchmarks.md: small call, jaxd"
    )
    compile_median_s: float = _given(
        0.495,
        "tracing and compiling, median: so that 10 % take less than 67 ms and 5 % more than 6.45 s",
        "docs/report.md: 30 programs in 2.0 s; docs/benchmarks.md: plain jax, cold, less its "
        "imports",
    )
    compile_sigma: float = _given(
        1.561, "spread of that: 1 % take longer than 19 s (lognormal)", "the same two figures"
    )
    load_least_s: float = _given(
        0.007, "loading a small program", "docs/curves.md: functions, the worker's own clock"
    )
    load_of_s: float = _given(0.067, "what such a program took to compile", "docs/report.md")
    load_power: float = _given(
        0.77,
        "how loading grows with compiling: a second for one that took 41 s",
        "docs/warming.md: a large program takes a second to read",
    )
    edits_an_hour: float = _given(1.0, "how often a function is edited, which changes its key")
    programs: int = _given(
        400, "programs that a member keeps in memory", "docs/configuration.md: --max-executables"
    )
    builders: int = _given(
        2, "programs that a member compiles at a time", "docs/configuration.md: --builds"
    )
    deaths: float = _given(0.01, "share of the members that die during a run, one at least")
    notice_s: float = _given(
        2.2,
        "from the death of a node to the moment when all know of it",
        "measured with Ray 2.60, its health checks every 0.5 s, three of them",
    )
    lease_s: float = _given(
        10.0, "until a dead member's lease of a build is another's", "docs/store.md"
    )
    back_s: float = _given(
        9.8,
        "from its death to a new member: noticed, a node added (2 s), a server ready (5.6 s)",
        "measured with Ray 2.60; docs/reliability.md: fifty functions after a kill, no standby",
    )
    heartbeat_s: float = _given(
        LOAD_EVERY_S,
        "how often a member looks whether its load is to be reported",
        "pool_view.LOAD_EVERY_S",
    )
    reports_a_second: float = _given(
        2000.0, "reports that the director takes in a second", "jaxd_server/pool/__main__.py"
    )
    view_s: float = _given(
        LOAD_EVERY_S, "how often the director tells clients, at most", "pool_view.LOAD_EVERY_S"
    )
    news_a_second: float = _given(
        50e6, "bytes of news to all clients in a second, at most", "jaxd_server/pool/director.py"
    )
    bound: float = _given(BOUND, "bound of the load", "pool_routing.BOUND")
    spread: float = _given(
        SPREAD, "members for each open call of a function that has several", "pool_routing.SPREAD"
    )
    least: int = _given(1, "open calls that are within every limit", "pool_routing.choose")
    run_calls: int = _given(100_000, "calls of a run")
    run_s: float = _given(10.0, "seconds of a run, at least, with more calls where it needs them")
    member_calls: int = _given(7500, "calls of a run for each member, at most")

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """What, figure and source of each, for a table."""
        for one in fields(self):
            yield one.metadata["what"], f"{getattr(self, one.name):g}", one.metadata["source"]
