"""Charts as small SVGs made by hand: ratios as shares of their targets, and curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.harness import Outcome, RowResult

_WIDTH, _LABELS, _BAR_END, _STEP, _TOP = 960, 470, 800, 26, 56
_TARGET_X = _LABELS + (_BAR_END - _LABELS) / 2
_GOOD, _BAD, _INK, _FAINT = "#2f7d4f", "#b3412f", "#24292f", "#8c959f"


def as_svg(results: Sequence[RowResult]) -> str:
    """The chart of all ratios that were measured and have a target.

    The bars are linear; the line is the target, and a bar that ends left of it passes. Bars
    longer than twice the target are cut there, their figure is beside them in any case.
    """
    shown = [(result, outcome) for result in results for outcome in result.outcomes]
    bars = [(r.row.name, o) for r, o in shown if o.ratio is not None and o.comparison.target]
    height = _TOP + _STEP * len(bars) + 16
    body = [_text(16, 24, "Share of the target that each ratio uses", _INK, size=15)]
    body.append(_text(_TARGET_X, _TOP - 10, "target", _FAINT, anchor="middle"))
    for place, (name, outcome) in enumerate(bars):
        body += _bar(_TOP + place * _STEP, name, outcome)
    bottom = height - 12
    body.append(
        f'<line x1="{_TARGET_X:g}" x2="{_TARGET_X:g}" y1="{_TOP - 4}" y2="{bottom}" '
        f'stroke="{_INK}" stroke-dasharray="4 3"/>'
    )
    return _document(height, body, "Measured ratios against their targets")


def _bar(top: int, name: str, outcome: Outcome) -> Iterable[str]:
    target = outcome.comparison.target
    assert outcome.ratio is not None
    assert target is not None
    share = target.share_used(outcome.ratio)
    length = min(share, 2.0) * (_TARGET_X - _LABELS)
    color = _GOOD if outcome.verdict == "pass" else _BAD
    yield _text(_LABELS - 8, top + 14, _shorten(f"{name}: {outcome.comparison.text}"), _INK, "end")
    yield (
        f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_STEP - 8}" '
        f'fill="{color}" rx="2"/>'
    )
    figure = f"{outcome.ratio:.3g}  ({target}) {outcome.verdict}"
    yield _text(_BAR_END + 8, top + 14, figure, color)


_COLUMNS: Final = 2
_PANEL_WIDTH, _PANEL_HEIGHT, _KEY_STEP = _WIDTH / _COLUMNS, 330, 15
_LINES: Final = (_GOOD, _BAD, "#3267a8", "#8a5a00", "#7a4a9c", "#3d8a94")


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of several lines over the same sizes, on two logarithmic axes.

    Attributes:
        title: above it.
        lines: by name, the figure at each size; what is not positive is left out.
        show_size: a size as text, below the axis.
        show_figure: a figure as text, beside the axis.
    """

    title: str
    lines: Mapping[str, Mapping[int, float]]
    show_size: Callable[[int], str]
    show_figure: Callable[[float], str]


def curves_as_svg(
    panels: Sequence[Panel], label: str = "What a call costs as the work grows"
) -> str:
    """The panels, two in a row; each has a tick at every size that was measured."""
    body: list[str] = []
    for place, panel in enumerate(panels):
        row, column = divmod(place, _COLUMNS)
        body += _panel(panel, column * _PANEL_WIDTH, row * _PANEL_HEIGHT)
    rows = -(-len(panels) // _COLUMNS)
    return _document(rows * _PANEL_HEIGHT + 16, body, label)


def _panel(panel: Panel, left: float, top: float) -> Iterator[str]:
    points = {
        name: {size: figure for size, figure in line.items() if figure > 0}
        for name, line in panel.lines.items()
    }
    sizes = sorted({size for line in points.values() for size in line})
    figures = [figure for line in points.values() for figure in line.values()]
    key_top = top + _PANEL_HEIGHT - 8 - _KEY_STEP * len(points)
    across = _Axis.over(sizes, left + 78, left + _PANEL_WIDTH - 30)
    up = _Axis.over(_powers(figures), key_top - 38, top + 40)
    yield _text(left + 16, top + 24, panel.title, _INK, size=14)
    for power in _powers(figures):
        at = up.place(power)
        yield _rule(across.start, across.end, at)
        yield _text(across.start - 6, at + 4, panel.show_figure(power), _FAINT, "end", 11)
    for size in sizes:
        at, text = across.place(size), panel.show_size(size)
        yield _text(at, up.start + 18, text, _FAINT, "middle", 11)
    for place, (name, line) in enumerate(points.items()):
        color = _LINES[place % len(_LINES)]
        placed = [(across.place(size), up.place(line[size])) for size in sorted(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in placed)
        yield _text(left + 78, key_top + _KEY_STEP * place, f"● {name}", color, size=11)


def _powers(figures: Sequence[float]) -> list[float]:
    """Of ten: from the one below all figures to the one above them, two at least."""
    first = math.floor(math.log10(min(figures, default=1.0)) + 1e-9)
    last = math.ceil(math.log10(max(figures, default=1.0)) - 1e-9)
    return [10.0**power for power in range(first, max(first + 1, last) + 1)]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis between two figures, which lie at the pixels `start` and `end`."""

    least: float
    most: float
    start: float
    end: float

    @classmethod
    def over(cls, figures: Sequence[float], start: float, end: float) -> _Axis:
        least, most = min(figures, default=1.0), max(figures, default=10.0)
        return cls(least, most if most > least else 10 * least, start, end)

    def place(self, figure: float) -> float:
        share = math.log(figure / self.least) / math.log(self.most / self.least)
        return self.start + share * (self.end - self.start)


def _rule(left: float, right: float, at: float) -> str:
    return (
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{at:.1f}" y2="{at:.1f}" '
        f'stroke="{_FAINT}" stroke-width="0.4"/>'
    )


def _shorten(text: str, limit: int = 72) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _text(
    x: float, y: float, content: str, color: str, anchor: str = "start", size: int = 12
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{color}" font-size="{size}" '
        f'text-anchor="{anchor}">{escape(content)}</text>'
    )


def _document(height: int, body: Iterable[str], label: str) -> str:
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" role="img" '
        f'aria-label="{escape(label)}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{lines}\n</svg>\n'
    )
