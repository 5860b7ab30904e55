"""Worker slots without processes; see also test_host.py and test_supervisor.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.supervisor import Supervisor


def post_with(**worker: Any) -> Supervisor:
    """A post whose worker is like that."""

    async def answers(patience_s: float) -> bool:
        return True

    post = Supervisor(ServerOptions(), ())
    defaults = {"was_ready": True, "state": "ready", "silent_s": 2.0, "refresh": answers}
    post.worker = cast("Any", SimpleNamespace(**defaults | worker))
    return post


@pytest.mark.parametrize(
    ("worker", "idle_s"),
    [
        ({"snapshot": {"idle_s": 7.0}}, 7.0),
        ({"snapshot": {"idle_s": 7.0, "connections": 1}}, 0.0),
        ({"snapshot": {"idle_s": 7.0, "running_calls": 1}}, 0.0),
        ({"snapshot": {"idle_s": 7.0}, "state": "resting"}, 9.0),
        ({"snapshot": {}, "state": "starting", "was_ready": False}, 0.0),
        ({"snapshot": {"idle_s": "long"}}, 0.0),
        ({"snapshot": {"idle_s": 10**400}}, 0.0),
        ({"snapshot": {"idle_s": float("nan")}}, 0.0),
        ({"snapshot": {"idle_s": -1e9}}, 0.0),
        ({"snapshot": {"idle_s": "long"}, "state": "resting"}, 2.0),
    ],
)
def test_how_long_nobody_has_needed_it(worker: dict[str, Any], idle_s: float) -> None:
    """As the worker says, if it says it in numbers."""
    assert asyncio.run(post_with(**worker).idle_s()) == idle_s


def test_before_the_first_worker_there_is_little_to_be_said() -> None:
    """And nothing fails."""
    post = Supervisor(ServerOptions(), ())
    assert asyncio.run(post.status()) == {"worker": {}, "worker_state": "starting"}
    assert asyncio.run(post.idle_s()) == 0.0
    assert post.describe() == {"epoch": 0, "worker_pid": None, "restarts": 0, "quarantined": 0}
    assert not post.is_resting
    assert not post.is_stopping
