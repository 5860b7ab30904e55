from __future__ import annotations

import pytest

from jaxd_server.compilation.compiling.executable import Costs, Executable
from jaxd_server.compilation.eviction import EvictionCosts, Limits, are_within
from tests.server.builds import executable

MIB = 1 << 20


def made(seconds: float = 0.0, host_bytes: int = 0, device_bytes: int = 0) -> Executable:
    """One that was traced and compiled here."""
    one = executable()
    one.costs, one.structure = Costs(0.0, seconds, seconds), "from here"
    one.program.host_bytes, one.program.device_bytes = host_bytes, device_bytes
    return one


def eviction_costs(*sizes: int, is_kept: bool = False) -> EvictionCosts:
    """Of a process that had and has these sizes."""
    left = iter(sizes)
    return EvictionCosts(lambda _: is_kept, lambda: next(left))


@pytest.mark.parametrize(
    ("before", "now", "each"), [(MIB, 9 * MIB, 4 * MIB), (MIB, 5 * MIB, 2 * MIB), (0, 0, 4 * MIB)]
)
def test_programs_together_take_no_more_than_the_process_has_grown(
    before: int, now: int, each: int
) -> None:
    """Each its part of it; where that is unknown, what was measured."""
    ones = [made(host_bytes=4 * MIB), made(host_bytes=4 * MIB)]
    entries = eviction_costs(before, now).entries(list(enumerate(ones)), lambda one: one is ones[1])
    assert [entry.host_bytes for entry in entries] == [each, each]
    assert [entry.is_idle for entry in entries] == [True, False]


def test_what_it_would_cost_to_have_one_again() -> None:
    """To build it, or less where it is on disk; what came from there costs that again."""
    small, large, known, loaded = (made(seconds) for seconds in (0.5, 10.0, 10.0, 10.0))
    known.program.load_s = 0.7
    loaded.costs, loaded.structure = Costs(1.0, 30.0, 0.2), None
    items = list(enumerate([small, large, known, loaded]))
    for is_kept, expected in ((False, [0.5, 10.0, 10.0, 0.2]), (True, [0.5, 3.0, 0.7, 0.2])):
        entries = eviction_costs(1, 1, is_kept=is_kept).entries(items, lambda _: False)
        assert [entry.rebuild_s for entry in entries] == pytest.approx(expected)


def test_what_several_share_counts_once() -> None:
    """And something, although nothing was seen of it."""
    one, twin = made(host_bytes=MIB, device_bytes=5), made()
    twin.program = one.program
    assert are_within(Limits(2, host_bytes=MIB, device_bytes=5), [one, twin])
    assert not are_within(Limits(1), [one, twin])
    assert not are_within(Limits(2, host_bytes=MIB - 1), [one, twin])
    assert not are_within(Limits(2, device_bytes=4), [one, twin])
    assert not are_within(Limits(2, host_bytes=1), [made()])
