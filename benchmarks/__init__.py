"""Ratios between jaxd and what people use today, measured interleaved in one run.

`python -m benchmarks` prints a table and writes it, with its data and a plot, under `docs/`;
`--curves` does so with what a call costs as the work grows, in times of this machine.
Nothing here is a test of correctness, and no figure is compared between machines: only ratios
of medians that were taken in turn, in one run, are kept.
"""

from __future__ import annotations
