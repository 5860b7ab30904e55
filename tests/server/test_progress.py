from __future__ import annotations

import pytest

from jaxd_server.progress import SILENT, current_build, watch_build
from tests.server.staging import join, start


def test_a_build_is_known_to_its_thread_only() -> None:
    """Two threads that build at once do not count each other's compilations."""
    seen: list[object] = []
    with watch_build() as build:
        join([start(lambda: seen.append(current_build()))])
        assert current_build() is build
    assert seen == [None]
    assert current_build() is None


def test_a_build_within_a_build_is_counted_by_itself() -> None:
    """And the outer one goes on afterwards."""
    with watch_build() as outer:
        with watch_build() as inner:
            inner.traces += 1
        assert current_build() is outer
    assert (outer.traces, inner.traces) == (0, 1)


def test_a_build_that_fails_is_over() -> None:
    """The thread, which a pool uses again, is not left with it."""
    with pytest.raises(ValueError, match="no"), watch_build():
        raise ValueError("no")
    assert current_build() is None


def test_nobody_has_to_listen() -> None:
    """The silent event stream takes everything."""
    SILENT("stage", {"stage": "trace"})
