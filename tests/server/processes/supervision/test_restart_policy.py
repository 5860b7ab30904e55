from __future__ import annotations

from itertools import pairwise

from jaxd_server.processes.supervision.restart_policy import MAX_FAILED_STARTS, RestartPolicy


def test_the_first_death_costs_no_time() -> None:
    """Callers should notice it as little as possible."""
    assert RestartPolicy().delay_s(0.1, was_ready=True) == 0.0


def test_deaths_in_a_row_wait_ever_longer_up_to_a_limit() -> None:
    """From 0.2 s, doubling, to 10 s and never more."""
    policy = RestartPolicy()
    delays = [policy.delay_s(1.0, was_ready=True) or 0.0 for _ in range(2000)]
    assert delays[:4] == [0.0, 0.2, 0.4, 0.8]
    assert all(before <= after for before, after in pairwise(delays))
    assert delays[-1] == 10.0


def test_a_worker_that_lived_well_is_forgiven() -> None:
    """After a long life the count begins anew."""
    policy = RestartPolicy()
    for _ in range(3):
        policy.delay_s(1.0, was_ready=True)
    assert policy.delay_s(3600.0, was_ready=True) == 0.0
    assert policy.delay_s(1.0, was_ready=True) == 0.0


def test_it_gives_up_after_failed_starts_in_a_row() -> None:
    """A worker that was never ready will not be the next time either."""
    policy = RestartPolicy()
    delays = [policy.delay_s(0.0, was_ready=False) for _ in range(MAX_FAILED_STARTS)]
    assert delays[-1] is None
    assert None not in delays[:-1]


def test_one_good_start_resets_the_failed_ones() -> None:
    """Only failures in a row count."""
    policy = RestartPolicy()
    for _ in range(MAX_FAILED_STARTS - 1):
        policy.delay_s(0.0, was_ready=False)
    assert policy.delay_s(0.0, was_ready=True) is not None
    assert policy.delay_s(0.0, was_ready=False) is not None
