"""Which identity stands for a call."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from jaxd.request.function_snapshot import FunctionSpec, SnapshotCache, package_changes
from jaxd_protocol import fingerprint
from jaxd_protocol.errors import PackingError, TracedReadWarning, UnsharedWarning
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.jit.options import Options
from tests.server.staging import at_once
from tests.shared.fingerprint.defining import function

X64 = (("jax_enable_x64", True),)
X32 = ()


def snapshots(made: Any, *ignored: str) -> SnapshotCache:
    """Those of a function without options."""
    return SnapshotCache(made, Options(), ignored)


def settled(found: SnapshotCache, skeleton: bytes) -> FunctionSpec:
    """What stands for a call with these arguments."""
    return found.pinned_spec(found.spec(X32), skeleton, X32)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each function that is looked at, when it is."""
    looked: list[Any] = []

    def noted(value: Any, *args: Any, **kwargs: Any) -> Any:
        looked.append(value)
        return walk(value, *args, **kwargs)

    monkeypatch.setattr(fingerprint, "walk", noted)
    return looked


def test_nothing_is_looked_at_before_the_first_call(walks: list[Any]) -> None:
    """A module may decorate functions that it never calls."""
    found = snapshots(function("return x"))
    assert walks == []
    found.spec(X32)
    assert len(walks) == 1


def test_as_long_as_nothing_changes_it_is_looked_at_once(walks: list[Any]) -> None:
    """Each configuration has a key of its own."""
    found = snapshots(function("return x * RATE", RATE=1))
    one, again, other = (found.spec(config) for config in (X32, X32, X64))
    assert one is again
    assert one.key != other.key
    assert one.snapshot is other.snapshot
    assert len(walks) == 1


def test_an_upgrade_of_a_package_is_looked_at(
    walks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each; keys name what is installed."""
    found = snapshots(function("return x"))
    found.spec(X32)
    monkeypatch.setattr(package_changes, "count", package_changes.count + 1)
    found.spec(X32)
    found.spec(X32)
    assert len(walks) == 2


def test_what_is_complete_is_settled_at_once(walks: list[Any]) -> None:
    """Whatever the arguments are."""
    found = snapshots(function("return x"))
    spec = found.spec(X32)
    assert found.pinned_spec(spec, b"one", X32) is found.pinned_spec(spec, b"other", X32) is spec
    assert len(walks) == 1


MEMO = "if x not in M: M[x] = x\nreturn M[x]"


def test_a_known_signature_keeps_its_key_while_the_function_fills_its_memo(
    walks: list[Any],
) -> None:
    """As with jax.jit, which does not trace again."""
    memo: dict[Any, Any] = {}
    found = snapshots(function(MEMO, M=memo))
    before = settled(found, b"one").key
    memo[1] = 1
    assert settled(found, b"one").key == before
    assert len(walks) == 1


def test_a_new_signature_has_the_memo_as_it_is_then(walks: list[Any]) -> None:
    """The function is traced for it, so it is looked at again; the first keeps its key."""
    memo: dict[Any, Any] = {}
    found = snapshots(function(MEMO, M=memo))
    first = settled(found, b"one").key
    memo[1] = 1
    other = settled(found, b"other").key
    assert other != first
    memo[2] = 2
    assert settled(found, b"one").key == first
    assert settled(found, b"other").key == other
    assert len(walks) == 2


def test_a_new_signature_of_an_unchanged_memo_has_the_same_key(walks: list[Any]) -> None:
    """It is looked at and found to be the same function."""
    found = snapshots(function(MEMO, M={}))
    assert settled(found, b"one") is settled(found, b"other")
    assert len(walks) == 2


def test_a_large_array_is_looked_at_for_each_new_signature() -> None:
    """Reading it before each call would take too long."""
    array = np.zeros(1 << 20)
    found = snapshots(function("return x + A", A=array))
    first = settled(found, b"one").key
    array[0] = 1.0
    assert settled(found, b"one").key == first
    assert settled(found, b"other").key != first


def test_a_large_array_that_is_replaced_is_noticed() -> None:
    """The object is another one; signatures that were known are looked at again."""
    made = function("return x + A", A=np.zeros(1 << 20))
    found = snapshots(made)
    first = settled(found, b"one").key
    made.__globals__["A"] = np.ones(1 << 20)
    assert settled(found, b"one").key != first


def test_another_change_beside_a_memo_is_noticed() -> None:
    """Only the memo is pinned; what was pinned under the old key is no longer meant."""
    memo: dict[Any, Any] = {}
    made = function(f"y = RATE\n{MEMO}", M=memo, RATE=1)
    found = snapshots(made)
    first = settled(found, b"one").key
    made.__globals__["RATE"] = 2
    assert settled(found, b"one").key != first


def test_pinned_signatures_are_kept_where_the_function_is_the_same() -> None:
    """After a change that meant nothing."""
    memo: dict[Any, Any] = {}
    made = function(f"y = RATES\n{MEMO}", M=memo, RATES=[1])
    found = snapshots(made)
    pinned = settled(found, b"one").snapshot
    made.__globals__["RATES"] = [1]
    assert settled(found, b"one").snapshot is pinned


def test_each_configuration_of_a_pinned_signature_has_a_key() -> None:
    """Under the same identity."""
    found = snapshots(function(MEMO, M={}))
    specs = [found.pinned_spec(found.spec(config), b"one", config) for config in (X32, X64)]
    assert specs[0].key != specs[1].key
    assert specs[0].snapshot is specs[1].snapshot


@pytest.mark.parametrize(
    ("made", "category"),
    [
        (function("return next(S)", S=(n for n in [1])), UnsharedWarning),
        (function("import time\nreturn time.time(), RATE", RATE=1), TracedReadWarning),
    ],
    ids=["no content", "clock"],
)
def test_what_is_to_be_said_of_a_function_is_said_once(made: Any, category: Any) -> None:
    """However often it changes."""
    found = snapshots(made)
    with pytest.warns(category):
        found.spec(X32)
    made.__globals__["RATE"] = 2
    made.__kwdefaults__ = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.spec(X32)
        found.spec(X64)


def test_what_is_ignored_is_not_said() -> None:
    """The user knows about it."""
    made = function("return next(S)", S=(n for n in [1]))
    assert snapshots(made, "S").spec(X32).key == snapshots(made, "S").spec(X32).key


def test_a_function_that_cannot_be_looked_at_is_tried_again() -> None:
    """When what was wrong with it is no longer there."""
    made = function("return __import__('os')")
    found = snapshots(made)
    for _ in range(2):
        with pytest.raises(PackingError):
            found.spec(X32)
    made.__code__ = function("return x").__code__
    assert found.spec(X32).key


def test_threads_that_call_at_once_look_once(walks: list[Any]) -> None:
    """The others wait for what the first one finds."""
    found = snapshots(function("return x"))
    specs = at_once(8, lambda index: found.spec(X32))
    assert len({id(spec) for spec in specs}) == 1
    assert len(walks) == 1


def test_in_the_child_of_a_fork_nobody_is_looking() -> None:
    """A thread of the parent held the lock."""
    found = snapshots(function("return x"))
    found._lock.acquire()
    found.after_fork()
    assert found.spec(X32).key
