"""A function that was packed and unpacked without its project means what it meant before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.identity import (
    test_classes,
    test_conveniences,
    test_functions,
    test_installed,
    test_libraries,
    test_modules,
    test_reads,
    test_reflection,
    test_registrations,
    test_structure,
    test_values,
)
from tests.identity.gallery import GALLERY, NAMES
from tests.identity.probing import Job
from tests.identity.projects import INSTALLED, Edit, write
from tests.live_server import ROOT, source_environment

pytestmark = pytest.mark.soak

ROUND_TRIP_PROGRAM = Path(__file__).with_name("traveller.py")
PRELOADED = ("jaxd_protocol.fingerprint", "numpy")


def _whole(says: str, text: str, names: Sequence[str]) -> Edit:
    return Edit(says, text, text, (), tuple(names))


GROUPS: dict[str, Sequence[Edit]] = {
    "values": test_values.ROWS,
    "functions": test_functions.ROWS,
    "classes": test_classes.ROWS,
    "modules": test_modules.ROWS,
    "reads": test_reads.ROWS,
    "installed": test_installed.ROWS,
    "registrations": test_registrations.ROWS,
    "reflection": test_reflection.ROWS,
    "gallery": [_whole("the gallery", GALLERY, NAMES)],
    "structure": [
        _whole("shapes", test_structure.SHAPES, test_structure.NAMES),
        _whole("opaque", test_structure.WITHOUT, test_structure.OPAQUE),
    ],
    "conveniences": [*test_conveniences.PLAIN, *test_conveniences.ROWS],
    "libraries": [*test_libraries.PLAIN, *test_libraries.ROWS],
}
EXCEPTIONS = {
    "refused there: toolbox.Settings.rate": ("toolbox.Settings.rate = 3", ["by_setting"]),
    "refused there: toolbox.defaults.rate": ("s.rate = 3", ["by_object"]),
    # numpy fills in the mask and the fill value of a masked array where it is unpickled.
    "differs: ": ("VALUE = np.ma.array(", test_values.WAYS.split()),
}
"""Where the law does not hold: what becomes of which functions of the projects with such a text."""


def _expected(text: str, name: str) -> str:
    found = (how for how, (mark, names) in EXCEPTIONS.items() if mark in text and name in names)
    return next(found, "")


def _jobs(folder: Path, rows: Sequence[Edit]) -> dict[str, Job]:
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        for text in (row.before, row.after):
            names.setdefault(text, {}).update(dict.fromkeys(row.changed + row.kept))
    places = [write(folder / "there" / str(n), text) for n, text in enumerate(names)]
    return {
        text: Job(str(place), tuple(wanted), path=[str(place / INSTALLED)])
        for place, (text, wanted) in zip(places, names.items(), strict=True)
    }


def _run(what: str, folder: Path, jobs: Iterable[Job], preload: Sequence[str]) -> str:
    order = {"preload": list(preload), "jobs": [asdict(job) for job in jobs]}
    environment = source_environment(folder)
    environment["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-W",
            "ignore",
            str(ROUND_TRIP_PROGRAM),
            what,
            str(folder / "luggage"),
        ],
        input=json.dumps(order),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _round_trip(
    folder: Path, rows: Sequence[Edit], preload: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Text, function and outcome."""
    jobs = _jobs(folder, rows)
    _run("pack", folder, jobs.values(), preload)
    (folder / "there").rename(folder / "gone")
    for job in jobs.values():  # what is installed is installed on the server, too
        installed = folder / "gone" / Path(job.folder).name / INSTALLED
        if installed.is_dir():
            Path(job.folder).mkdir(parents=True)
            installed.rename(job.path[0])
    received = json.loads(_run("receive", folder, jobs.values(), PRELOADED))
    for text, found in zip(jobs, received, strict=True):
        for name, outcome in found.items():
            yield text, name, outcome


@pytest.mark.parametrize("group", GROUPS)
def test_a_function_that_has_travelled_means_the_same(group: str, tmp_path: Path) -> None:
    """For each that can travel; the server has received all the others, and imported nothing."""
    rows = GROUPS[group]
    more = {"libraries": test_libraries.PRELOAD, "conveniences": test_conveniences.PRELOAD}
    preload = (*PRELOADED, *more.get(group, ()))
    edits = {row.after: row.says for row in rows}
    wrong, right = [], 0
    for text, name, outcome in _round_trip(tmp_path, rows, preload):
        expected = _expected(text, name)
        if outcome and not (expected and outcome.startswith(expected)):
            wrong.append(f"{name} of {edits.get(text, 'the project as it is')}: {outcome}")
        right += not outcome
    assert not wrong, "\n".join(wrong)
    assert right > len(rows)
