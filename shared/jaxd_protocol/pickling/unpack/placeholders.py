"""Placeholders for objects that cannot travel: they raise when they are used."""

from __future__ import annotations

from typing import Any, NoReturn

from jaxd_protocol.errors import PackingError


class Placeholder:
    """Raises, whatever is done with it."""

    __slots__ = ("_jaxd_message",)

    def __init__(self, message: str) -> None:
        object.__setattr__(self, "_jaxd_message", message)

    def __getattr__(self, name: str) -> NoReturn:
        # hasattr() and copy look for names like __array__: they are answered with "no"
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        _refuse(self)


def _refuse(self: Placeholder, *_: Any, **__: Any) -> NoReturn:
    raise PackingError(object.__getattribute__(self, "_jaxd_message"))


_OPERATIONS = [
    "__call__",
    "__iter__",
    "__next__",
    "__len__",
    "__bool__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__contains__",
    "__setattr__",
    "__delattr__",
    "__enter__",
    "__exit__",
    "__int__",
    "__float__",
    "__index__",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__truediv__",
    "__rtruediv__",
    "__floordiv__",
    "__rfloordiv__",
    "__mod__",
    "__rmod__",
    "__pow__",
    "__rpow__",
    "__matmul__",
    "__rmatmul__",
    "__neg__",
    "__pos__",
    "__abs__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__await__",
    "__array__",
    "__jax_array__",
]
for _name in _OPERATIONS:
    setattr(Placeholder, _name, _refuse)


def make_placeholder(path: str, type_name: str, reason: str) -> Placeholder:
    """Stands for an object that was reached by `path`."""
    return Placeholder(
        f"{path} is a {type_name}, which cannot travel to the server: {reason}. Make it inside the "
        "function, or pass what it yields as an argument."
    )
