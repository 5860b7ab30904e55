"""Sanitizes the status reports of workers, whose code may be hostile.

Code of a client may have its worker say anything. What has the right types, and is no larger than
it can be, harms nobody: whoever adds it up, shows it or compares it need not look again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, TypeGuard

LISTS: Final[Mapping[str, Mapping[str, type]]] = {
    "running": {"function": str, "seconds": float},
    "left_behind": {"function": str, "seconds": float, "phase": str},
    "principals": {"connections": int, "sessions": int},
}
"""What is said of several things, and of each of them. A float may be an int as well."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_NAMES: Final = 200
_MAX_ROWS: Final = 500
_MAX_TEXT: Final = 1000
_MAX_NUMBER: Final = 1 << 63

Report = Mapping[str, Any]


def sanitize_report(said: Report) -> dict[str, Any]:
    """The numbers in a status, and the lists, with what belongs into them."""
    numbers = (
        (name, value)
        for name, value in said.items()
        if name not in LISTS and _NAME.fullmatch(name) and is_number(value)
    )
    return dict(islice(numbers, _MAX_NAMES)) | {
        name: [
            {field: printable(each[field]) for field in fields} for each in valid_rows(said, name)
        ]
        for name, fields in LISTS.items()
        if isinstance(said.get(name), list)
    }


def valid_rows(said: Report, name: str) -> list[Report]:
    """The first few hundred of one of the `LISTS` that are what is to stand in it."""
    rows = said.get(name)
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
    """A text without what would make a terminal do something; anything else as it is."""
    if not isinstance(value, str):
        return value
    return "".join(each if each.isprintable() else "?" for each in value[:_MAX_TEXT])


def _is_of_kind(value: object, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str)
    return is_number(value) and (kind is float or isinstance(value, int))
