"""Clients that die, are interrupted at random points or fork, and threads in crowds."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.faults
