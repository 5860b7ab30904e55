"""A pool of many servers as discrete events: what routing of calls does at sizes nobody has here.

`python -m benchmarks.simulation` runs it, prints the tables, and writes docs/scale.md with its
chart. The choice of a member is that of the product (`jaxd_protocol.network.pool_routing`), beside
others; the durations are measured ones, each with its source in `parameters.py`.
"""

from __future__ import annotations
