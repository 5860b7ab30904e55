"""Class methods on Python versions that do not pass the class they were looked up on.

Until 3.12 `classmethod` has what it wraps bind itself, as a persistent function does. Later ones
make a bound method by themselves: a call has its class, every other name of the function has not.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from jaxd_protocol.errors import ArgumentError

_CLASS_IS_LOST: Final = sys.version_info >= (3, 13)


def check_class_known(function: Any, args: tuple[Any, ...]) -> None:
    """Returns when what a function is asked for by name has its class, if it is a class method.

    Args:
        function: a persistent function.
        args: the arguments that it is asked with.

    Raises:
        ArgumentError: when the class is missing.
    """
    if not _CLASS_IS_LOST:
        return
    if not (args and isinstance(args[0], type)) and _is_class_method(function):
        name = function.__qualname__
        raise ArgumentError(
            f"{name} is a class method, and from Python 3.13 on nothing but a call of it says on "
            "which class it was found. Put what you ask for into a static method that takes what "
            f"it needs, or bind it yourself: vars({name.rpartition('.')[0]})["
            f"{name.rpartition('.')[2]!r}].__func__.__get__(cls)"
        )


def _is_class_method(function: Any) -> bool:
    """Whether its class has it as one; of classes that are local to a function nobody knows."""
    *path, name = str(getattr(function, "__qualname__", "?")).split(".")
    found: Any = sys.modules.get(str(getattr(function, "__module__", "?")))
    for part in (*path, name):
        found = getattr(found, "__dict__", {}).get(part)
    return isinstance(found, classmethod) and found.__func__ is function
