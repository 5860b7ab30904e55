"""The program that clients of the soak run."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.soak.project import LIVE, SLOTS, Version, load, original, write

X = np.arange(4, dtype=np.float32)


def outcome(version: Version) -> bytes:
    """What the functions return that need no jax."""
    module = load(version)
    found = [module.step(X), module.inside(X), module.large(X)]
    return b"".join(np.asarray(one, np.float32).tobytes() for one in found)


@pytest.mark.parametrize("slot", SLOTS)
def test_each_edit_but_a_comment_changes_the_answer(slot: str) -> None:
    """Else a stale program would not be noticed."""
    version = original(1)
    numbers = list(version.numbers)
    numbers[SLOTS.index(slot)] += 0.5
    after = Version(tuple(numbers))
    assert (outcome(after) != outcome(version)) == (slot != "comment")
    assert after.texts() != version.texts()


@pytest.mark.parametrize("slot", LIVE)
def test_each_change_of_what_runs_does_too(slot: str) -> None:
    """Without an edit of a file."""
    version = original(1)
    after = version._replace(done=(LIVE[slot].format(3.5),))
    assert outcome(after) != outcome(version)
    assert after.texts() == version.texts()


def test_versions_live_side_by_side() -> None:
    """Each has helpers of its own, also those that it imports when it is called."""
    one, other = original(1), original(1).edited(random.Random(3))
    modules = [load(one), load(other)]
    assert [m.inside(X).tolist() for m in modules] == [
        load(v).inside(X).tolist() for v in (one, other)
    ]
    assert modules[0].helper is not modules[1].helper


def test_what_is_written_is_what_is_loaded(tmp_path: Path) -> None:
    """Python finds the same texts."""
    version = original(2)
    write(version, tmp_path)
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert files == version.texts()
