"""When calls go the short way, and when what they would be answered with is of another moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax

from jaxd.request.function_snapshot import ELSEWHERE, SnapshotCache
from jaxd.request.known_calls import KnownCalls, learn_calls
from jaxd_protocol.jit.options import Options


def cache(function: Any) -> SnapshotCache:
    """The snapshots of a function that has a program here."""
    snapshots = SnapshotCache(function, Options(), ())
    snapshots.spec(()).local = SimpleNamespace(run=lambda args, kwargs: (args, kwargs))
    return snapshots


def test_a_function_under_the_settings_of_now_is_learned() -> None:
    """What runs its calls is asked then."""
    snapshots = cache(lambda x: x + 1)
    learn_calls(snapshots, snapshots.spec(()), ())
    assert snapshots.known is not None
    assert snapshots.known.run((1,), {"n": 2}) == ((1,), {"n": 2})


def test_settings_of_another_moment_are_not_learned() -> None:
    """They were changed while the call ran."""
    snapshots = cache(lambda x: x + 2)
    spec = snapshots.spec(())
    with jax.enable_x64(True):
        learn_calls(snapshots, spec, ())
    assert snapshots.known is None


def test_a_function_that_is_another_one_by_now_is_not_learned() -> None:
    """Another thread has cleared it, or called it after a change."""
    snapshots = cache(lambda x: x + 3)
    spec = snapshots.spec(())
    snapshots.clear()
    learn_calls(snapshots, spec, ())
    assert snapshots.known is None


def test_a_walk_a_clearing_and_a_fork_end_it() -> None:
    """The next calls go the long way."""
    rate = 1.0

    def told(x: Any) -> Any:
        return x * rate

    snapshots = cache(told)

    def learned() -> KnownCalls:
        learn_calls(snapshots, snapshots.spec(()), ())
        assert isinstance(snapshots.known, KnownCalls)
        return snapshots.known

    known = learned()
    rate = 2.0
    assert known.run((1,), {}) is ELSEWHERE
    snapshots.spec(())
    assert snapshots.known is None
    for end in (snapshots.clear, snapshots.after_fork):
        learned()
        end()
        assert snapshots.known is None
