from __future__ import annotations

from jaxd_protocol import errors
from jaxd_protocol.messages.calls import is_failure
from jaxd_protocol.messages.failures import encode_failure


def test_a_failure_is_told_by_its_exact_type() -> None:
    """Without rebuilding it; a type of that name from elsewhere is another."""
    failure = encode_failure(errors.WorkerReplaced("again"))
    assert is_failure(failure, errors.WorkerReplaced)
    assert not is_failure(failure, errors.ServerDraining)
    assert not is_failure(("elsewhere", *failure[1:]), errors.WorkerReplaced)
