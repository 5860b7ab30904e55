"""What stands on a server for an object that stays with its client, for callbacks to use there."""

from __future__ import annotations

from typing import Any, NoReturn

from jaxd_protocol.errors import CallbackError

__all__ = ["Live"]


class Live:
    """An object of the client's, or an attribute of one. Nothing but its name is here.

    Attributes:
        number: among those that are live in the walk over their function.
        names: of attributes that lead from there.
    """

    __slots__ = ("names", "number")

    def __init__(self, number: int, names: tuple[str, ...] = ()) -> None:
        self.number = number
        self.names = names

    def __getattr__(self, name: str) -> Live:
        if name.startswith("__"):
            raise AttributeError(name)
        return Live(self.number, (*self.names, name))

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Is never of use.

        Raises:
            CallbackError: always.
        """
        raise CallbackError(
            "something that the function gives to jax.debug.callback or io_callback was called "
            "while the function was traced. It stays in the client's process; have the function "
            "call a helper of another name."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Live, (self.number, self.names)
