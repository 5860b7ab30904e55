"""Properties of the choice of a member: what moves, how even the load is, and how fast it is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from math import ceil, sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxd_protocol.network.pool_routing import (
    BOUND,
    SPREAD,
    Busy,
    FunctionLoads,
    Spreads,
    added_up,
    choose,
    draw,
    ranked,
)

_KEYS = [number.to_bytes(32, "big") for number in range(2000)]

_NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=12, unique=True)
_DEVICES = st.integers(1, 20)


def _first(names: list[str], devices: dict[str, int] | None = None) -> dict[bytes, str]:
    """The member that each key has in the first place."""
    return {key: ranked(key, names, devices)[0] for key in _KEYS}


@given(_NAMES)
@settings(max_examples=8, deadline=None)
def test_a_member_that_goes_takes_only_its_own_keys_along(names: list[str]) -> None:
    """At most its share and 5 % of all; the other way round, so does one that comes."""
    before, gone = _first(names), names[0]
    after = _first(names[1:])
    moved = [key for key in _KEYS if before[key] != after[key]]
    assert all(before[key] == gone for key in moved)
    assert len(moved) <= len(_KEYS) * (1 / len(names) + 0.05)


@given(_NAMES, st.data())
@settings(max_examples=15, deadline=None)
def test_the_others_keep_their_order_when_a_member_goes(
    names: list[str], data: st.DataObject
) -> None:
    """So a view without it, and one that merely skips it, route alike."""
    gone = data.draw(st.sampled_from(names))
    devices = data.draw(st.dictionaries(st.sampled_from(names), _DEVICES))
    for key in _KEYS[:20]:
        left = [name for name in ranked(key, names, devices) if name != gone]
        assert ranked(key, [name for name in names if name != gone], devices) == left


@given(_NAMES, st.randoms())
@settings(max_examples=15, deadline=None)
def test_the_order_of_the_names_does_not_matter(names: list[str], random: Random) -> None:
    """Views of a pool list its members in whatever order."""
    mixed = list(names)
    random.shuffle(mixed)
    assert all(ranked(key, names) == ranked(key, mixed) for key in _KEYS[:20])


@given(_NAMES)
@settings(max_examples=8, deadline=None)
def test_keys_are_spread_evenly(names: list[str]) -> None:
    """Within six standard deviations of chance."""
    counts = Counter(_first(names).values())
    share = 1 / len(names)
    spread = sqrt(len(_KEYS) * share * (1 - share))
    assert all(abs(counts[name] - len(_KEYS) * share) <= 6 * spread for name in names)


@given(st.lists(_DEVICES, min_size=2, max_size=8))
@settings(max_examples=8, deadline=None)
def test_a_member_gets_keys_for_each_of_its_devices(sizes: list[int]) -> None:
    """Also with more devices than one digest has numbers for."""
    devices = {f"member-{place}": size for place, size in enumerate(sizes)}
    counts = Counter(_first(list(devices), devices).values())
    for name, size in devices.items():
        share = size / sum(sizes)
        spread = sqrt(len(_KEYS) * share * (1 - share))
        assert abs(counts[name] - len(_KEYS) * share) <= 6 * spread


@given(_NAMES, _DEVICES, st.integers(1, 20))
@settings(max_examples=8, deadline=None)
def test_a_member_that_grows_only_gains_keys(names: list[str], size: int, more: int) -> None:
    """Nobody else's keys move among the others."""
    grown = names[0]
    before, after = _first(names, {grown: size}), _first(names, {grown: size + more})
    assert all(after[key] in (before[key], grown) for key in _KEYS)


def test_keys_and_names_do_not_run_into_each_other() -> None:
    """The same bytes, parted elsewhere, are another draw."""
    numbers = [str(number) for number in range(10, 40)]
    names = [f"1{number}" for number in numbers]
    assert [name[1:] for name in ranked(b"k", names)] != ranked(b"k1", numbers)


