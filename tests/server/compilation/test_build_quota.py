from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.errors import DeadlineExceeded, LimitExceeded
from jaxd_server.compilation.executable_source import BuildQuota
from tests.server.in_process import InProcessServer
from tests.server.staging import until


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_seconds_are_counted_for_each_and_come_back() -> None:
    """A principal that has had its share waits; the others do not."""
    clock = Clock()
    quota = BuildQuota(360.0, clock)
    quota.spend("alice", 300.0)
    quota.require("alice")
    quota.spend("alice", 66.0)
    with pytest.raises(LimitExceeded, match=r"again in 60 s, .*--principal-build-s"):
        quota.require("alice")
    quota.require("bob")
    clock.now += 59.0
    with pytest.raises(LimitExceeded, match="again in 1 s"):
        quota.require("alice")
    clock.now += 2.0
    quota.require("alice")


def test_a_client_that_has_had_its_share_goes_on_with_what_is_ready(
    open_in_process_server: Callable[..., InProcessServer],
) -> None:
    """New programs are refused before they are traced, with what to do."""
    in_process_server = open_in_process_server(principal_build_s=0.001)
    client = in_process_server.client()
    double = client.persistent_call(lambda x: x * 2)
    assert float(double(1.0)) == 2.0
    traces = client.statistics().traces
    with pytest.raises(LimitExceeded, match="Programs that are ready go on answering"):
        client.persistent_call(lambda x: x * 3)(1.0)
    assert float(double(4.0)) == 8.0
    assert client.statistics().traces == traces


def fails(x: Any) -> Any:
    """Fails while it is traced."""
    raise KeyError("mine")


def endless(x: Any) -> Any:
    """Is traced until it is interrupted."""
    while True:
        x = x + 1


@pytest.mark.parametrize(
    ("function", "timeout_s", "error"),
    [(fails, 60.0, KeyError), (endless, 0.3, DeadlineExceeded)],
)
def test_what_a_build_used_until_it_failed_or_was_given_up_counts(
    function: Callable[[Any], Any],
    timeout_s: float,
    error: type[Exception],
    open_in_process_server: Callable[..., InProcessServer],
) -> None:
    """Else somebody could have the server build without an end."""
    server = open_in_process_server(principal_build_s=0.001)
    client = server.client()
    with pytest.raises(error):
        client.persistent_call(function, timeout_s=timeout_s)(1.0)
    until(lambda: not server.parts.status.now()["left_behind"])
    with pytest.raises(LimitExceeded):
        client.persistent_call(lambda x: x * 3)(1.0)
