"""What is neither code nor a plain container: objects of jax, arrays, instances of any class.

Imported when a walk meets the first of them: many functions reach none.
"""

from __future__ import annotations

from typing import Any

from jaxd_protocol.fingerprint.arrays import emit_array
from jaxd_protocol.fingerprint.instances import emit_instance
from jaxd_protocol.fingerprint.jax_values import emit_jax
from jaxd_protocol.fingerprint.walk import Walk

__all__ = ["emit_other"]


def emit_other(walk: Walk, value: Any) -> None:
    """Appends an object by what it is made of."""
    if not (emit_jax(walk, value) or emit_array(walk, value)):
        emit_instance(walk, value)
