"""The demo's plot: where the time of each run went, and what the network learned."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxd.demo.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_plot"]

_PARTS = (("ready", "#c9ccd1"), ("first call", "#d1495b"), ("the rest", "#7fa7c9"))


def write_plot(runs: Sequence[Run], directory: str) -> str:
    """Writes `digits.png` into `directory` and returns its path.

    Needs no display: the figure is drawn by matplotlib's own rasteriser.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its first run tells of a font cache
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    times, learning = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_times(times, runs)
    _draw_learning(learning, runs)
    path = os.path.join(directory, "digits.png")
    figure.savefig(path, dpi=120)
    return path


def _draw_times(axes: Axes, runs: Sequence[Run]) -> None:
    for place, run in enumerate(runs):
        parts = (run.ready_s, run.first_call_s, run.total_s - run.first_result_s)
        left = 0.0
        for seconds, (name, colour) in zip(parts, _PARTS, strict=True):
            axes.barh(place, seconds, left=left, color=colour, label=None if place else name)
            left += seconds
    axes.set_yticks(range(len(runs)), [run.label for run in runs])
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the process was started")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_learning(axes: Axes, runs: Sequence[Run]) -> None:
    for place, run in enumerate(runs):
        accuracy = [epoch["accuracy"] for epoch in run.history]
        # The runs learn the same: the first is drawn wide, so that the others show on top of it.
        axes.plot(
            range(1, len(accuracy) + 1),
            accuracy,
            label=run.label,
            linewidth=5 - 1.2 * place,
            linestyle="-" if place < 2 else "--",
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel("test digits read rightly")
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
