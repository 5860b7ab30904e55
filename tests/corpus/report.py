"""Writes docs/compatibility.md from the results that are kept."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from tests.corpus.comparing import verification_of_all
from tests.corpus.places import Corpus
from tests.live_server import ROOT

PAGE: Final = ROOT / "docs" / "compatibility.md"

Row = Mapping[str, Any]

_HEAD: Final = """# Other people's programs and test suites

`make corpus` takes published programs and test suites and changes no line of them. Each program
runs three times by `python` (without jax's cache on disk, with an empty one, with a warm one) and
twice by [`jaxd run`](run.md), on a server of its own that has never seen it. A part of each suite
runs in the same ways by `pytest` and by [`pytest --jaxd`](pytest.md). Compared are exit status and
printed lines, and what becomes of each test; `--verify` compares the [compiled programs](verify.md)
as well.

`python -m tests.corpus --report` writes this page. The versions beside those of `constraints.txt`
are in `tests/corpus/programs.py` and `tests/corpus/suites.py`.
"""

_PROGRAMS_HEAD: Final = """
## Programs

*Calls*: those of jitted functions, and how many of them fell back to plain `jax.jit`. *Lines*:
printed ones that are the same in two runs by `python`, and how many of these are missing in the
first and the second run by `jaxd run`. *Traced*: by the server for the first run and for the
second. *CPU*: seconds of all processes, the server's own start not among them: by `python` / with
its warm disk cache / first run / second run.

| project | version | program | calls | fell back | lines | traced | CPU |
|---|---|---|---|---|---|---|---|
"""

_SUITES_HEAD: Final = """
## Test suites

Tests that were drawn, those that pass in plain jax, and how often one of these does not with
`--jaxd`. *Seconds* by the clock, and of all processes: plain / with its warm disk cache / first run
/ second run.

| project | version | tests | processes | pass | lost | calls | seconds | CPU |
|---|---|---|---|---|---|---|---|---|
"""


def write(corpus: Corpus) -> None:
    """Writes the page; a row that has not been run is not on it."""
    kept = [json.loads(file.read_text()) for file in sorted(corpus.results.glob("*.json"))]
    PAGE.write_text(page(kept))


def page(kept: Iterable[Row]) -> str:
    """The page for these results.

    Args:
        kept: what is kept of each program and suite.
    """
    rows = [row for row in kept if row.get("summary")]
    programs = [row for row in rows if row["kind"] == "run"]
    parts = [row for row in rows if row["kind"] == "part" and "lost" in row["summary"]]
    verified = [row["summary"] for row in rows if row["kind"] == "verified"]
    ran = [row for row in programs if "said" in row["summary"]]
    return "".join(
        (
            _HEAD,
            _totals(ran),
            _verified(verified),
            _PROGRAMS_HEAD,
            *(_program(row) for row in ran),
            _SUITES_HEAD if parts else "",
            *(_part(row) for row in parts),
            _left_over(programs, parts),
        )
    )


def _totals(rows: Sequence[Row]) -> str:
    found = [row["summary"] for row in rows]
    verdicts = Counter(each["verdict"] for each in found)
    whole = [each["cpu_s"] for each in found if each["completes"]]
    text = (
        f"\n{len(found)} programs of {len({row['project'] for row in rows})} projects: "
        f"{sum(each['completes'] for each in found)} complete by `jaxd run`, "
        f"{verdicts['served']} of them with the same lines and without any fallback.\n"
    )
    if whole:
        first = median(each["cold"] / each["plain"] for each in whole)
        second = median(each["warm"] / each["plain_warm"] for each in whole)
        text += (
            f"In the median the first run takes {first:.2f} of the CPU of a run by `python`, and "
            f"the second {second:.2f} of one with a warm disk cache.\n"
        )
    return text


def _verified(found: Sequence[Mapping[str, Any]]) -> str:
    together = verification_of_all(found)
    counts = [together[name] for name in ("verified", "mismatches", "not_comparable")]
    if not any(counts):
        return ""
    return "\nOf {} compiled programs: {} verified, {} mismatches, {} not comparable.\n".format(
        sum(counts), *counts
    )


def _program(row: Row) -> str:
    found = row["summary"]
    said = found["said"]["warm"][0] or found["said"]["cold"][0]
    output = found["output"]
    lines = f"{output['cold']['lines']}: {output['cold']['missing']} / {output['warm']['missing']}"
    cpu = [found["cpu_s"][kind] for kind in ("plain", "plain_warm", "cold", "warm")]
    return (
        f"| {row['project']} | {row['version']} | {row['title']} | {_counted(said, 'calls')} "
        f"| {_counted(said, 'fell back')} "
        f"| {lines if found['completes'] else '**fails**'} "
        f"| {found['traces']['cold']} / {found['traces']['warm']} | {_listed(cpu)} |\n"
    )


def _part(row: Row) -> str:
    found = row["summary"]
    seconds, cpu = (
        [found[kind][mode] for mode in ("plain", "warm", "first", "second")]
        for kind in ("wall_s", "cpu_s")
    )
    said = " ".join(found["said"]["second"])
    return (
        f"| {row['project']} | {row['version']} | {row['title']} ({found['tests']}) "
        f"| {max(found['workers'], 1)} | {found['pass_in_plain_jax']} | {len(found['lost'])} "
        f"| {_counted(said, 'calls')} | {_listed(seconds)} | {_listed(cpu)} |\n"
    )


def _counted(said: str, what: str) -> str:
    """The number before a word in the line of `jaxd run`."""
    found = re.search(rf"([\d,]+) {what}", said)
    return found[1] if found else "0"


def _listed(numbers: Iterable[float]) -> str:
    return " / ".join(map(str, numbers))


def _left_over(programs: Sequence[Row], parts: Sequence[Row]) -> str:
    """Why something was not served or failed, and what could not be tried."""
    text = "\n## What was not served, and why\n\n"
    for row in programs:
        found = row["summary"]
        reasons = [line for line in found.get("said", {}).get("warm", ())[1:] if " x " in line]
        reasons += [found["error"]] if found.get("error") and "said" in found else []
        lost = [each["example"] for each in found.get("output", {}).values() if each["missing"]]
        reasons += [f"another line than: {each}" for each in lost]
        text += "".join(f"- {row['project']}, {row['title']}: {_line(r)}\n" for r in reasons)
    for row in parts:
        lost = row["summary"]["lost"]
        text += "".join(
            f"- {row['project']}, `{name.rpartition('/')[2]}`: {_line(how)}\n"
            for name, how in lost.items()
        )
    untried = [row for row in programs if "said" not in row["summary"]]
    text += "\n## What could not be tried\n\n" if untried else ""
    for row in untried:
        found = row["summary"]
        said = f"{found['verdict']}: {_line(found['error'])}"
        text += f"- {row['project']}, {row['title']}: {said}\n"
    notes = {(row["project"], row["note"]) for row in programs if row["note"]}
    text += "\n## How programs were made short\n\n"
    return text + "".join(f"- {project}: {note}\n" for project, note in sorted(notes))


def _line(text: str) -> str:
    """One line, with nothing of the machine in it, that Markdown leaves as it is."""
    first = " ".join(text.split())[:220]
    first = re.sub(r"(/[\w.@+-]+)+/", "…/", first)
    first = re.sub(r"0x[0-9a-f]+", "0x…", first)
    return first.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
