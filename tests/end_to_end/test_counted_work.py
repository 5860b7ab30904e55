"""What a warm call takes, counted and not timed: a rise of any figure is a failure that names it.

The table holds what was counted when it was last written. Work that pays for itself may raise a
figure: then the new one belongs into the table (`pytest -s` prints all of them), with the reason in
the message of the change. What became less belongs there as well, else it may come back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests import chosen_platform
from tests.end_to_end.counted_work import Figures, count_work
from tests.live_server import ROOT
from tests.preloaded import has_compiler

pytestmark = pytest.mark.timeout(400)

MOST_TIMES: Final = 7

MOST_FILES: Final = 32
"""That a small call runs through, client and worker together."""

KINDS: Final = {
    "small": "a small call",
    "step": "a training step with its state of 10 arrays on the server",
    "leaves": "a call with 100 arrays, there and back",
    "submit": "one of several that are submitted",
    "map": "one of several that are mapped",
}

COUNTED: Final[dict[str, tuple[float, ...]]] = {
    "messages to the server": (1, 1, 1, 1, 1),
    "messages from the server": (1, 1, 1, 1, 1),
    "bytes to the server": (397, 3676, 4522, 397, 397),
    "bytes from the server": (85, 55, 4426, 85, 85),
    "functions of jaxd in the client": (121, 321, 447, 145, 131),
    "functions of jaxd in the worker": (91, 205, 93, 86, 86),
    "functions of libraries in the client": (11, 44, 11, 70, 24),
    "functions of libraries in the worker": (30, 43, 30, 30, 30),
    "allocations of the client": (176, 660, 1312, 305, 203),
    "blocks kept of the client": (0, 80, 0, 45, 0),
    "blocks kept of the worker": (0, 0, 0, 0, 0),
    "changes of thread in the client": (0, 0, 0, 0.25, 0.25),
    "changes of thread in the worker": (0, 0, 0, 0, 0),
}
"""By figure, of one call or item of each kind, in their order.

Messages are requests and replies, without those of several calls together, such as of values that
are not used any more. Functions are calls of Python functions; what is inlined by a later Python
makes fewer. Blocks are kept until garbage is collected, which is not done while they are counted.
"""

ALLOCATIONS_OF_THE_WORKER: Final = {
    (3, 11): (361, 774, 5573, 343, 338),
    (3, 12): (649, 1240, 6806, 622, 621),
}
"""The same; most are of jax, which is another version for each Python, and of XLA for CPUs."""

MARGINS: Final = {
    "messages": (0.0, 0.2),
    "bytes": (0.01, 2.0),
    "functions of jaxd": (0.015, 1.5),
    "functions of libraries": (0.08, 2.0),
    "allocations": (0.03, 5.0),
    "blocks kept": (0.03, 1.5),
    "changes of thread": (0.0, 1.2),
}
"""By the first words of a figure, how much more may be counted: a share of it, and so many."""


class Counted:
    """What is counted now, of all kinds by one client; the least of several times.

    On a busy machine a server may run all calls of a kind in another thread, because it found them
    to be long. A rise that is none is not there when they are counted again.
    """

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._times = 0
        self.figures: Figures = {}
        self.files: set[str] = set()

    def again(self) -> bool:
        """Counts, and returns whether it did: not more often than it makes sense."""
        if self._times == MOST_TIMES:
            return False
        self._times += 1
        folders = self._folders.mktemp("counted"), self._folders.mktemp("server")
        found, files = count_work(*folders)
        self.files = self.files & files if self.figures else files
        for kind, figures in found.items():
            least = self.figures.setdefault(kind, {})
            least |= {name: min(least.get(name, now), now) for name, now in figures.items()}
        return True

    def risen(self, kind: str) -> list[str]:
        """Each figure of a kind that is too high, in words."""
        return [
            f"{name}: {before:g} before, {now:.5g} now, {limit:.5g} at most"
            for name, before, now, limit in _compared(kind, self.figures[kind])
            if now > limit
        ]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Counted once; the figures are printed (`pytest -s`)."""
    made = Counted(tmp_path_factory)
    made.again()
    print()
    for name in sorted({name for figures in made.figures.values() for name in figures}):
        print(f"{name:40}", *(f"{made.figures[kind].get(name, 0):9.2f}" for kind in KINDS))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_takes_no_more_than_it_did(kind: str, counted: Counted) -> None:
    """At either end, and on the way."""
    while (risen := counted.risen(kind)) and counted.again():
        pass
    assert not risen, f"{KINDS[kind]} takes more than it did:\n" + "\n".join(risen)
    compared = _compared(kind, counted.figures[kind])
    gone = [name for name, before, now, _ in compared if before >= 1 and now < before / 2]
    assert not gone, f"these are not counted any more, or the table is to be written anew: {gone}"


def test_a_warm_call_passes_few_files(counted: Counted) -> None:
    """Client and server together."""
    while len(counted.files) > MOST_FILES and counted.again():
        pass
    assert len(counted.files) <= MOST_FILES, sorted(counted.files)


def test_architecture_shows_the_files_of_a_warm_call(counted: Counted) -> None:
    """The list in ARCHITECTURE.md is the list."""
    page = (ROOT / "ARCHITECTURE.md").read_text().partition("## The way of one call\n")[2]
    block = page.partition("\n## ")[0].rpartition("```text\n")[2]
    shown = re.findall(r"(?:client|server|shared)/[\w/]+\.py", block)
    while not counted.files <= set(shown) and counted.again():
        pass
    assert sorted(shown) == sorted(counted.files)


def _compared(kind: str, now: dict[str, float]) -> Iterator[tuple[str, float, float, float]]:
    """Each figure that can be counted here: what it was, what it is, and what it may be."""
    place, table = list(KINDS).index(kind), dict(COUNTED)
    if chosen_platform.is_cpu() and sys.version_info[:2] in ALLOCATIONS_OF_THE_WORKER:
        figures = ALLOCATIONS_OF_THE_WORKER[sys.version_info[:2]]
        table["allocations of the worker"] = figures
    for name, counted_before in table.items():
        if name.startswith(("allocations", "blocks")) and not has_compiler():
            continue
        share, more = next(m for words, m in MARGINS.items() if name.startswith(words))
        before = counted_before[place]
        yield name, before, now.get(name, 0.0), before * (1 + share) + more
