"""The stand-in on a server for an object that stays with its client, for callbacks.

And what callbacks are not given: functions, which they could call.
"""

from __future__ import annotations

from typing import Any, NoReturn

from jaxd_protocol.errors import CallbackError
from jaxd_protocol.packages.installed import SERVER_PACKAGES


class ClientObject:
    """An object of the client's, or an attribute of one. Holds only its number and names.

    Attributes:
        number: among those that the walk over their function found to be called back only, or of
            an owner among those that `callbacks=` lists.
        names: of attributes that lead from there.
        listed: whether `callbacks=` lists it, or a method of it.
    """

    __slots__ = ("listed", "names", "number")

    def __init__(self, number: int, names: tuple[str, ...] = (), listed: bool = False) -> None:
        self.number = number
        self.names = names
        self.listed = listed

    def __getattr__(self, name: str) -> ClientObject:
        if name.startswith("__"):
            raise AttributeError(name)
        return ClientObject(self.number, (*self.names, name), self.listed)

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
        return ClientObject, (self.number, self.names, self.listed)


def holds_function(value: Any) -> bool:
    """Whether something is a function, method, partial or class, or a plain container of one.

    An object of any other class may have a `__call__`, as models have.
    """
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_function, value))
    home = str(type(value).__module__).partition(".")[0]
    is_functions = home in SERVER_PACKAGES or type(value) is ClientObject
    return callable(value) and (isinstance(value, type) or is_functions)
