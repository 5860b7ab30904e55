"""The server: a host that supervises, and a worker that owns the devices.

Only the worker's modules import jax; importing this package or the host's modules does not.
"""

from __future__ import annotations
