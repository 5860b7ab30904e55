"""What a function means, as the server will know it: the seam where the fingerprint stands.

Today the fingerprint is the hash of the packed bytes. That is always right about the code (every
local function, class and module that the function reaches is in the bytes, by value) but misses
more often than it must: a moved line or a class in `__main__` gives another hash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxd.results import ResultReader
from jaxd_protocol.calls import Options, fingerprint_of, function_key
from jaxd_protocol.packing import pack
from jaxd_protocol.statics import Statics, statics_of

__all__ = ["Identity", "Spec"]


class Spec:
    """A function with options and configuration, by the key that names it on the wire.

    Attributes:
        key: sixteen bytes.
        identity: the function.
        options: packed `Options`.
    """

    __slots__ = ("__weakref__", "identity", "key", "options")

    def __init__(self, identity: Identity, options: Options) -> None:
        self.identity = identity
        self.options = options.to_bytes()
        self.key = function_key(identity.fingerprint, options)


class Identity:
    """A function, packed once, at its first call.

    Attributes:
        name: what people call it.
        code: the packed function.
        fingerprint: sixteen bytes that stand for it.
        reader: rebuilds its results, as instances of the classes that were met while packing.
        statics: its static arguments.

    Raises:
        PackingError: when it reaches something that cannot travel.
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.name = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.code = pack(function, f"function {self.name!r}")
        self.fingerprint = fingerprint_of(self.code)
        self.reader = ResultReader(self.code.classes)
        self.statics: Statics = statics_of(function, options)
