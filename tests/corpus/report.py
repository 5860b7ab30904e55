"""Writes docs/compatibility.md from the results that are kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.corpus.comparing import verification_of_all
from tests.corpus.places import Corpus
from tests.live_server import ROOT

PAGE: Final = ROOT / "docs" / "compatibility.md"

_HEAD: Final = """# Other people's programs and test suites

`make corpus` takes published programs and test suites, changes no line of them, and lets
`jax.jit` be `persistent_call` by an import hook. Each program runs three times in plain jax
(without jax's cache on disk, with an empty one, with a warm one) and twice on a server of its own
that has never seen it, each time in a fresh process; then under two hash seeds with
[`JAXD_VERIFY=1`](verify.md). Compared are the results of each function's
calls: of the first eight, then of each power of two.

`python -m tests.corpus --report` writes this page. The versions beside those of `constraints.txt`
are in `tests/corpus/programs.py` and `tests/corpus/suites.py`.
"""

_PROGRAMS_HEAD: Final = """
## Programs

*Functions* and *calls*: those that were served, of all that were called from outside of jax.
*Results*: whether the first and the second process got what plain jax gets: all bits; where plain
jax itself gives other bits each time, "as unsteady as plain jax". *Traced*: by the server for the
first process, for the second, and for one with another hash seed. *Verified*: programs that are
those that the client's own jax makes / others / not comparable, under both seeds. *CPU*: seconds
of all processes, the server's own start not among them: in plain jax / with its warm disk cache /
first process and server / second process and server.

| project | version | program | functions | calls | results | traced | verified | CPU |
|---|---|---|---|---|---|---|---|---|
"""

_SUITES_HEAD: Final = """
## Test suites

Tests that pass in plain jax, and how many of these pass with the hook.

| project | version | tests | pass in plain jax | pass under jaxd | calls | CPU plain / jaxd |
|---|---|---|---|---|---|---|
"""

_RESULTS: Final = {
    "same": "the same bits",
    "close": "close",
    "unsteady": "as unsteady as plain jax",
    "differs": "**differ**",
    "missing": "**missing**",
    "none": "none kept",
}


def write(corpus: Corpus) -> None:
    """Writes the page; a row that has not been run is not on it."""
    kept = [json.loads(file.read_text()) for file in sorted(corpus.results.glob("*.json"))]
    PAGE.write_text(page(kept))


def page(kept: Iterable[Mapping[str, Any]]) -> str:
    """The page for these results.

    Args:
        kept: what is kept of each program and suite.
    """
    rows = [row for row in kept if row.get("summary")]
    programs = [row for row in rows if row["kind"] == "program"]
    suites = [row for row in rows if row["kind"] == "suite"]
    served = [row for row in programs if "functions" in row["summary"]]
    return "".join(
        (
            _HEAD,
            _totals(served, suites),
            _PROGRAMS_HEAD,
            *(_program(row) for row in served),
            _left_over(programs),
            _SUITES_HEAD if suites else "",
            *(_suite(row) for row in suites if "tests" in row["summary"]),
            _failed_tests(suites),
        )
    )


def _totals(programs: list[Mapping[str, Any]], suites: list[Mapping[str, Any]]) -> str:
    found = [row["summary"] for row in programs]
    verdicts = Counter(each["verdict"] for each in found)
    calls = {kind: sum(each["calls"][kind] for each in found) for kind in ("served", "local")}
    functions = sum(each["functions"] for each in found)
    functions_served = sum(each["functions_served"] for each in found)
    tests = [row["summary"] for row in suites if "tests" in row["summary"]]
    text = (
        f"\n{len(found)} programs of {len({row['project'] for row in programs})} projects: "
        f"{sum(each['completes'] for each in found)} complete, {verdicts['served']} without any "
        f"fallback, {verdicts['differs']} with other results. {functions_served} of {functions} "
        f"functions and {calls['served']} of {sum(calls.values())} calls were served.\n"
    )
    together = verification_of_all(found)
    counts = [together[name] for name in ("verified", "mismatches", "not_comparable")]
    if any(counts):
        text += "\nOf {} programs: {} verified, {} mismatches, {} not comparable.\n".format(
            sum(counts), *counts
        )
    if tests:
        passed, there = (sum(each[kind] for each in tests) for kind in ("pass", "reached"))
        text += f"\n{passed} of {there} tests that pass in plain jax pass under jaxd.\n"
    return text


def _program(row: Mapping[str, Any]) -> str:
    found = row["summary"]
    results = [_RESULTS[found["results"][kind]["worst"]] for kind in ("cold", "warm")]
    cpu = found["cpu_s"]
    return (
        f"| {row['project']} | {row['version']} | {row['title']} "
        f"| {found['functions_served']}/{found['functions']} "
        f"| {found['calls']['served']}/{sum(found['calls'].values())} "
        f"| {' / '.join(dict.fromkeys(results)) if found['completes'] else '**fails**'} "
        f"| {found['traces']['cold']} / {found['traces']['warm']}{_reseeded(found)} "
        f"| {_verified(found.get('verification'))} "
        f"| {cpu['plain']} / {cpu['plain_warm']} / {cpu['cold']} / {cpu['warm']} |\n"
    )


def _reseeded(found: Mapping[str, Any]) -> str:
    traces = found.get("traces_reseeded")
    return "" if traces is None else f" / {traces}"


def _verified(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "not tried"
    return f"{found['verified']} / {found['mismatches']} / {found['not_comparable']}"


def _left_over(programs: list[Mapping[str, Any]]) -> str:
    """Why something was not served, and what could not be tried."""
    text = "\n## What was not served, and why\n\n"
    for row in programs:
        found = row["summary"]
        reasons = [*found.get("local_reasons", ()), *found.get("not_served", ())]
        reasons += [found["error"]] if found.get("error") and "functions" in found else []
        where = [r["where"] for r in found.get("results", {}).values() if r["worst"] == "differs"]
        reasons += [f"other results: {each}" for each in where]
        text += "".join(f"- {row['project']}, {row['title']}: {_line(r)}\n" for r in reasons)
    text += "\n## What could not be tried\n\n"
    for row in programs:
        if "functions" not in row["summary"]:
            found = row["summary"]
            said = f"{found['verdict']}: {_line(found['error'])}"
            text += f"- {row['project']}, {row['title']}: {said}\n"
    notes = {(row["project"], row["note"]) for row in programs if row["note"]}
    text += "\n## How programs were made short\n\n"
    return text + "".join(f"- {project}: {note}\n" for project, note in sorted(notes))


def _suite(row: Mapping[str, Any]) -> str:
    found = row["summary"]
    calls, cpu = found["calls"], found["cpu_s"]
    return (
        f"| {row['project']} | {row['version']} | {row['title']} ({found['tests']}) "
        f"| {found['reached']} | {found['pass']} | {calls['served']}/{sum(calls.values())} "
        f"| {cpu['plain']} / {cpu['served']} |\n"
    )


def _failed_tests(suites: list[Mapping[str, Any]]) -> str:
    text = ""
    for row in suites:
        for test, said in row["summary"].get("failed", {}).items():
            name = test.rpartition("/")[2]
            text += f"- {row['project']}, `{name}`: {_line(said)}\n"
    return f"\n## Tests that fail under jaxd\n\n{text}" if text else ""


def _line(text: str) -> str:
    """One line, with nothing of the machine in it, that Markdown leaves as it is."""
    import re

    first = " ".join(text.split())[:220]
    first = re.sub(r"(/[\w.@+-]+)+/", "…/", first)
    first = re.sub(r"0x[0-9a-f]+", "0x…", first)
    return first.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
