"""Known functions: from the key on the wire to the unpacked function, each unpacked once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from jaxd_protocol.calls import Options, fingerprint_of, function_key
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.packing import unpack
from jaxd_server.single_flight import SingleFlight

__all__ = ["Function", "FunctionSource", "Functions"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Function:
    """What a key stands for.

    Attributes:
        key: the name on the wire.
        name: what people call it.
        function: the unpacked callable.
        options: how it is to be compiled.
    """

    key: bytes
    name: str
    function: Callable[..., Any]
    options: Options


class FunctionSource(Protocol):
    """Someone who can be asked what a key stands for: the client whose call is open."""

    def describe(self, key: bytes) -> tuple[bytes, str, Options]:
        """Fingerprint, name and options."""

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
        self._codes: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()
        self._lock = threading.Lock()  # guards both tables
        self._flights: SingleFlight[bytes, Function] = SingleFlight()
        self._unpacking: SingleFlight[bytes, Callable[..., Any]] = SingleFlight()

    def __len__(self) -> int:
        return len(self._functions)

    def obtain(self, key: bytes, source: FunctionSource) -> Function:
        """The function with that key; `source` is asked only for what is not known.

        Raises:
            ProtocolError: when what the source sends does not have the key that it was asked for.
            Exception: whatever unpacking raises, such as ImportError.
        """
        known = self._find(self._functions, key)
        if known is not None:
            return known
        with source.waiting():  # what it waits for may stand behind the next message of its client
            return self._flights.run(
                key, lambda: self._find(self._functions, key), lambda: self._fetch(key, source)
            )

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
        fingerprint, name, options = source.describe(key)
        if function_key(fingerprint, options) != key:
            raise ProtocolError(
                "the client described another function than the one it called. "
                "Install the same jaxd on both sides."
            )
        code = self._unpacking.run(
            fingerprint,
            lambda: self._find(self._codes, fingerprint),
            lambda: self._unpack(fingerprint, source),
        )
        return self._keep(self._functions, key, Function(key, name, code, options))

    def _unpack(self, fingerprint: bytes, source: FunctionSource) -> Callable[..., Any]:
        data = source.code(fingerprint)
        if fingerprint_of(data) != fingerprint:
            raise ProtocolError(
                "the client sent other code than the fingerprint stands for. "
                "Install the same jaxd on both sides."
            )
        code: Callable[..., Any] = unpack(data)
        return self._keep(self._codes, fingerprint, code)
