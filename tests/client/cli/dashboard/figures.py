"""What a figure on a page has to say of a view: computed a second time, from the view as JSON.

A path is that of `static/js/figures.js`. Ages change with the clock and are not computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from jaxd_protocol.messages.server_view import LATENCY_BOUNDS_S

BY_CLOCK = frozenset({"age", "ago"})

View = Mapping[str, Any]

_UNKNOWN = "\N{EN DASH}"


def text_of(view: View, path: str, kind: str) -> str:
    """The text that is right."""
    head, names = path[0], [_unescaped(name) for name in path.partition("/")[2].split("/")]
    match head:
        case "#":
            return count(_counted(view, path))
        case "+":
            table, field = names
            return _FORMATS[kind](sum(row[field] for row in view[table].values()))
        case "-":
            table, key, more, less = names
            row = view[table].get(key, {})
            if not (row.get(more) and row.get(less)):
                return _UNKNOWN
            return _FORMATS[kind](max(0, row[more] - row[less]))
        case "~":
            share = float(path[1:].partition("/")[0])
            return quantile(_found(view, names), share)
    value = _found(view, names)
    return _UNKNOWN if value is None else _FORMATS[kind](value)


def _unescaped(name: str) -> str:
    return name.replace("~1", "/").replace("~0", "~")


def _found(view: Any, names: list[str]) -> Any:
    for name in names:
        if isinstance(view, list):
            view = view[int(name)] if int(name) < len(view) else None
        else:
            view = view.get(name) if isinstance(view, Mapping) else None
    return view


def _counted(view: View, path: str) -> int:
    _, table, *condition = path.split("/")
    rows = view[table].values()
    if not condition:
        return len(rows)
    field, _, wanted = condition[0].partition("=")
    return sum(row[field] == wanted for row in rows)


def count(value: float) -> str:
    """With a comma between thousands."""
    return f"{int(_fixed(value, 0)):,}"


def _seconds(value: float) -> str:
    return f"{_fixed(value, 1):,} s"


def duration(value: float) -> str:
    """With the unit that fits."""
    if value <= 0:
        return "0 s"
    if value < 0.9995e-3:
        return f"{_fixed(value * 1e6, 0)} µs"
    if value < 0.9995:
        return f"{_three(value * 1e3)} ms"
    if value < 120:
        return f"{_three(value)} s"
    for below, large, small, units in (
        (7200, 60, 1, ("min", "s")),
        (172_800, 3600, 60, ("h", "min")),
        (float("inf"), 86_400, 3600, ("d", "h")),
    ):
        if value < below:
            whole = int(value // large)
            return f"{whole} {units[0]} {int((value - whole * large) // small):02} {units[1]}"
    raise AssertionError


def _size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{_fixed(value, 0) if unit == 'B' else _three(value)} {unit}"
        value /= 1000
    return f"{_three(value)} TB"


def _clock(value: float) -> str:
    if not value:
        return "never"
    at = datetime.fromtimestamp(int(value))  # noqa: DTZ006  as the browser, in local time
    is_today = at.date() == datetime.now().date()  # noqa: DTZ005
    return at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def quantile(classes: list[int] | None, share: float) -> str:
    """Below which bound this share of the calls stayed."""
    calls = sum(classes or ())
    below = 0
    for index, more in enumerate(classes or ()):
        below += more
        if calls and below >= share * calls:
            if index == len(LATENCY_BOUNDS_S):
                return f"> {duration(LATENCY_BOUNDS_S[-1])}"
            return f"≤ {duration(LATENCY_BOUNDS_S[index])}"
    return "no calls"


def _fixed(value: float, digits: int) -> Decimal:
    return Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)


def _three(value: float) -> Decimal:
    return _fixed(value, 2 if value < 9.995 else 1 if value < 99.95 else 0)


_FORMATS = {
    "count": count,
    "seconds": _seconds,
    "atLength": lambda value: "" if value < 120 else f"{duration(value)}. ",
    "duration": duration,
    "size": _size,
    "limit": lambda value: _size(value) if value else "an unknown size",
    "clock": _clock,
    "text": _text,
    "level": _text,
}
