"""jax's profiler in a process, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from jaxd_protocol.errors import Busy, ConfigurationError
from jaxd_server.jax_compat.profiler import Profiler


@pytest.fixture
def profiler() -> Iterator[Profiler]:
    """Whose profile, if there is one, ends with the test: jax makes one at a time."""
    made = Profiler()
    yield made
    made._end()
    made._clear()


def test_a_profile_whose_client_is_gone_ends_by_itself(profiler: Profiler) -> None:
    """What it has is there for who asks; then the next one can be made."""
    profiler.start(5)
    with pytest.raises(Busy):
        profiler.start(5)
    assert profiler._timer is not None
    assert profiler._timer.interval == 5
    profiler._timer.function()  # the time is over
    names = [file.name for file in profiler.stop()]
    assert [name for name in names if name.endswith(".xplane.pb")]
    with pytest.raises(ConfigurationError):
        profiler.stop()
    profiler.start(100_000)
    assert profiler._timer.interval == 600


def test_a_profile_that_nobody_has_fetched_is_removed(profiler: Profiler) -> None:
    """When the next one begins."""
    profiler.start(5)
    profiler._end()
    assert profiler._folder is not None
    before = profiler._folder.name
    profiler.start(5)
    assert not os.path.exists(before)
