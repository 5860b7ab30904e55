"""Sanitizes the status reports of workers, whose code may be hostile.

Code of a client can make its worker send any value. Values of the expected types and within their
limits are safe: they can be added, shown and compared without further checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, TypeGuard

from jaxd_protocol.base import terminal

LISTS: Final[Mapping[str, Mapping[str, type]]] = {
    "running": {"function": str, "seconds": float},
    "left_behind": {"function": str, "seconds": float, "phase": str},
    "principals": {"connections": int, "sessions": int},
}
"""The lists of a status, and the fields of their rows. A float may be an int as well."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_NAMES: Final = 200
_MAX_ROWS: Final = 500
_MAX_TEXT: Final = 1000
_MAX_NUMBER: Final = 1 << 63

Report = Mapping[str, Any]


def sanitize_report(report: Report) -> dict[str, Any]:
    """The valid numbers of a status, and its lists with their valid rows."""
    numbers = (
        (name, value)
        for name, value in report.items()
        if name not in LISTS and _NAME.fullmatch(name) and is_number(value)
    )
    return dict(islice(numbers, _MAX_NAMES)) | {
        name: [
            {field: printable(each[field]) for field in fields} for each in valid_rows(report, name)
        ]
        for name, fields in LISTS.items()
        if isinstance(report.get(name), list)
    }


def valid_rows(report: Report, name: str) -> list[Report]:
    """The first few hundred valid rows of one of the `LISTS`."""
    rows = report.get(name)
    fields = LISTS[name].items()
    return [
        each
        for each in (rows[:_MAX_ROWS] if isinstance(rows, list) else ())
        if isinstance(each, dict)
        and all(_is_of_kind(each.get(field), kind) for field, kind in fields)
    ]


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether something is a number that can be added to others, made a float, and written."""
    return isinstance(value, int | float) and abs(value) < _MAX_NUMBER  # which no NaN is


def printable(value: Any) -> Any:
    """A text without control characters for a terminal; any other value unchanged."""
    if not isinstance(value, str):
        return value
    return terminal.printable(value, _MAX_TEXT)


def _is_of_kind(value: object, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str)
    return is_number(value) and (kind is float or isinstance(value, int))
