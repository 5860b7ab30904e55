"""Keys of functions in a real notebook's kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels import Kernel, kernel
from tests.live_server import source_environment

CELL = """
import collections
RATE = 2
TAGS = {"a", "b", "c", "d"}
class Model:
    def __init__(self, width): self.width = width
    def run(self, x): return x * self.width
def helper(x): return x * RATE + ("a" in TAGS)
def step(x):
    model = Model(3)
    return helper(model.run(x))
"""
OTHER = CELL.replace("x * RATE", "x / RATE")
COMMENTED = "# a comment\n\n" + CELL.replace("    model =", "    # why\n    model =")
UNRELATED = "unrelated = 1\ndef more(x): return unrelated"
DIGEST_PROGRAM = """
from jaxd_protocol.fingerprint import walk
print([walk(f, f.__name__).fingerprint.digest.hex() for f in (step, helper, Model)])
"""


def _session_digests(notebook: Kernel) -> Iterator[tuple[str, str]]:
    for name, cell in (
        ("first", CELL),
        ("run again", CELL),
        ("with comments", COMMENTED),
        ("beside other cells", UNRELATED),
        ("another helper", OTHER),
        ("the helper restored", CELL),
    ):
        notebook.print(cell)
        yield name, notebook.print(DIGEST_PROGRAM)
    notebook.restart()
    notebook.print("x = 1")
    notebook.print(CELL)
    yield "after a restart", notebook.print(DIGEST_PROGRAM)


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, str]]:
    """What the digests are as a session goes on."""

    def environment(folder: Path) -> dict[str, str]:
        return source_environment(folder)

    with kernel(environment) as notebook:
        yield dict(_session_digests(notebook))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "moment",
    ["run again", "with comments", "beside other cells", "the helper restored", "after a restart"],
)
def test_the_key_stays_in_a_notebook(moment: str, seen: dict[str, str]) -> None:
    """A cell has another file name each time that it is edited, and in each kernel."""
    assert seen[moment] == seen["first"]


def test_a_redefined_helper_is_seen(seen: dict[str, str]) -> None:
    """The cell that calls it need not be run again."""
    (before, after) = (eval(seen[moment]) for moment in ("first", "another helper"))
    assert [one != other for one, other in zip(before, after, strict=True)] == [True, True, False]
