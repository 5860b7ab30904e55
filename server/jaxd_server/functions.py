"""Known functions: from the key on the wire to the unpacked function, each unpacked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from jaxd_protocol.calls import Options, fingerprint_of, function_key
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.packing import unpack
from jaxd_server.single_flight import SingleFlight

__all__ = ["Function", "FunctionSource", "Functions"]


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


class Functions:
    """The table of functions; safe from any thread."""

    def __init__(self) -> None:
        self._functions: dict[bytes, Function] = {}
        self._codes: dict[bytes, Callable[..., Any]] = {}
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
        function = self._functions.get(key)
        if function is not None:
            return function
        return self._flights.run(
            key, lambda: self._functions.get(key), lambda: self._fetch(key, source)
        )

    def _fetch(self, key: bytes, source: FunctionSource) -> Function:
        fingerprint, name, options = source.describe(key)
        if function_key(fingerprint, options) != key:
            raise ProtocolError("the client described another function than the one it called.")
        code = self._unpacking.run(
            fingerprint,
            lambda: self._codes.get(fingerprint),
            lambda: self._unpack(fingerprint, source),
        )
        function = self._functions[key] = Function(key, name, code, options)
        return function

    def _unpack(self, fingerprint: bytes, source: FunctionSource) -> Callable[..., Any]:
        data = source.code(fingerprint)
        if fingerprint_of(bytes(data)) != fingerprint:
            raise ProtocolError("the client sent other code than the fingerprint stands for.")
        function: Callable[..., Any] = unpack(data)
        self._codes[fingerprint] = function
        return function