_ORDER = [f"member-{number}" for number in (1, 2, 3, 4, 0, 5)]


@pytest.mark.parametrize("seed", ["0", "1"])
def test_every_process_has_the_same_order(seed: str) -> None:
    """Whatever Python's own hashes are seeded with."""
    program = (
        "from jaxd_protocol.network.pool_routing import ranked; "
        "print(*ranked(b'key', [f'member-{n}' for n in range(6)], {'member-2': 9}))"
    )
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == _ORDER


@given(_NAMES, st.data())
@settings(max_examples=100, deadline=None)
def test_no_member_exceeds_its_share_by_more_than_the_bound(
    names: list[str], data: st.DataObject
) -> None:
    """One function that all call at once: it spreads, and nowhere too many calls wait."""
    devices = {name: data.draw(_DEVICES) for name in names}
    bound = data.draw(st.sampled_from([1.0, 1.25, 2.0]))
    calls = data.draw(st.integers(1, 300))
    order, loads = ranked(b"hot", names, devices), dict.fromkeys(names, 0)
    for _ in range(calls):
        loads[choose(order, loads, bound, devices=devices)] += 1
    share = bound * calls / sum(devices.values())
    for name, load in loads.items():
        assert load <= max(devices[name], ceil(share * devices[name]))
    assert sum(loads.values()) == calls


@given(_NAMES, st.dictionaries(st.integers(0, 11), st.integers(0, 50)))
@settings(max_examples=100, deadline=None)
def test_the_first_of_the_order_below_its_limit_is_chosen(
    names: list[str], busy: dict[int, int]
) -> None:
    """As the rule says, and the same whether the caller knows the sums or not."""
    order = ranked(b"key", names)
    loads = {order[place]: load for place, load in busy.items() if place < len(order)}
    total = sum(loads.values())
    limit = ceil(BOUND * (total + 1) / len(order))
    expected = next(name for name in order if loads.get(name, 0) < limit)
    assert choose(order, loads) == expected
    assert choose(order, loads, total_load=total, total_devices=len(order)) == expected
    assert choose(order, loads, devices=dict.fromkeys(names, 1)) == expected


def test_a_pool_with_little_to_do_keeps_a_function_where_it_is() -> None:
    """A second call beside the first is no reason to compile elsewhere, if the caller says so."""
    order = ranked(b"key", [f"member-{number}" for number in range(8)])
    loads = {order[0]: 1}
    assert choose(order, loads) == order[1]
    assert choose(order, loads, least=2) == order[0]
    assert choose(order, {order[0]: 2}, least=2) == order[1]


def test_a_total_that_lags_behind_leaves_the_least_loaded() -> None:
    """All are above what it allows; for its devices, and not by its number of calls."""
    loads = {"a": 9, "b": 8, "c": 20}
    assert choose(["a", "b", "c"], loads, total_load=0) == "b"
    assert choose(["a", "b", "c"], loads, total_load=0, devices={"c": 4}) == "c"


