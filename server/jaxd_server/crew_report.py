"""What several workers have to say of themselves, as one report and as several.

Only what can be believed is passed on, under the name of whose worker it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd_server.belief import LISTS, believed
from jaxd_server.tenant import Tenant

__all__ = ["crew_report"]

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
            "worker": _said(worker["worker"], tenant.principal),
        }
        for tenant, worker in zip(tenants, workers, strict=True)
    ]
    sums: dict[str, Any] = {}
    for row in rows:
        for name, value in row["worker"].items():
            if name not in _OF_ONE:
                sums[name] = sums[name] + value if name in sums else value
    return {**door, "worker": sums, "workers": rows}


def _said(said: Report, principal: str) -> dict[str, Any]:
    return {
        name: [{**each, "principal": principal} for each in value] if name in LISTS else value
        for name, value in believed(said).items()
    }
