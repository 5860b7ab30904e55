"""Ways to choose the member for a call, by what a client knows of the pool at that moment."""

from __future__ import annotations

import random
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from math import ceil
from typing import Final, Protocol

from benchmarks.simulation.parameters import Parameters
from jaxd_protocol.network.pool_routing import choose, draw, ranked

_NONE: Final[Mapping[str, int]] = {}
_LOST: Final = 1 << 50
"""The load of a member that takes no calls: above every other."""
_FULL: Final = 1 << 40
"""What is added to that of a member that has passed a call on: above every limit."""
_KEPT: Final = 64
"""So many of each order are kept, because all of all orders would not fit into memory."""
_POINTS: Final = 100
"""Of each member on the ring of consistent hashing."""
_TRIES: Final = 4
"""Members that a client draws before it looks at all of them."""


class View:
    """What clients know: loads as the director told them last, and what each has open itself.

    Attributes:
        names: of all members.
        loads: as told; of one that is lost, more than any limit.
        total: of those that are not lost.
        own: what each client has open, by member.
        seen: the loads as each client sees them.
        news: rises when there are any.
        spreads: over how many members functions are spread, by the digits of their keys.
    """

    def __init__(self, names: Sequence[str], clients: int, parameters: Parameters) -> None:
        self.names = names
        self.loads: dict[str, int] = dict.fromkeys(names, 0)
        self.total = 0
        self.own: list[Counter[str]] = [Counter() for _ in range(clients)]
        self.seen = [SeenLoads(self.loads, own) for own in self.own]
        self.news = 0
        self.spreads: Mapping[str, int] = {}
        self._lost: set[str] = set()
        self._parameters = parameters

    @property
    def count(self) -> int:
        """Members that take calls."""
        return len(self.names) - len(self._lost)

    @property
    def limit(self) -> int:
        """Of the load of one member, as far as the loads told say."""
        share = self._parameters.bound * (self.total + 1) / max(1, self.count)
        return max(self._parameters.least, ceil(share))

    def is_lost(self, name: str) -> bool:
        """Whether it is known to take no calls."""
        return name in self._lost

    def tell(self, loads: Mapping[str, int], spreads: Mapping[str, int] = _NONE) -> None:
        """The director's news reach all clients."""
        self.spreads = spreads
        for seen in self.seen:
            seen.full.clear()
        self.total = sum(load for name, load in loads.items() if name not in self._lost)
        for name, load in loads.items():
            self.loads[name] = _LOST if name in self._lost else load
        self.news += 1

    def opened(self, client: int, name: str) -> None:
        """A client has one more call open at a member."""
        self.own[client][name] += 1

    def closed(self, client: int, name: str) -> None:
        """One less."""
        own = self.own[client]
        own[name] -= 1
        if not own[name]:
            del own[name]

    def refused(self, client: int, name: str) -> None:
        """A member has passed a call of the client on: it counts as full until there are news."""
        self.seen[client].full.add(name)

    def has_refused(self, client: int, name: str) -> bool:
        """Whether it did so since the last news."""
        return name in self.seen[client].full

    def lost(self, name: str) -> None:
        """It takes no calls."""
        self._lost.add(name)
        self.total -= self.loads[name]
        self.loads[name] = _LOST
        self.news += 1

    def ready(self, name: str) -> None:
        """It takes calls again."""
        self._lost.discard(name)
        self.loads[name] = 0
        self.news += 1


class SeenLoads(Mapping[str, int]):
    """The loads that one client sees: those told, or what it has open itself where that is more.

    Attributes:
        full: members that have passed a call of the client on.
    """

    __slots__ = ("_own", "_told", "full")

    def __init__(self, told: Mapping[str, int], own: Mapping[str, int]) -> None:
        self._told, self._own = told, own
        self.full: set[str] = set()

    def get(self, name: str, default: int = 0) -> int:  # type: ignore[override]
        """The load of a member."""
        load = max(self._told.get(name, default), self._own.get(name, 0))
        return load + _FULL if name in self.full else load

    def more(self) -> int:
        """So many calls it has open beside those that were told."""
        told = self._told
        return sum(count - told[name] for name, count in self._own.items() if count > told[name])

    def __getitem__(self, name: str) -> int:
        return self.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)


