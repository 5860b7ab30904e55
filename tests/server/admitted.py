"""Admits operations by their names."""

from __future__ import annotations

from typing import Any

from jaxd_server.execution.admission import Admission, Operation


def admitted(admission: Admission, name: str, **fields: Any) -> Operation:
    """A call that was admitted."""
    call = Operation(name=name, **fields)
    admission.acquire(call)
    return call
