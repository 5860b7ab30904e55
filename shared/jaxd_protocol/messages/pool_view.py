"""What a client has to know of a pool, and how it asks the pool's director for it.

A pool is several servers, its *members*, that serve the same clients. Data and calls go from the
client to a member; a *director* tells clients which members there are.

**Connecting.** A director is reached as a server is: TCP with TLS, the certificate checked by its
pin (`pool://HOST:PORT#sha256=PIN` is `tls://HOST:PORT#sha256=PIN` for the socket), then the
handshake of `network.handshake` with the client's token, then the frames of `wire`. Members accept
the same tokens. The welcome of a director has the name of the pool under `POOL_IN_WELCOME`; that of
a server has not, so that a client sees where an address names the other kind. A director that is
replaced keeps address, pin and pool, and its welcome another `epoch`. Members, and the sessions
that clients have with them, do not depend on it: while it is away, clients go on with the view that
they have.

**Subscribing.** A client asks `POOL_VIEW` with `(known: int, source: str, wait_s: float)`; at first
with `(0, "", 0.0)`, then with `sequence` and `source` of the last answer. The answer comes as soon
as there is news, or after `wait_s` seconds (at most `MOST_WAIT_S`) without any; it is JSON:

    {"view": {…}, "source": "…", "more": false}      all that there is: `PoolView.from_dict`
    {"change": {…}, "source": "…", "more": false}    what has changed: `PoolView.patched`

A long change is bytes, compressed by zlib, and not text: it goes to all clients. A change without
members or spreads says that nothing has changed. With `more`, the client asks on at once and adds
up what it gets. A director that does not know the `source` (it is another one than before) answers
with a whole view. News are sent at most once in `LOAD_EVERY_S`, all at once,
and of a load only where it has changed by enough (`is_load_news`); of a member whose load alone is
new, nothing else is sent.

**Unreachable members.** A client that cannot open a connection to a member asks `POOL_UNREACHABLE`
with `(name: str, epoch: int, reason: str)`. The answer is JSON,
`{"state": "ready", "address": "tls://…", "ticket": "…"}`: how the director sees the member, which
it asks twice a second, and where it relays TCP to it for clients that have no way of their own;
empty where there is nothing to relay to. What is relayed is the TLS of client and member: the
certificate at that address is the member's, and the director reads nothing of it. Before that, the
client shows the ticket (`network.addresses.relay_greeting`); nobody else is relayed.

Other verbs are answered as a failed call is, with a `ConfigurationError` that names `pool://`.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from jaxd_protocol.errors import ConfigurationError, ProtocolError
from jaxd_protocol.messages.server_view import read_row, row_dict
from jaxd_protocol.network.addresses import Address

POOL_VIEW: Final = "pool_view"
POOL_UNREACHABLE: Final = "pool_unreachable"
"""The verbs of a director that clients ask."""

POOL_ORDER: Final = "pool_order"
"""The verb of `jaxd pool`: a word, and its arguments as JSON; over the Unix socket alone."""

POOL_IN_WELCOME: Final = "pool"

PEERS_IN_WELCOME: Final = "peers"
"""In that of a member: it gives arrays to other members (`offer`) and takes theirs (`take`)."""

MOST_WAIT_S: Final = 30.0
LOAD_EVERY_S: Final = 0.1
LOAD_SETTLES_S: Final = 1.0
"""A load that has changed by less than `is_load_news` says is told after so long."""

STATES: Final = ("starting", "ready", "draining", "lost")

_NAME: Final = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_LETTERS: Final = 64
SPREAD_DIGITS: Final = 16
_SPREAD_KEY: Final = re.compile(f"[0-9a-f]{{{SPREAD_DIGITS}}}")
_MOST_MEMBERS: Final = 10_000
_MOST_DEVICES: Final = 1024
"""Of one member: each has a weight of its own for each key."""


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A server of a pool.

    Attributes:
        name: of the member; one that is restarted keeps it.
        addresses: where it listens, as JAXD_SERVER has addresses, the best first. A `unix://` one
            is of use only on its own `machine`, and where its file can be opened; one of `tls://`
            has the pin of its certificate, unless that is checked by name.
        machine: what `base.process.machine_id` says where it runs; empty where that is not known.
        node: the name of that machine, for people.
        devices: how many it has.
        version: of what it runs, for people.
        epoch: rises each time its server is started; values of an earlier epoch are gone.
        state: ``starting``: it takes no calls yet; ``ready``; ``draining``: it answers, but is to
            be left, no new values and functions go to it; ``lost``: it does not answer the
            director.
        load: calls that it has open.
    """

    name: str = ""
    addresses: tuple[str, ...] = ()
    machine: str = ""
    node: str = ""
    devices: int = 0
    version: str = ""
    epoch: int = 0
    state: str = "starting"
    load: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return row_dict(self)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool at one moment.

    Attributes:
        pool: its name.
        sequence: rises with each change.
        members: by name.
        spreads: over how many of its first members a function is spread, by the first
            `SPREAD_DIGITS` hex digits of its key; all others over one. See `pool_routing`.
    """

    pool: str = ""
    sequence: int = 0
    members: Mapping[str, PoolMember] = field(default_factory=dict)
    spreads: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `from_dict` reads it."""
        members = {name: member.to_dict() for name, member in self.members.items()}
        head = {"pool": self.pool, "sequence": self.sequence}
        return {**head, "members": members, "spreads": dict(self.spreads)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """What `to_dict` made; what a newer director has beside it is left out.

        Raises:
            ProtocolError: when it is something else.
        """
        return cls().patched(content)

    def patched(self, change: Mapping[str, Any]) -> Self:
        """This view after a change; only the members that are in the change are made.

        Args:
            change: a merge patch (RFC 7386) of `to_dict`; null removes a member.

        Raises:
            ProtocolError: when it is something else, or has too many members.
        """
        try:
            pool, sequence = change.get("pool", self.pool), change.get("sequence", self.sequence)
            if type(pool) is not str or type(sequence) is not int or len(pool) > _NAME_LETTERS:
                raise TypeError("name or number of the view")  # noqa: TRY301  told as others are
            members = _patched(self.members, change.get("members", {}))
            spreads = _spread(self.spreads, change.get("spreads", {}))
        except (AttributeError, ConfigurationError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"what the director shows of its pool cannot be read ({error}). Install the same "
                "jaxd on both sides."
            ) from error
        return replace(self, pool=pool, sequence=sequence, members=members, spreads=spreads)


_LONG_BYTES: Final = 1 << 10
_MOST_BYTES: Final = 1 << 26


def packed(answer: Mapping[str, Any]) -> str | bytes:
    """An answer to `POOL_VIEW` as it is sent; a whole view, which goes to one client, is text."""
    text = json.dumps(answer, separators=(",", ":"))
    if "view" in answer or len(text) < _LONG_BYTES:
        return text
    return zlib.compress(text.encode())


def unpacked(answer: Any) -> Any:
    """What a director has answered, of whatever verb.

    Raises:
        RecursionError, TypeError, ValueError: when it is something else.
    """
    if type(answer) is bytes:
        unpacker = zlib.decompressobj()
        try:
            answer = unpacker.decompress(answer, _MOST_BYTES)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not unpacker.eof:
            raise ValueError("it is cut off, or too long")
    return json.loads(answer)


_STEP: Final = 8
_LOAD_ALONE: Final = frozenset({"load"})


def is_load_news(before: int, now: int) -> bool:
    """Whether a load has changed by enough to be told: by an eighth, and by one at least."""
    return abs(now - before) >= max(1, before // _STEP)


def _patched(before: Mapping[str, PoolMember], change: Mapping[str, Any]) -> dict[str, PoolMember]:
    found = dict(before)
    for name, row in change.items():
        known = found.get(name)
        if row is None:
            found.pop(name, None)
        elif known is not None and row.keys() == _LOAD_ALONE and type(row["load"]) is int:
            found[name] = replace(known, load=row["load"])  # nearly all news are such
        else:
            found[name] = _checked(name, read_row(found.get(name, PoolMember(name)), row))
    if len(found) > _MOST_MEMBERS:
        raise ValueError("too many members")
    return found


def _spread(before: Mapping[str, int], change: Mapping[str, Any]) -> Mapping[str, int]:
    if not change:
        return before
    found = {key: count for key, count in {**before, **change}.items() if count is not None}
    known = all(_SPREAD_KEY.fullmatch(key) and type(count) is int for key, count in found.items())
    if not known or len(found) > _MOST_MEMBERS:
        raise ValueError("what is spread over members")
    return found


def may_be_told(address: str) -> bool:
    """Whether a director may tell clients an address of a member."""
    parsed = Address.parse(address)
    return parsed.kind in ("unix", "tls") and not parsed.is_pool


def _checked(name: str, member: PoolMember) -> PoolMember:
    """The member, if all its texts are what they are to be.

    An address is dialled: of those that a client knows, one that starts a program, or that is not
    encrypted, is not for a director to choose.
    """
    if member.name != name or not _NAME.fullmatch(name) or member.state not in STATES:
        raise ValueError("name or state of a member")
    if not 0 <= member.devices <= _MOST_DEVICES:
        raise ValueError("devices of a member")
    if not all(map(may_be_told, member.addresses)):
        raise ValueError("an address of a member")
    return member
