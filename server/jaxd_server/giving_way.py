"""What keeps a worker from giving way to the next one when somebody asks it to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jaxd_server.admission import Admission
    from jaxd_server.values import Values

__all__ = ["still_needed"]

_PAUSE_S: Final = 0.5
"""How long new calls wait while a worker looks whether it may end."""


def still_needed(admission: Admission, values: Values) -> str:
    """Why a worker should not end now, in words; empty when it may.

    Then no call runs any more: new ones wait until it gives way.

    Args:
        admission: knows which calls are running.
        values: arrays of clients.
    """
    if not admission.pause(_PAUSE_S):
        longest = next(iter(admission.running()), None)
        return (
            "calls are running"
            if longest is None
            else f"{longest['function']} has been running for {longest['seconds']:.0f} s"
        )
    if values.are_missed():
        admission.resume()
        owners = ", ".join(values.owners())
        return f"it holds arrays of {owners} (jaxd values lists them)"
    return ""
