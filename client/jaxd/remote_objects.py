"""Objects in results that only the server has."""

from __future__ import annotations

from typing import Any

__all__ = ["RemoteObject"]


class RemoteObject:
    """A part of a result that is no data and that this process has no equal of.

    It can be passed back to the same server, alone or inside of another argument, and becomes the
    object again there. The server keeps the last few thousand of them, and none when it starts
    again; then the call that gets it raises ArgumentError.

    Attributes:
        token: by which the server knows it.
        about: what it is, for people.
        function: whose result it was part of.
    """

    __slots__ = ("about", "function", "token")

    def __init__(self, token: bytes, about: str, function: str) -> None:
        self.token = token
        self.about = about
        self.function = function

    def __eq__(self, other: object) -> bool:
        return type(other) is RemoteObject and other.token == self.token

    def __hash__(self) -> int:
        return hash(self.token)

    def __copy__(self) -> RemoteObject:
        return self

    def __deepcopy__(self, memo: Any) -> RemoteObject:
        return self

    def __reduce__(self) -> Any:
        from jaxd_protocol.pickling.names import call

        return call, ("kept_object", self.token)

    def __repr__(self) -> str:
        return f"<RemoteObject: {self.about}, on the server; from a result of {self.function}>"
