"""Who holds how much of the values of a server, in rows for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jaxd_server.value import Named, Value, ValuesOfSession

__all__ = ["holder_rows", "largest"]

_SHOWN: Final = 5
_MIB: Final = 1 << 20


def holder_rows(
    principal: str,
    names: Mapping[tuple[str, str], Named],
    sessions: Iterable[ValuesOfSession],
    used: Mapping[str, int],
    now: float,
) -> list[dict[str, Any]]:
    """One row for each name, and for each maker of a session, the largest first.

    A value under a name is in the row of that name alone, so that the rows add up.

    Args:
        principal: who asks; what others hold is one row for each of them.
        names: by principal and name.
        sessions: those that hold values.
        used: bytes of each principal.
        now: seconds, as the names count them.
    """
    seen: set[int] = set()
    rows = []
    for (who, name), named in names.items():
        if who == principal:
            left = None if named.until is None else round(named.until - now, 3)
            rows.append(_row(who, f"named {name!r}", _fresh(named.values, seen), name, left))
    for owner in sessions:
        if owner.principal == principal:
            by_maker: dict[str, list[Value]] = {}
            for value in _fresh(owner.values.values(), seen):
                by_maker.setdefault(value.maker, []).append(value)
            rows += [_row(principal, maker, values) for maker, values in by_maker.items()]
    rows += [_others(who, nbytes) for who, nbytes in used.items() if who != principal]
    return sorted(rows, key=lambda row: -row["bytes"])


def _fresh(values: Iterable[Value], seen: set[int]) -> list[Value]:
    """Those that are in no row so far."""
    found = {id(value): value for value in values if id(value) not in seen}
    seen.update(found)
    return list(found.values())


def _row(
    principal: str,
    what: str,
    values: Sequence[Value],
    name: str | None = None,
    ttl_s: float | None = None,
) -> dict[str, Any]:
    now = time.time()
    oldest = min((value.made_at for value in values), default=now)
    return {
        "principal": principal,
        "what": what,
        "name": name,
        "ttl_s": ttl_s,
        "values": len(values),
        "bytes": sum(value.nbytes for value in values),
        "age_s": round(max(0.0, now - oldest), 3),
    }


def _others(principal: str, nbytes: int) -> dict[str, Any]:
    """What somebody else holds: how much, and no more than that."""
    return {
        "principal": principal,
        "what": f"values of {principal}",
        "name": None,
        "ttl_s": None,
        "values": None,
        "bytes": nbytes,
        "age_s": None,
    }


def largest(rows: Iterable[Mapping[str, Any]]) -> str:
    """The first few rows, in words."""
    told = [f"{row['what']} {row['bytes'] / _MIB:,.1f} MiB" for row in list(rows)[:_SHOWN]]
    return "; ".join(told) or "none"
