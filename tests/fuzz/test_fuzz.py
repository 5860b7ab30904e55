"""A short run of each target in every run of the tests; `make fuzz` is the long one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.fuzzing import FOUND, Finding, run, run_input
from tests.fuzz.mutating import mutations
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.ends import close
from tests.live_server import ROOT, source_environment

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
    run_input(name, TARGETS[name], path.read_bytes())


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
    run_input("odd", target, b"x")
    with pytest.raises(Finding, match="ZeroDivisionError"):
        run_input("odd", target, b"")
    count, found = run("odd", target, [b"x", b"", b""], 10.0)
    assert (count, len(found)) == (3, 1)


ALONE = """
import itertools, sys
from tests.fuzz.fuzzing import Finding, run_input
from tests.fuzz.mutating import mutations
from tests.fuzz.targets import ALONE
from tests.hostile.reverts import revert

revert(sys.argv[2:])
((name, target),) = ALONE.items()
for data in itertools.islice(mutations(target.seeds, 20261123), int(sys.argv[1])):
    try:
        run_input(name, target, data)
    except Finding as finding:
        print(finding.__cause__)
        break
else:
    print("nothing")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("most", "reverts"), [(150, []), (600, ["W"])], ids=["mended", "reverted"])
@pytest.mark.own_server
def test_what_a_hostile_server_draws_from_bytes_is_harmless(most: int, reverts: list[str]) -> None:
    """In a process of its own, for the oracle stays; with a mend taken away, it finds the hole."""
    command = [sys.executable, "-c", ALONE, str(most), *reverts]
    environment = source_environment(ROOT)
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert ("jaxd/events/output.py" in said) if reverts else said == "nothing\n"


def test_changes_are_the_same_each_time() -> None:
    """So that what was found can be found again."""
    one, two = (mutations([b"abc", b"\0" * 8], 7) for _ in range(2))
    first = [next(one) for _ in range(300)]
    assert first == [next(two) for _ in range(300)]
    assert len(set(first)) > 250
