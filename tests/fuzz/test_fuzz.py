"""A short run of each target in every run of the tests; `make fuzz` is the long one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.fuzzing import FOUND, Finding, run, tried
from tests.fuzz.mutating import mutations
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.ends import close

pytestmark = pytest.mark.fuzz


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Other tests have this process after these."""
    yield
    close()


SHORT_S = 0.1
SEED = 20240611


@pytest.mark.parametrize("name", TARGETS)
def test_what_nobody_would_send_is_refused(name: str) -> None:
    """In words of ours, soon, and without harm."""
    target = TARGETS[name]
    count, found = run(name, target, mutations(target.seeds, SEED), SHORT_S)
    assert count > len(target.seeds)
    assert found == []


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: path.name)
def test_what_was_found_once_is_refused_now(path: Path) -> None:
    """Whatever something has stumbled over stays here."""
    name = path.parent.name.replace("-", " ")
    tried(name, TARGETS[name], path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_good_is_taken(name: str) -> None:
    """The first example of each target is: else the fuzzing would begin nowhere."""
    target = TARGETS[name]
    if name in ("greeting of a client", "greeting of a server", "tls"):
        return  # a proof cannot be written down beforehand
    target.run(target.seeds[0])


def test_a_finding_is_one() -> None:
    """An error that is not the target's own, or one that takes too long."""
    target = Target(lambda data: 1 // len(data), [b"x"])
    tried("odd", target, b"x")
    with pytest.raises(Finding, match="ZeroDivisionError"):
        tried("odd", target, b"")
    count, found = run("odd", target, [b"x", b"", b""], 10.0)
    assert (count, len(found)) == (3, 1)


def test_changes_are_the_same_each_time() -> None:
    """So that what was found can be found again."""
    one, two = (mutations([b"abc", b"\0" * 8], 7) for _ in range(2))
    first = [next(one) for _ in range(300)]
    assert first == [next(two) for _ in range(300)]
    assert len(set(first)) > 250