class Order(Sequence[str]):
    """What `ranked` returns; all of it is made, and kept, when the first ones do not suffice."""

    __slots__ = ("_kept", "_key", "_names")

    def __init__(self, key: bytes, names: Sequence[str]) -> None:
        self._key, self._names = key, names
        self._kept = ranked(key, names)[:_KEPT]

    def __iter__(self) -> Iterator[str]:
        yield from self._kept
        if len(self._kept) < len(self._names):
            self._kept = ranked(self._key, self._names)
            yield from islice(self._kept, _KEPT, None)

    def __getitem__(self, place: int) -> str:  # type: ignore[override]
        return self._kept[place] if place < _KEPT else next(islice(self, place, None))

    def __len__(self) -> int:
        return len(self._names)


_orders: dict[tuple[bytes, int], Order] = {}
"""By key and number of members: the same for all simulations of a process."""


def order_of(key: bytes, names: Sequence[str]) -> Order:
    """The order of a key, which a client keeps for as long as it has the function."""
    found = _orders.get((key, len(names)))
    if found is None:
        found = _orders[key, len(names)] = Order(key, names)
    return found


class Router(Protocol):
    """Chooses a member for a call."""

    def choose(self, client: int, key: bytes) -> str:
        """The name of the member."""

    def homes(self, key: bytes) -> Sequence[str]:
        """Where calls of a key go first, if that depends on the key; else none."""


class Rendezvous:
    """The product's: an order of the members for each key, and a bound of the load."""

    def __init__(self, view: View, parameters: Parameters, chance: random.Random) -> None:
        self._view, self._bound, self._least = view, parameters.bound, parameters.least
        self._chance = chance

    def choose(self, client: int, key: bytes) -> str:
        """As a client of the product does, with the order kept."""
        view, seen = self._view, self._view.seen[client]
        order = order_of(key, view.names)
        return choose(
            order,
            seen,
            self._bound,
            least=self._least,
            drawn=draw(order, view.spreads.get(key.hex(), 1), self._chance.random),
            total_load=view.total + seen.more(),
            total_devices=view.count,
        )

    def homes(self, key: bytes) -> Sequence[str]:
        """The first of its order, as many as it is spread over."""
        count = self._view.spreads.get(key.hex(), 1)
        return list(islice(order_of(key, self._view.names), count))


class ConsistentHashing:
    """A ring with points of each member; a key is the next one's, however much that has to do."""

    def __init__(self, view: View, _: Parameters, __: random.Random) -> None:
        self._view = view
        points = sorted(
            (_point(f"{name}#{number}".encode()), name)
            for name in view.names
            for number in range(_POINTS)
        )
        self._places, self._owners = zip(*points, strict=True)

    def choose(self, _: int, key: bytes) -> str:
        """The first on the ring that takes calls."""
        first = bisect(self._places, _point(key))
        for step in range(len(self._owners)):
            name: str = self._owners[(first + step) % len(self._owners)]
            if not self._view.is_lost(name):
                return name
        raise AssertionError("no member takes calls")

    def homes(self, key: bytes) -> Sequence[str]:
        """The same."""
        return [self.choose(0, key)]


def _point(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


class RoundRobin:
    """Each client takes the members in turn, each beginning somewhere else."""

    def __init__(self, view: View, _: Parameters, chance: random.Random) -> None:
        self._view = view
        self._next = [chance.randrange(len(view.names)) for _ in view.own]

    def choose(self, client: int, _: bytes) -> str:
        """The next one that takes calls."""
        while True:
            self._next[client] = (self._next[client] + 1) % len(self._view.names)
            name = self._view.names[self._next[client]]
            if not self._view.is_lost(name):
                return name

    def homes(self, _: bytes) -> Sequence[str]:
        """None."""
        return ()


class LeastLoaded:
    """A member with the fewest open calls, as far as a client knows; of several, any."""

    def __init__(self, view: View, _: Parameters, chance: random.Random) -> None:
        self._view, self._chance = view, chance
        self._news, self._least = -1, list(view.names)

    def choose(self, client: int, _: bytes) -> str:
        """One of those told to have the least, where the client has no call open itself."""
        view = self._view
        if self._news != view.news:
            self._news, fewest = view.news, min(view.loads.values())
            self._least = [name for name, load in view.loads.items() if load == fewest]
        for _try in range(_TRIES):
            name = self._chance.choice(self._least)
            if name not in view.own[client]:
                return name
        return min(view.names, key=view.seen[client].get)

    def homes(self, _: bytes) -> Sequence[str]:
        """None."""
        return ()


ROUTERS: Final[Mapping[str, Callable[[View, Parameters, random.Random], Router]]] = {
    "rendezvous, bounded": Rendezvous,
    "consistent hashing": ConsistentHashing,
    "least loaded": LeastLoaded,
    "round robin": RoundRobin,
}
