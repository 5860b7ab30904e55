"""Known functions: from the key on the wire to the unpacked function, each unpacked once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from jaxd_protocol.calls import Options, function_key
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.meanings import Meaning
from jaxd_server.arrivals import Arrival, receive
from jaxd_server.single_flight import SingleFlight
from jaxd_server.skew import Difference, compare, refuse_missing

__all__ = ["Described", "Function", "FunctionSource", "Functions"]

T = TypeVar("T")


class Described(NamedTuple):
    """What a client says of a key.

    Attributes:
        fingerprint: what stands for the code.
        name: what people call the function.
        options: how it is to be compiled.
        meaning: what the fingerprint was made of; None from a client that names functions by
            their bytes.
    """

    fingerprint: bytes
    name: str
    options: Options
    meaning: Meaning | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """What a key stands for.

    Attributes:
        key: the name on the wire; one of its own for a function whose fingerprint is in doubt.
        described: what its client says of it.
        arrival: the unpacked callable.
        differences: packages of its client that are others here.
    """

    key: bytes
    described: Described
    arrival: Arrival
    differences: tuple[Difference, ...] = ()

    @property
    def name(self) -> str:
        """What people call it."""
        return self.described.name

    @property
    def options(self) -> Options:
        """How it is to be compiled."""
        return self.described.options

    @property
    def function(self) -> Callable[..., Any]:
        """The unpacked callable."""
        return self.arrival.function


class FunctionSource(Protocol):
    """Someone who can be asked what a key stands for: the client whose call is open."""

    @property
    def owner(self) -> bytes:
        """Whose functions these are, when they must not be anybody else's."""

    def describe(self, key: bytes) -> Described:
        """What a key stands for."""

    def code(self, fingerprint: bytes) -> bytes | memoryview:
        """The packed function."""

    def waiting(self) -> AbstractContextManager[None]:
        """Within it the call waits for an answer of its client, or of another call's client."""


class Functions:
    """The functions that were asked for last; safe from any thread.

    One that is forgotten is asked for again. Its executables do not need this table.

    Args:
        limit: how many to keep.
    """

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._functions: OrderedDict[bytes, Function] = OrderedDict()
        self._arrivals: OrderedDict[bytes, Arrival] = OrderedDict()
        self._lock = threading.Lock()  # guards both tables
        self._flights: SingleFlight[bytes, Function] = SingleFlight()
        self._receiving: SingleFlight[bytes, tuple[bytes, Arrival]] = SingleFlight()

    def __len__(self) -> int:
        return len(self._functions)

    def obtain(self, key: bytes, source: FunctionSource) -> Function:
        """The function with that key; `source` is asked only for what is not known.

        Raises:
            ProtocolError: when what the source sends does not have the key that it was asked for.
            MissingPackage: when it needs a package that is not installed here.
            Exception: whatever unpacking raises, such as ImportError.
        """
        known = self._known(key, source)
        if known is not None:
            return known
        with source.waiting():  # what it waits for may stand behind the next message of its client
            return self._flights.run(
                _private(key, source.owner),
                lambda: self._known(key, source),
                lambda: self._fetch(key, source),
            )

    def _known(self, key: bytes, source: FunctionSource) -> Function | None:
        found = self._find(self._functions, key)
        return found or self._find(self._functions, _private(key, source.owner))

    def _find(self, table: OrderedDict[bytes, T], name: bytes) -> T | None:
        with self._lock:
            found = table.get(name)
            if found is not None:
                table.move_to_end(name)
            return found

    def _keep(self, table: OrderedDict[bytes, T], name: bytes, value: T) -> T:
        with self._lock:
            table[name] = value
            if len(table) > self._limit:
                table.popitem(last=False)
        return value

    def _fetch(self, key: bytes, source: FunctionSource) -> Function:
        described = source.describe(key)
        if function_key(described.fingerprint, described.options) != key:
            raise ProtocolError(
                "the client described another function than the one it called. "
                "Install the same jaxd on both sides."
            )
        meaning = described.meaning
        differences = compare(described.name, meaning.packages if meaning else {})
        refuse_missing(differences)  # before unpacking stumbles over it
        arrival = self._arrival(described, source)
        if arrival.doubt is not None:
            key = _private(key, source.owner)
        return self._keep(self._functions, key, Function(key, described, arrival, differences))

    def _arrival(self, described: Described, source: FunctionSource) -> Arrival:
        """The code; asked for once, however many ask, unless it is in doubt."""
        name = described.fingerprint
        known = self._find(self._arrivals, name)
        if known is not None:
            return known
        owner, arrival = self._receiving.run(
            name, lambda: None, lambda: self._receive(described, source)
        )
        if arrival.doubt is not None and owner != source.owner:
            _, arrival = self._receive(described, source)  # ours may be right
        return arrival

    def _receive(self, described: Described, source: FunctionSource) -> tuple[bytes, Arrival]:
        fingerprint = described.fingerprint
        known = self._find(self._arrivals, fingerprint)
        if known is not None:  # while this one waited for its turn
            return source.owner, known
        data = source.code(fingerprint)
        arrival = receive(described.name, described.meaning, fingerprint, data)
        if arrival.doubt is None:
            self._keep(self._arrivals, fingerprint, arrival)
        return source.owner, arrival


def _private(key: bytes, owner: bytes) -> bytes:
    """The key of a function that only one client may call by it."""
    return hashlib.blake2b(key + owner, digest_size=16).digest()
