"""Clients that die, are interrupted at random points or fork, and threads in crowds."""

from __future__ import annotations

import pytest

from tests.end_to_end.test_lost_peers import (
    gate,
    test_a_client_that_closes_while_its_calls_run,
    test_a_client_that_dies_before_it_sent_its_code,
    test_a_client_that_dies_in_the_middle_of_a_frame,
    test_a_client_that_dies_while_its_call_runs,
    test_a_fork_after_connecting,
    test_a_fork_while_a_call_is_open,
    test_a_server_that_dies_while_it_is_sent_a_large_argument,
    test_a_server_that_dies_while_threads_wait,
    test_an_interrupt_anywhere,
    test_an_interrupt_while_receiving,
    test_an_interrupt_while_waiting,
    test_many_connections,
    test_many_threads_on_one_client,
)

pytestmark = pytest.mark.faults

__all__ = [
    "gate",
    "test_a_client_that_closes_while_its_calls_run",
    "test_a_client_that_dies_before_it_sent_its_code",
    "test_a_client_that_dies_in_the_middle_of_a_frame",
    "test_a_client_that_dies_while_its_call_runs",
    "test_a_fork_after_connecting",
    "test_a_fork_while_a_call_is_open",
    "test_a_server_that_dies_while_it_is_sent_a_large_argument",
    "test_a_server_that_dies_while_threads_wait",
    "test_an_interrupt_anywhere",
    "test_an_interrupt_while_receiving",
    "test_an_interrupt_while_waiting",
    "test_many_connections",
    "test_many_threads_on_one_client",
]
