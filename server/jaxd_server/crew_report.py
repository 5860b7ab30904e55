"""What several workers have to say of themselves, as one report and as several.

Code of a client may have its worker say anything. So only what has the right types is passed on,
under the name of whose worker it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd_server.tenant import Tenant

__all__ = ["crew_report", "printable"]

_LISTS: Final[Mapping[str, Mapping[str, type | tuple[type, ...]]]] = {
    "running": {"function": str, "seconds": (int, float)},
    "left_behind": {"function": str, "seconds": (int, float), "phase": str},
    "principals": {"connections": int, "sessions": int},
}
"""What is said of several things, and of each of them."""

_OF_ONE: Final = frozenset({"epoch", "idle_s"})
"""Numbers that cannot be added up."""

Report = Mapping[str, Any]


def crew_report(
    door: Report, tenants: Sequence[Tenant], workers: Sequence[Report]
) -> dict[str, Any]:
    """The workers' part of a status: the sums of what they say, and a row for each.

    Args:
        door: what is known of the door, as of a worker.
        tenants: whose the workers are.
        workers: what is known of each of them.
    """
    rows = [
        {
            "principal": tenant.principal,
            "user": None if tenant.user is None else tenant.user.name,
            **worker,
            "worker": _believed(worker["worker"], tenant.principal),
        }
        for tenant, worker in zip(tenants, workers, strict=True)
    ]
    sums: dict[str, Any] = {}
    for row in rows:
        for name, value in row["worker"].items():
            if name not in _OF_ONE:
                sums[name] = sums[name] + value if name in sums else value
    return {**door, "worker": sums, "workers": rows}


def _believed(said: Report, principal: str) -> dict[str, Any]:
    """Numbers, and lists of what they are lists of."""
    numbers: dict[str, Any] = {
        name: value
        for name, value in said.items()
        if name not in _LISTS and isinstance(value, int | float)
    }
    return numbers | {
        name: [_row(each, _LISTS[name], principal) for each in said[name] if _fits(each, name)]
        for name in _LISTS
        if isinstance(said.get(name), list)
    }


def _fits(each: object, name: str) -> bool:
    return isinstance(each, dict) and all(
        isinstance(each.get(field), kind) for field, kind in _LISTS[name].items()
    )


def _row(each: Report, fields: Mapping[str, object], principal: str) -> dict[str, Any]:
    return {"principal": principal, **{field: printable(each[field]) for field in fields}}


def printable(value: Any) -> Any:
    """A text without what would make a terminal do something; anything else as it is."""
    if not isinstance(value, str):
        return value
    return "".join(each if each.isprintable() else "?" for each in value)
