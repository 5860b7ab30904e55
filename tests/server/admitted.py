"""Admits operations by their names."""

from __future__ import annotations

from typing import Any

from jaxd_server.execution.admission import Admission, Operation


def admitted(admission: Admission, name: str, **fields: Any) -> Operation:
    """A call that `admission` has let in."""
    call = Operation(name=name, **fields)
    admission.acquire(call)
    return call


def admitted_shared(admission: Admission, name: str, *, leaves_values: bool = False) -> Operation:
    """The same, of what is no call."""
    request = Operation(name=name)
    admission.acquire_shared(request, leaves_values=leaves_values)
    return request
