"""Bytes for clients that have only rpyc and cloudpickle. Only this imports cloudpickle."""

from __future__ import annotations

from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """The value as `cloudpickle.dumps` writes it."""
    data: bytes = cloudpickle.dumps(value)
    return data
