"""A bar chart of every ratio as a share of its target, as a small SVG made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

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
    return _document(height, body)


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


def _shorten(text: str, limit: int = 72) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _text(
    x: float, y: float, content: str, color: str, anchor: str = "start", size: int = 12
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{color}" font-size="{size}" '
        f'text-anchor="{anchor}">{escape(content)}</text>'
    )


def _document(height: int, body: Iterable[str]) -> str:
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" role="img" '
        f'aria-label="Measured ratios against their targets">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{lines}\n</svg>\n'
    )
