"""Small projects of a user, each written as one text, and edits of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from zlib import crc32

import pytest

from tests.identity.probing import Job, ProbeResult, probe

UNRELATED_FUNCTION = "\n\ndef bystander(x):\n    return x - 1\n"
INSTALLED = "site-packages"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a project and what has to follow from it.

    Attributes:
        says: what is changed, in words.
        before, after: the files; each begins with a line `--- name`, without one it is `main.py`.
        changed, kept: names whose digest has to differ, or to be the same.
    """

    says: str
    before: str
    after: str
    changed: tuple[str, ...]
    kept: tuple[str, ...]


def edit(says: str, source: str, old: str, new: str, changed: str = "step", kept: str = "") -> Edit:
    """Replaces a text wherever it stands; the names are separated by spaces."""
    assert old in source, f"{says}: nothing to replace"
    after = source.replace(old, new)
    return Edit(says, source, after, tuple(changed.split()), (*kept.split(), "bystander"))


def needs(library: str) -> None:
    """Skips the test where a library is not installed, without importing it here."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def files_of(text: str) -> dict[str, str]:
    """The files that a text describes."""
    files: dict[str, list[str]] = {}
    name = "main.py"
    for line in dedent(text).strip("\n").splitlines():
        if line.startswith("--- "):
            name = line.removeprefix("--- ").strip()
            files.setdefault(name, [])
        else:
            files.setdefault(name, []).append(line)
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def write(folder: Path, text: str) -> Path:
    """Writes the files below a folder, which is made.

    What is installed has a time that goes by its content: it counts by time and size.
    """
    for name, content in files_of(text).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + (UNRELATED_FUNCTION if name == "main.py" else ""))
        if name.startswith(INSTALLED):
            os.utime(file, (time_s := 1_700_000_000 + crc32(content.encode()) % 1_000_000, time_s))
    return folder


def probe_edits(
    folder: Path, rows: Sequence[Edit], *preload: str
) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """What is found before and after each edit, by what the edit says.

    Rows that begin with the same project share one look at it.
    """
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        for text in (row.before, row.after):
            names.setdefault(text, {}).update(dict.fromkeys(row.changed + row.kept))
    jobs = []
    for number, (text, wanted) in enumerate(names.items()):
        place = write(folder / str(number), text)
        jobs.append(Job(str(place), tuple(wanted), path=[str(place / INSTALLED)]))
    found = probe(jobs, preload=("jaxd_protocol.fingerprint", "numpy", *preload))
    seen = dict(zip(names, found, strict=True))
    return {row.says: (seen[row.before], seen[row.after]) for row in rows}


def check(row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]) -> None:
    """Asserts that exactly what has to change has changed."""
    before, after = seen[row.says]
    wrong = []
    for name in row.changed + row.kept:
        same = before.digest(name) == after.digest(name)
        if same is (name in row.changed):
            wrong.append(f"{name} should {'have changed' if same else 'be as before'}")
    assert not wrong, "; ".join(wrong)