@given(_NAMES, st.integers(2, 14), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_a_key_that_is_spread_is_on_its_first_members_by_chance(
    names: list[str], spread: int, seed: int
) -> None:
    """And on no other below their limits; clients that see the same loads choose different ones."""
    order, chance = ranked(b"hot", names), Random(seed).random
    draws = [draw(order, spread, chance) for _ in range(400)]
    found = Counter(choose(order, {}, drawn=each) for each in draws)
    assert found.keys() == set(order[:spread])
    assert max(found.values()) < 400 / min(spread, len(names)) + 100


def test_of_the_members_of_a_spread_key_the_less_loaded_one_is_chosen() -> None:
    """By its devices, of two by chance; where both have reached their limits, as of any key."""
    order, ab = ["a", "b", "c", "d"], ("a", "b")

    def chosen(**loads: int) -> str:
        return choose(order, loads, 1.25, drawn=ab, devices={"a": 2})

    assert chosen(a=3, b=2, c=2, d=2) == "a"
    assert chosen(a=9, b=1, c=2, d=2) == "b"
    assert chosen(a=40, b=20, c=1, d=1) == "c"
    assert draw(order, 1) == ()
    assert draw(order, 2, iter([0.0, 0.5]).__next__) == ab


def busy(calls: float, seconds: float = 0.01) -> Busy:
    """Calls of a function, short ones."""
    return Busy(calls, seconds)


def test_a_function_is_spread_at_once_and_drawn_together_after_a_while() -> None:
    """Over a few more members than it has open calls; small changes move nothing."""
    spreads = Spreads()
    assert spreads.update({"cold": busy(0.3), "hot": busy(4.2)}) == {"hot": ceil(SPREAD * 4.19)}
    assert spreads.update({"hot": busy(4.0)}) == {"hot": ceil(SPREAD * 4.19)}
    assert spreads.update({"hot": busy(8.0)}) == {"hot": ceil(SPREAD * 7.99)}
    seen = [spreads.update({}).get("hot", 1) for _ in range(20)]
    assert seen[0] == ceil(SPREAD * 7.99)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 1
    assert Spreads(0.0).update({"hot": busy(8.0)}) == {}


@pytest.mark.parametrize("seconds", [0.001, 0.3, 0.9, 1.7, 30.0])
@pytest.mark.parametrize("callers", [1, 8])
def test_what_one_client_calls_in_turn_is_not_spread(seconds: float, callers: int) -> None:
    """However long a call takes, and whenever it ends; of what many call, only what is short."""
    loads, spreads, ended, spent = FunctionLoads(), Spreads(), 0, 0.0
    seen = set[int]()
    for second in range(120):
        while (ended // callers + 1) * seconds + 0.01 <= second:
            ended, spent = ended + 1, spent + seconds
        found = loads.update(float(second), {"f": (ended, spent)})
        seen.add(spreads.update(added_up([found])).get("f", 1))
    assert (max(seen) > 1) is (callers > 1 and seconds < 2.0)


def test_a_function_counts_by_its_calls_that_have_ended() -> None:
    """What a member counted before it was looked at first does not, nor what is long ago."""
    loads = FunctionLoads()
    assert loads.update(0.0, {"f": (10, 5.0), "g": (1, 1.0)}) == {}
    assert loads.update(2.0, {"f": (30, 8.0), "g": (1, 1.0)}) == {"f": Busy(1.5, 0.15)}
    assert loads.update(3.0, {"f": (30, 8.0), "h": (9, 9.0)}) == {"f": Busy(1.5, 0.15)}
    assert loads.update(12.5, {"f": (30, 8.0)}) == {}
    assert loads.update(22.0, {"f": (34, 18.0)}) == {"f": Busy(0.5, 2.5)}
    assert loads.update(23.0, {"f": (1, 0.1)}) == {}  # another worker
    assert loads.update(24.0, {"f": (2, 0.6)}) == {"f": Busy(0.5, 0.5)}


def test_calls_on_several_members_add_up() -> None:
    """And take as long as one of them does on average."""
    one, other = {"f": Busy(2.0, 0.1), "g": Busy(1.0, 1.0)}, {"f": Busy(1.0, 0.1)}
    assert added_up([one, other]) == {"f": Busy(3.0, 0.1), "g": Busy(1.0, 1.0)}
    assert added_up([{"f": Busy(1.0, 1.0)}, {"f": Busy(1.0, 0.25)}]) == {"f": Busy(2.0, 0.4)}


def test_the_functions_that_are_spread_are_bounded() -> None:
    """Those with the most open calls are."""
    spreads = Spreads()
    found = spreads.update({str(number): busy(2.0 + number) for number in range(2000)})
    assert len(found) == 512
    assert "1999" in found
    assert "0" not in found


def test_a_pool_without_members_says_what_to_look_at() -> None:
    """And not that a list was empty."""
    with pytest.raises(ValueError, match="jaxd pool status"):
        choose([], {})
