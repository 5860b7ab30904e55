"""Accounts for the bytes of values: in total, for each principal, and in rows for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import ValuesFull
from jaxd_server.runtime.limits import Quota
from jaxd_server.values.value import Batch, NamedValues, SessionValues, Value

_MAX_SHOWN: Final = 5


def holder_rows(
    principal: str,
    names: Mapping[tuple[str, str], NamedValues],
    sessions: Iterable[SessionValues],
    used: Mapping[str, int],
    now: float,
) -> list[dict[str, Any]]:
    """One row for each name, and for each maker of a session, the largest first.

    A value under a name is in the row of that name alone, so that the rows add up.

    Args:
        principal: of the client that asks; what others hold is one row for each of them.
        names: by principal and name.
        sessions: those that hold values.
        used: bytes of each principal.
        now: seconds, as the names count them.
    """
    seen: set[int] = set()
    rows = [
        _row(who, f"named {name!r}", _fresh(named.values, seen), name, _seconds_left(named, now))
        for (who, name), named in names.items()
        if who == principal
    ]
    for owner in sessions:
        if owner.principal == principal:
            by_maker: dict[str, list[_Held]] = {}
            singles = _fresh(list(owner.values.values()), seen)
            for held in (*singles, *map(_of_batch, list(owner.batches.values()))):
                by_maker.setdefault(held.maker, []).append(held)
            rows += [_row(principal, maker, held) for maker, held in by_maker.items()]
    rows += [_others(who, nbytes) for who, nbytes in used.items() if who != principal]
    return sorted(rows, key=lambda row: -row["bytes"])


def _seconds_left(named: NamedValues, now: float) -> float | None:
    return None if named.until is None else round(named.until - now, 3)


class _Held(NamedTuple):
    """Values that one function made at one moment."""

    maker: str
    values: int
    nbytes: int
    made_at: float


def _of_batch(batch: Batch) -> _Held:
    return _Held(batch.maker, batch.count, batch.nbytes, batch.made_at)


def _fresh(values: Iterable[Value], seen: set[int]) -> list[_Held]:
    """Those that are in no row so far."""
    found = {id(value): value for value in values if id(value) not in seen}
    seen.update(found)
    return [_Held(value.maker, 1, value.nbytes, value.made_at) for value in found.values()]


def _row(
    principal: str,
    what: str,
    held: Sequence[_Held],
    name: str | None = None,
    ttl_s: float | None = None,
) -> dict[str, Any]:
    now = time.time()
    oldest = min((each.made_at for each in held), default=now)
    return {
        "principal": principal,
        "what": what,
        "name": name,
        "ttl_s": ttl_s,
        "values": sum(each.values for each in held),
        "bytes": sum(each.nbytes for each in held),
        "age_s": round(max(0.0, now - oldest), 3),
    }


def _others(principal: str, nbytes: int) -> dict[str, Any]:
    """What another principal holds: how much, and no more than that."""
    row = _row(principal, f"values of {principal}", ())
    return {**row, "values": None, "bytes": nbytes, "age_s": None}


def largest(rows: Iterable[Mapping[str, Any]]) -> str:
    """The first few rows, in words."""
    texts = [f"{row['what']} {row['bytes'] / _MIB:,.1f} MiB" for row in list(rows)[:_MAX_SHOWN]]
    return "; ".join(texts) or "none"


_MIB: Final = 1 << 20


class ValueAccounting:
    """Accounts for bytes of values. Not thread-safe: `ValueStore` holds its lock.

    Args:
        limit: bytes that all may take; 0: as many as there is room for.
        share: of this, what one principal may take.

    Attributes:
        values: bytes of values.
    """

    def __init__(self, limit: int, share: float) -> None:
        self.values = Quota(limit, share)
        self._taken = Quota(limit, share)  # by values, or promised to those that are being made

    def charge(self, principal: str, nbytes: int) -> None:
        """A principal has so many bytes more; or, below 0, fewer."""
        self.values.add(principal, nbytes)
        self._taken.add(principal, nbytes)

    def promise(self, principal: str, nbytes: int) -> None:
        """Promises so many bytes to a principal that is about to use them; or, below 0, fewer."""
        self._taken.add(principal, nbytes)

    def has(self, principal: str, nbytes: int) -> bool:
        """Whether a principal may have so many bytes more."""
        return not self.values.limit or nbytes <= self._taken.left(principal)

    def full(self, principal: str, nbytes: int, rows: Iterable[Mapping[str, Any]]) -> ValuesFull:
        """The error for a principal that may not.

        Args:
            principal: which one.
            nbytes: how many it needs.
            rows: what is held, the largest first.
        """
        values = self.values
        promised = self._taken.used - values.used
        others = f" and {promised / _MIB:,.1f} MiB are being filled" if promised else ""
        return ValuesFull(
            f"{nbytes / _MIB:,.1f} MiB more have no room on the server: its values take "
            f"{values.used / _MIB:,.1f} of {values.limit / _MIB:,.1f} MiB, yours "
            f"{values.used_by[principal] / _MIB:,.1f} of "
            f"{values.max_per_principal / _MIB:,.1f} MiB{others}. The largest: "
            f"{largest(rows)}. Let go of arrays that you do not need (del, "
            ".delete(), jaxd.forget), or start the server with a larger --value-bytes."
        )
