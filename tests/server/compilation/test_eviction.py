from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxd_server.compilation.eviction import Entry, Limits, victims, weight

NOW = 1000.0


def entry(name: str, age: float = 0.0, **fields: object) -> Entry:
    """One with a program of its own, that was used so many seconds ago."""
    plain = Entry(name, "uid:1", f"program of {name}", 1, 0, NOW - age, 0.1, is_idle=True)
    return replace(plain, **fields)  # type: ignore[arg-type]


def chosen(entries: list[Entry], **limits: object) -> list[str]:
    """The names of the victims, in their order."""
    found = victims(entries, replace(Limits(100), **limits), NOW)  # type: ignore[arg-type]
    return [str(one.name) for one in found]


def test_nothing_goes_within_the_limits() -> None:
    """However old it is, and also when a limit is reached exactly."""
    held = [entry("a", 900, host_bytes=5, device_bytes=3), entry("b")]
    assert chosen(held, count=2, host_bytes=6, device_bytes=3) == []


def test_the_oldest_go_first() -> None:
    """As many as are too many."""
    held = [entry("c", 1), entry("a", 3), entry("b", 2), entry("d", 0)]
    assert chosen(held, count=2) == ["a", "b"]


def test_what_costs_about_the_same_goes_strictly_by_age() -> None:
    """Whether it took 20 ms or 900: one noisy build does not change the order."""
    held = [entry("a", 3, rebuild_s=0.9), entry("b", 2, rebuild_s=0.02), entry("c", 1)]
    assert chosen(held, count=1) == ["a", "b"]


@pytest.mark.parametrize(
    ("rebuild_s", "expected"), [(0, 1), (0.02, 1), (1, 1), (1.01, 10), (10, 10), (11, 100)]
)
def test_the_weight_is_the_next_power_of_ten(rebuild_s: float, expected: float) -> None:
    """At least one, which is that of all that is made again within a second."""
    assert weight(rebuild_s) == expected


def test_what_is_expensive_is_kept_ten_times_as_long() -> None:
    """But not for ever."""
    cheap = entry("cheap", 10)
    assert chosen([entry("dear", 99, rebuild_s=5.0), cheap], count=1) == ["cheap"]
    assert chosen([entry("dear", 101, rebuild_s=5.0), cheap], count=1) == ["dear"]


def test_what_is_in_use_stays() -> None:
    """The next oldest goes in its place, or nothing."""
    busy = entry("busy", 9, is_idle=False)
    assert chosen([busy, entry("idle", 1)], count=1) == ["idle"]
    assert chosen([busy, replace(busy, name="busy too")], count=1) == []


def test_bytes_are_a_limit_of_their_own() -> None:
    """In the process and on the device."""
    held = [entry("a", 3, host_bytes=4, device_bytes=1), entry("b", 2, host_bytes=4), entry("c", 1)]
    assert chosen(held, host_bytes=8) == ["a"]
    assert chosen(held, host_bytes=4) == ["a", "b"]
    assert chosen(held, device_bytes=0) == ["a"]


def test_what_takes_nothing_of_what_is_short_stays() -> None:
    """Dropping the older ones would not help."""
    held = [entry("old", 9), entry("large", 1, device_bytes=5), entry("new", 0, device_bytes=5)]
    assert chosen(held, device_bytes=5) == ["large"]


def test_a_shared_program_counts_once() -> None:
    """Three functions with one program of four bytes take four."""
    held = [entry(name, 1, program="one", host_bytes=4) for name in "abc"]
    assert chosen(held, host_bytes=4) == []


def test_those_who_share_a_program_go_together() -> None:
    """Its bytes are not free before: it is as young as its last use, and stays with any of them."""
    shared = [
        entry("a", 9, program="one", host_bytes=4),
        entry("b", 1, program="one", host_bytes=4),
    ]
    alone = entry("c", 5, host_bytes=4)
    assert chosen([*shared, alone], host_bytes=4) == ["c"]
    busy = replace(shared[1], is_idle=False)
    assert chosen([shared[0], busy, entry("c", 0, host_bytes=4)], host_bytes=4) == ["c"]


def test_what_is_too_large_alone_goes_first() -> None:
    """The others would all have to go for it, and still it would not fit."""
    held = [entry("small", 9), entry("huge", 1, host_bytes=50), entry("new", 0)]
    assert chosen(held, host_bytes=10) == ["huge"]
    held[1] = replace(held[1], is_idle=False)
    assert chosen(held, host_bytes=10) == []


def test_each_limit_looks_at_what_the_one_before_has_left() -> None:
    """What went for the number is not counted again."""
    held = [entry("a", 3, host_bytes=4), entry("b", 2, host_bytes=4), entry("c", 1, host_bytes=4)]
    assert chosen(held, count=2, host_bytes=8) == ["a"]


def test_who_holds_more_than_a_share_is_asked_first() -> None:
    """Although what another one has is older."""
    mine = [entry(f"mine {i}", 10 - i, principal="uid:1") for i in range(2)]
    other = [entry(f"other {i}", 5 - i, principal="uid:2") for i in range(4)]
    assert chosen(mine + other, count=5) == ["other 0"]
    assert chosen(mine + other, count=4) == ["other 0", "other 1"]


def test_nobody_is_asked_for_more_than_what_is_above_the_share() -> None:
    """Then it is the turn of the next one who has too much, however young that is."""
    old = [entry(f"old {i}", 9 - i, principal="uid:1") for i in range(3)]
    young = [entry(f"young {i}", 3 - i, principal="uid:2") for i in range(3)]
    assert chosen(old + young, count=4) == ["old 0", "young 0"]


def test_one_principal_alone_may_use_everything() -> None:
    """A share is only for those who have to share."""
    held = [entry(f"{i}", 10 - i) for i in range(4)]
    assert chosen(held, count=4, share=0.1) == []
    assert chosen(held, count=3, share=0.1) == ["0"]


def test_a_small_share_protects_less() -> None:
    """With a fifth, whoever has more than that competes by age."""
    mine = [entry(f"mine {i}", 10 - i, principal="uid:1") for i in range(2)]
    other = [entry(f"other {i}", 5 - i, principal="uid:2") for i in range(4)]
    assert chosen(mine + other, count=4, share=0.2) == ["mine 0", "mine 1"]
    assert chosen(mine + other, count=4, share=0.5) == ["other 0", "other 1"]


def test_a_share_is_never_more_than_an_equal_part() -> None:
    """Among four, each is sure of a quarter, whatever the option says."""
    held = [entry(f"{who} {i}", 20 - i, principal=who) for who in "abc" for i in range(2)]
    held += [entry(f"d {i}", 5 - i, principal="d") for i in range(3)]
    assert chosen(held, count=8, share=0.9) == ["d 0"]


def test_when_the_greedy_ones_are_at_work_another_one_goes() -> None:
    """There has to be room all the same."""
    held = [entry(f"busy {i}", principal="uid:1", is_idle=False) for i in range(3)]
    assert chosen([*held, entry("idle", principal="uid:2")], count=3) == ["idle"]


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
