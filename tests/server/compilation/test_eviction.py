from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxd_server.compilation.compiling.executable import Costs, Executable
from jaxd_server.compilation.eviction import (
    Entry,
    EvictionCosts,
    Limits,
    are_within,
    victims,
    weight,
)
from tests.server.builds import executable

NOW = 1000.0


def entry(name: str, age: float = 0.0, **fields: object) -> Entry:
    """One with a program of its own, that was used so many seconds ago."""
    plain = Entry(name, "uid:1", f"program of {name}", 1, 0, NOW - age, 0.1, is_idle=True)
    return replace(plain, **fields)  # type: ignore[arg-type]


def chosen(entries: list[Entry], **limits: object) -> list[str]:
    """The names of the victims, in their order."""
    found = victims(entries, replace(Limits(100), **limits), NOW)  # type: ignore[arg-type]
    return [str(one.name) for one in found]


def held_by(who: str, age: int, count: int) -> list[Entry]:
    """So many of one principal, each a second younger than the one before."""
    return [entry(f"{who} {i}", age - i, principal=who) for i in range(count)]


def sized(**bytes_of: int) -> list[Entry]:
    """A, b and c, of which a is the oldest, with so many bytes in the process."""
    return [
        entry(one, age, host_bytes=bytes_of.get(one, 0))
        for one, age in zip("abc", (3, 2, 1), strict=True)
    ]


BYTES = [entry("a", 3, host_bytes=4, device_bytes=1), entry("b", 2, host_bytes=4), entry("c", 1)]
SHARED = [entry(name, age, program="one", host_bytes=4) for name, age in (("a", 9), ("b", 1))]
BUSY = entry("busy", 9, is_idle=False)
CHOICES: dict[str, tuple[list[Entry], dict[str, object], list[str]]] = {
    "nothing within the limits, however old, nor where one is reached exactly": (
        [entry("a", 900, host_bytes=5, device_bytes=3), entry("b")],
        {"count": 2, "host_bytes": 6, "device_bytes": 3},
        [],
    ),
    "the oldest, as many as are too many": (
        [entry("c", 1), entry("a", 3), entry("b", 2), entry("d", 0)],
        {"count": 2},
        ["a", "b"],
    ),
    "by age alone where the costs are about the same": (
        [entry("a", 3, rebuild_s=0.9), entry("b", 2, rebuild_s=0.02), entry("c", 1)],
        {"count": 1},
        ["a", "b"],
    ),
    "what is cheap before what is dear": (
        [entry("dear", 99, rebuild_s=5.0), entry("cheap", 10)],
        {"count": 1},
        ["cheap"],
    ),
    "what is dear when it is ten times as old": (
        [entry("dear", 101, rebuild_s=5.0), entry("cheap", 10)],
        {"count": 1},
        ["dear"],
    ),
    "the next oldest in place of one in use": ([BUSY, entry("idle", 1)], {"count": 1}, ["idle"]),
    "nothing where all are in use": ([BUSY, replace(BUSY, name="too")], {"count": 1}, []),
    "by the bytes of the process": (BYTES, {"host_bytes": 8}, ["a"]),
    "by the bytes of the process, more": (BYTES, {"host_bytes": 4}, ["a", "b"]),
    "by the bytes of the device": (BYTES, {"device_bytes": 0}, ["a"]),
    "nothing that takes nothing of what is short": (
        [entry("old", 9), entry("large", 1, device_bytes=5), entry("new", 0, device_bytes=5)],
        {"device_bytes": 5},
        ["large"],
    ),
    "nothing where a program that three share has room": (
        [entry(name, 1, program="one", host_bytes=4) for name in "abc"],
        {"host_bytes": 4},
        [],
    ),
    "those who share a program together, as young as its last use": (
        [*SHARED, entry("c", 5, host_bytes=4)],
        {"host_bytes": 4},
        ["c"],
    ),
    "none of those who share a program that is in use": (
        [SHARED[0], replace(SHARED[1], is_idle=False), entry("c", 0, host_bytes=4)],
        {"host_bytes": 4},
        ["c"],
    ),
    "what is too large alone, and not all others for it": (
        [entry("small", 9), entry("huge", 1, host_bytes=50), entry("new", 0)],
        {"host_bytes": 10},
        ["huge"],
    ),
    "nothing for what is too large and in use": (
        [entry("small", 9), entry("huge", 1, host_bytes=50, is_idle=False), entry("new", 0)],
        {"host_bytes": 10},
        [],
    ),
    "for each limit what the one before has left": (
        sized(a=4, b=4, c=4),
        {"count": 2, "host_bytes": 8},
        ["a"],
    ),
    "of who holds more than a share, although another's are older": (
        held_by("mine", 10, 2) + held_by("other", 5, 4),
        {"count": 4},
        ["other 0", "other 1"],
    ),
    "no more of one than what is above the share": (
        held_by("old", 9, 3) + held_by("young", 3, 3),
        {"count": 4},
        ["old 0", "young 0"],
    ),
    "nothing of one who is alone, whatever the share": (
        held_by("one", 10, 4),
        {"count": 4, "share": 0.1},
        [],
    ),
    "the oldest of one who is alone": (
        held_by("one", 10, 4),
        {"count": 3, "share": 0.1},
        ["one 0"],
    ),
    "by age among those above a small share": (
        held_by("mine", 10, 2) + held_by("other", 5, 4),
        {"count": 4, "share": 0.2},
        ["mine 0", "mine 1"],
    ),
    "nothing below an equal part, whatever the share": (
        [one for who in "abc" for one in held_by(who, 20, 2)] + held_by("d", 5, 3),
        {"count": 8, "share": 0.9},
        ["d 0"],
    ),
    "of another one where the greedy are at work": (
        [*(replace(BUSY, name=f"busy {i}", principal="uid:1") for i in range(3)), entry("idle")],
        {"count": 3},
        ["idle"],
    ),
}


