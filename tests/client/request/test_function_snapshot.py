"""Names of functions on the wire."""

from __future__ import annotations

import decimal
import gc
import random
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxd import Client
from jaxd.request import function_snapshot
from jaxd.request.function_snapshot import (
    WARN_AFTER,
    FunctionRefusal,
    FunctionSnapshot,
    FunctionSpec,
    PackageChanges,
    RedecorationCounter,
    Refused,
    SnapshotCache,
    package_changes,
)
from jaxd_protocol import fingerprint
from jaxd_protocol.base import process
from jaxd_protocol.errors import (
    CompileAdvice,
    PackingError,
    SkewWarning,
    TracedReadWarning,
    UnsharedWarning,
)
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.jit.options import Options
from jaxd_protocol.packages.distributions import Package
from jaxd_protocol.pickling.unpack.unpickler import unpack_function
from tests.server.staging import at_once
from tests.shared.fingerprint.defining import function


def make(scale: Any) -> Any:
    """A function that closes over a value."""
    return lambda x: x * scale


def test_it_has_the_name_that_people_know() -> None:
    """Also where there is no function object."""
    import functools

    class Model:
        def __call__(self, x: Any) -> Any:
            return x

    assert FunctionSnapshot(make, Options()).name == "make"
    assert FunctionSnapshot(functools.partial(make, 1), Options()).name == "partial"
    assert FunctionSnapshot(Model(), Options()).name.endswith("Model")


def test_what_has_no_content_is_warned_of() -> None:
    """In the line that is asked for, with what to do about it."""
    numbers = (number for number in [1.0])
    snapshot = FunctionSnapshot(lambda x: (numbers, x), Options())
    with pytest.warns(UnsharedWarning, match=r"generator.*ignore='numbers'.*extra_key=") as heard:
        snapshot.warn()
    assert heard[0].filename == __file__


def test_what_is_ignored_is_not_in_the_fingerprint() -> None:
    """By the name that code gives it."""

    def fingerprint_with(stamp: str) -> bytes:
        def stamped(x: Any) -> Any:
            return x, stamp

        return FunctionSnapshot(stamped, Options(), ("stamp",)).fingerprint

    assert fingerprint_with("monday") == fingerprint_with("tuesday")


def test_the_code_is_packed_when_it_is_asked_for_and_once() -> None:
    """A call of a function that the server knows needs none of it."""
    snapshot = FunctionSnapshot(make(2.0), Options())
    assert snapshot._packed is None
    assert snapshot.code is snapshot.code
    assert unpack_function(snapshot.code).function(3.0) == 6.0


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


@pytest.mark.parametrize(
    ("held", "change"),
    [
        (np.zeros(1 << 20), lambda held: held.__setitem__(0, 1.0)),
        (decimal.Context(7), lambda held: setattr(held, "prec", 9)),
        ([random.Random(3)], lambda held: held[0].random()),
        (np.random.default_rng(3), lambda held: held.random()),
        (ValueError(1), lambda held: setattr(held, "args", (2,))),
    ],
    ids=["large array", "context", "random", "generator", "exception"],
)
def test_what_no_guard_sees_is_looked_at_for_each_new_signature(
    held: Any, change: Callable[[Any], object]
) -> None:
    """To read a large array before each call would take too long; what C keeps says nothing."""
    found = snapshots(function("return x + A", A=held))
    first = settled(found, b"one").key
    change(held)
    assert settled(found, b"one").key == first
    assert settled(found, b"other").key != first


def test_what_a_function_holds_goes_with_it() -> None:
    """At once, as under `jax.jit`, and not when Python looks for cycles; calls may go on."""
    array = np.zeros(1 << 20, np.uint8)
    seen = weakref.ref(array)
    cache = snapshots(make(array))
    spec = settled(cache, b"one")
    del array
    gc.disable()
    try:
        del cache
        assert seen() is not None
        assert spec.snapshot.code
        del spec
        assert seen() is None
    finally:
        gc.enable()


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


OLD, NEW = (Package("optax", version, version.encode()) for version in ("1.0", "1.1"))


