from __future__ import annotations

import time

from jaxd_protocol.errors import Cancelled
from jaxd_server.execution.admission import Operation
from jaxd_server.runtime.threads.cancellation import CancelToken


def test_a_call_that_cannot_be_given_up_is_shown_with_its_age() -> None:
    """Nothing is known of what it waits for."""
    call = Operation(name="step")
    call.started = time.monotonic() - 5.0
    row = call.row()
    assert row.keys() == {"function", "seconds"}
    assert row["function"] == "step"
    assert float(row["seconds"]) >= 5.0
    assert not call.is_abandoned


def test_one_for_which_somebody_waits_is_shown_with_what_it_does() -> None:
    """And for how long it waited until it did."""
    now = [0.0]
    cancel_token = CancelToken(clock=lambda: now[0])
    call = Operation(name="step", cancel_token=cancel_token)
    cancel_token.set_phase("waiting")
    now[0] += 1.5
    cancel_token.set_phase("running")
    row = call.row()
    assert (row["phase"], row["waited_s"]) == ("running", 1.5)


def test_one_that_waits_for_a_build_is_shown_with_what_it_waits_behind() -> None:
    """And for how long that has been built."""
    cancel_token = CancelToken()
    call = Operation(name="small", cancel_token=cancel_token)
    cancel_token.waits_behind = lambda: ("slow", b"session", 78.0)
    row = call.row()
    assert (row["phase"], row["behind"], row["behind_s"]) == ("waiting", "slow", 78.0)


def test_one_for_which_nobody_waits_is_left() -> None:
    """Once its client was told; not as soon as it is given up."""
    cancel_token = CancelToken()
    call = Operation(name="step", cancel_token=cancel_token)
    cancel_token.cancel(Cancelled("not wanted."))
    found = [call.is_abandoned]
    cancel_token.is_client_notified = True
    assert [*found, call.is_abandoned] == [False, True]