@pytest.mark.parametrize("what", CHOICES)
def test_what_goes(what: str) -> None:
    """In this order."""
    held, limits, gone = CHOICES[what]
    assert chosen(held, **limits) == gone


@pytest.mark.parametrize(
    ("rebuild_s", "expected"), [(0, 1), (0.02, 1), (1, 1), (1.01, 10), (10, 10), (11, 100)]
)
def test_the_weight_is_the_next_power_of_ten(rebuild_s: float, expected: float) -> None:
    """At least one, which is that of all that is made again within a second."""
    assert weight(rebuild_s) == expected


ENTRIES = st.lists(
    st.builds(
        lambda principal, program, age, cost, is_idle: entry(
            "",
            age,
            principal=principal,
            program=program,
            host_bytes=1 + program,
            device_bytes=program % 3,
            rebuild_s=cost,
            is_idle=is_idle,
        ),
        st.sampled_from("abc"),
        st.integers(0, 8),
        st.floats(0, 100),
        st.sampled_from([0.1, 5.0, 50.0]),
        st.booleans(),
    ),
    max_size=12,
).map(lambda found: [replace(one, name=number) for number, one in enumerate(found)])


@given(ENTRIES, st.integers(0, 6), st.integers(0, 20), st.integers(0, 5))
def test_what_stays_is_within_the_limits_or_in_use(
    entries: list[Entry], count: int, host_bytes: int, device_bytes: int
) -> None:
    """Whatever there is: no victim is in use or named twice, and only use keeps what is above."""
    gone = victims(entries, Limits(count, host_bytes, device_bytes), NOW)
    names = {one.name for one in gone}
    assert len(names) == len(gone)
    assert all(one.is_idle for one in gone)
    left = [one for one in entries if one.name not in names]
    used = {one.program for one in left if not one.is_idle}
    assert len(left) <= count or not any(one.is_idle for one in left)
    for limit, size in (
        (host_bytes, {one.program: one.host_bytes for one in left}),
        (device_bytes, {one.program: one.device_bytes for one in left}),
    ):
        idle = sum(size[program] for program in size if program not in used)
        in_use = sum(size[program] for program in used)
        assert idle == 0 or idle + in_use <= limit or any(size[one] > limit for one in used)


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