class Disk:
    """What is installed, and how often somebody has looked."""

    def __init__(self) -> None:
        self.changes: list[Any] = []
        self.looked = 0
        self.now = 100.0

    def poll(self) -> list[Any]:
        """What has changed since the last look."""
        self.looked += 1
        found, self.changes = self.changes, []
        return found


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """In place of the real one, with a clock that stands still."""
    disk = Disk()
    monkeypatch.setattr(function_snapshot, "changed_since_first_seen", disk.poll)
    monkeypatch.setattr("jaxd.request.function_snapshot.time.monotonic", lambda: disk.now)
    return disk


def call(package_changes: PackageChanges, disk: Disk) -> int:
    """What a call of a persistent function does; the count that it sees."""
    if disk.now >= package_changes.next_poll_s:
        package_changes.poll()
    return package_changes.count


def test_it_says_when_to_look_again(disk: Disk) -> None:
    """Once a second: a call takes microseconds."""
    package_changes = PackageChanges()
    for step_s in (0.0, 0.5, 0.4, 0.2, 0.1):
        disk.now += step_s
        assert call(package_changes, disk) == 0
    assert disk.looked == 2


def test_each_change_counts_and_is_warned_of_once(disk: Disk) -> None:
    """In the line that calls; keys are made anew then."""
    package_changes = PackageChanges()
    disk.changes = [(OLD, NEW)]
    with pytest.warns(SkewWarning, match=r"optax was changed from 1\.0 to 1\.1 while") as heard:
        assert call(package_changes, disk) == 1
    assert heard[0].filename == __file__
    assert "restart this process" in str(heard[0].message)
    disk.now += 2.0
    assert call(package_changes, disk) == 1


def test_the_child_of_a_fork_can_look(disk: Disk) -> None:
    """Also when another thread of the parent was looking as it forked."""
    package_changes = PackageChanges()
    thread = threading.Thread(target=package_changes._lock.acquire)
    thread.start()
    thread.join()
    process._in_child()
    package_changes.poll()
    assert package_changes.count == 0


def step(x: Any) -> Any:
    """Is made persistent often."""
    return x + 1


def test_different_functions_are_not_counted_together() -> None:
    """Nor those that have no code of their own."""
    counted = RedecorationCounter()
    for number in range(2 * WARN_AFTER):
        counted.record(step, str(number).encode())
        counted.record(print, b"key")


def test_it_remembers_the_last_ones_only() -> None:
    """A process that makes functions for days does not grow."""
    counted = RedecorationCounter()
    for number in range(function_snapshot._MAX_PLACES + 100):
        counted.record(step, str(number).encode())
    assert len(counted._counts) == function_snapshot._MAX_PLACES


def test_the_child_of_a_fork_does_not_wait_for_its_parent() -> None:
    """A lock that a thread of the parent held is not its own."""
    counted = RedecorationCounter()
    counted._lock.acquire()
    process._in_child()
    counted.record(step, b"key")


@pytest.mark.parametrize(
    ("number", "use"),
    [(1, lambda f: f(1.0)), (2, lambda f: f.submit(1.0).result())],
    ids=["call", "submit"],
)
def test_a_loop_that_decorates_is_told_so(
    client: Client, number: int, use: Callable[[Any], Any]
) -> None:
    """One that decorates once is not, however often it calls."""

    def add(x: Any) -> Any:
        return x + number

    once = client.persistent_call(add)
    for _ in range(2 * WARN_AFTER):
        use(once)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(WARN_AFTER):
            use(client.persistent_call(add))
    (warning,) = heard
    assert warning.category is CompileAdvice
    if number == 1:
        assert warning.filename == __file__  # the line that calls
    assert "add (test_function_snapshot.py:" in str(warning.message)


@pytest.mark.parametrize(("walk_s", "again_s"), [(0.001, 1.0), (0.5, 10.0)])
def test_a_function_that_cannot_be_walked_is_walked_again_later(
    monkeypatch: pytest.MonkeyPatch, walk_s: float, again_s: float
) -> None:
    """After a second, or so many times as long as it took that it costs a twentieth."""
    now_s = 100.0
    monkeypatch.setattr(function_snapshot, "monotonic", lambda: now_s)
    refusal = FunctionRefusal("it is of C", walk_s)
    now_s += again_s - 0.1
    with pytest.raises(Refused, match="of C"):
        refusal.check()
    now_s += 0.2
    refusal.check()
