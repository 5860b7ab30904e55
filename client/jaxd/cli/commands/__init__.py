"""The commands of `jaxd`, one file each.

`SUMMARY`, `EXAMPLE`, `configure(parser)`, `run(args)`.
"""

from __future__ import annotations
