"""Which tests run which lines, in the process of the tests and in servers that it starts.

Before each statement that a mutant is in, a copy of the source calls `mutant_reach.hit`. A process
of the tests knows its test; a server does not, so there the time is noted, and which worker of
xdist it belongs to: the test is the one that this worker ran then. Servers that several tests
share give a test more lines than it runs; never less.
"""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.mutants.drawing import Mutant

FOLDER_VARIABLE: Final = "MUTANT_REACH"
_MODULE: Final = """
import os, time
_folder, _last, _file = os.environ.get("MUTANT_REACH"), {}, [0, None]

def hit(number):
    if _folder is None:
        return
    now = time.monotonic()
    if now - _last.get(number, 0) < 0.01:
        return
    _last[number] = now
    if _file[0] != os.getpid():
        name = os.environ.get("PYTEST_XDIST_WORKER", "gw0") + "." + str(os.getpid())
        _file[:] = os.getpid(), os.open(os.path.join(_folder, name), 0o2101, 0o600)
    os.write(_file[1], b"%d %r\\n" % (number, now))
"""
_PLUGIN: Final = """
import json, mutant_reach, os, pytest, time

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    mutant_reach._last.clear()
    begun = time.monotonic()
    try:
        return (yield)
    finally:
        name = os.environ.get("PYTEST_XDIST_WORKER", "gw0") + ".tests"
        with open(os.path.join(os.environ["MUTANT_REACH"], name), "a") as file:
            file.write(json.dumps([item.nodeid, begun, time.monotonic()]) + "\\n")
"""


def prepare(root: Path, mutants: Sequence[Mutant]) -> None:
    """Changes the source of a clone so that the lines of these mutants are noted."""
    (root / "shared" / "mutant_reach.py").write_text(_MODULE)
    (root / "shared" / "mutant_tests.py").write_text(_PLUGIN)
    for name in sorted({mutant.file for mutant in mutants}):
        lines = (root / name).read_text().split("\n")
        here = [(m.line, number) for number, m in enumerate(mutants) if m.file == name]
        for line, number in sorted(((_before(lines, at), n) for at, n in here), reverse=True):
            indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
            lines.insert(line - 1, f"{indent}__import__('mutant_reach').hit({number})")
        (root / name).write_text("\n".join(lines))


def _before(lines: Sequence[str], line: int) -> int:
    """The line before which a statement may stand: that of its `if`, where it is an `elif`."""
    word = lines[line - 1].lstrip()
    if not word.startswith("elif "):
        return line
    indent = " " * (len(lines[line - 1]) - len(word))
    return next(n for n in range(line - 1, 0, -1) if lines[n - 1].startswith(f"{indent}if "))


def tests_by_mutant(folder: Path) -> dict[int, list[tuple[str, float]]]:
    """The tests that ran each line, and how long each took in seconds, those with few lines first.

    Args:
        folder: what `MUTANT_REACH` named while the tests ran.
    """
    lines: dict[str, set[int]] = defaultdict(set)
    seconds: dict[str, float] = {}
    for tests in folder.glob("*.tests"):
        rows = sorted(map(json.loads, tests.read_text().splitlines()), key=lambda row: row[1])
        starts = [row[1] for row in rows]
        seconds |= {name: ended - begun for name, begun, ended in rows}
        for hits in folder.glob(f"{tests.stem}.[0-9]*"):
            for number, now in map(str.split, hits.read_text().splitlines()):
                name = _at(rows, starts, float(now))
                if name is not None:
                    lines[name].add(int(number))
    found: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for test in sorted(lines, key=lambda test: (len(lines[test]), seconds[test], test)):
        for line in lines[test]:
            found[line].append((test, seconds[test]))
    return dict(found)


def _at(rows: Sequence[Any], starts: Sequence[float], now: float) -> str | None:
    """The test that ran then."""
    index = bisect.bisect_right(starts, now) - 1
    return rows[index][0] if index >= 0 and now <= rows[index][2] else None
