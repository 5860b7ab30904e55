"""Settings of the process that a function reads: in the key, and carried to the server.

Variables of the environment; and where those of libraries may be, which have a module of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from types import MethodType, ModuleType
from typing import Any, Final

from jaxd_protocol.fingerprint.canonical_bytes import atom
from jaxd_protocol.fingerprint.data_model import ProcessValues, Steps
from jaxd_protocol.fingerprint.process_view import current_arguments
from jaxd_protocol.fingerprint.walk import Walk


class ReadEnvironment(MutableMapping[str, str]):
    """Replaces `os.environ` on a server.

    It has the variables that the function is seen to read, as its client has them. `os.environ` of
    the server gives the others, which has them as the client as well while a function is traced.

    Attributes:
        counted: those in the key; None: the client has none of that name.
    """

    def __init__(self, counted: Mapping[str, str | None] | None = None) -> None:
        self.counted: dict[str, str | None] = dict(counted or {})

    def __reduce__(self) -> Any:
        return ReadEnvironment, (self.counted,)

    def merge(self, other: ReadEnvironment) -> None:
        """Adds the variables of another part of the walk."""
        self.counted.update(other.counted)

    def __getitem__(self, name: str) -> str:
        found = self.counted[name] if name in self.counted else os.environ[name]
        if found is None:
            raise KeyError(name)
        return found

    def __setitem__(self, name: str, value: str) -> None:
        os.environ[name] = value

    def __delitem__(self, name: str) -> None:
        del os.environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)

    def copy(self) -> dict[str, str]:
        """All of them."""
        return os.environ.copy()

    def getenv(self, key: str, default: Any = None) -> Any:
        """Replaces `os.getenv`."""
        return self.get(key, default)


def is_environment(value: Any) -> bool:
    """Whether this is `os.environ` or `os.getenv`, or their replacement on a server."""
    return (
        value is os.environ
        or value is os.getenv
        or type(value) is ReadEnvironment
        or (type(value) is MethodType and type(value.__self__) is ReadEnvironment)
    )


def emit_from_os(walk: Walk, module: ModuleType, name: str, rest: Steps) -> bool:
    """Appends what `os.environ[…]` and the like read; False when `name` is something else."""
    if module.__name__ != "os" or name not in ("environ", "getenv"):
        return False
    value = vars(module)[name]
    walk.carry("os", name, value)
    emit_variable(walk, value, rest)
    return True


def emit_variable(walk: Walk, value: Any, steps: Steps) -> None:
    """Appends the variable that is read of `os.environ`, or by a call of `os.getenv`.

    Where it cannot be seen which one is read, that is found when the function is traced.
    """
    name = _variable_name(value, steps)
    if name is None:
        emit_environment(walk)
        return
    own = value if type(value) is ReadEnvironment else getattr(value, "__self__", os.environ)
    content = own.get(name)
    emit_value(walk, name, content)
    if own is os.environ:
        walk.guards.variable(name, content)
    _replacement(walk).counted[name] = content


def emit_environment(walk: Walk) -> None:
    """Appends that the environment is read, and not which variable."""
    walk.tag("environment")
    _replacement(walk)


def emit_value(walk: Walk, name: str, content: str | None) -> None:
    """Appends a variable of the environment; None: there is none of that name."""
    walk.tag("variable")
    walk.text(name)
    walk.write(atom(content) or b"")
    # not its value: parts are shown to others, and a variable may hold a secret
    walk.part("variable", f"environment {name}", atom(content) or b"", where="")


def emit_process(walk: Walk, values: ProcessValues) -> None:
    """Appends what the source of a module finds in the client's process: this one, or it sent it.

    A server's walk makes guards as well, and asks none.
    """
    for name, content in values.variables:
        emit_value(walk, name, content)
        walk.guards.variable(name, content)
    arguments = values.arguments
    if arguments is not None:
        walk.emit_child("global sys.argv", list(arguments))
        walk.guards.answer(lambda: current_arguments() == arguments, True)


def _variable_name(value: Any, steps: Steps) -> str | None:
    """Of the variable that is read."""
    kinds = "".join(kind for kind, _ in steps)
    if callable(value):
        return steps[0][1] if kinds == "c" else None
    if kinds[:1] in ("i", "k") or (kinds[:2] == "ac" and steps[0][1] == "get"):
        name = steps[0][1] if kinds[0] in "ik" else steps[1][1]
        return name if isinstance(name, str) else None
    return None


def _replacement(walk: Walk) -> ReadEnvironment:
    stand_ins = walk.reach.replacements
    kept: ReadEnvironment | None = stand_ins.get(id(os.environ))
    if kept is None:
        kept = stand_ins[id(os.environ)] = ReadEnvironment()
        stand_ins[id(os.getenv)] = kept.getenv
    return kept


_CONFIG_LIBRARIES: Final = ("absl.flags", "fiddle", "ml_collections", "omegaconf")
_CONFIGS: Final = "jaxd_protocol.fingerprint.values.configs"


def is_config(value: Any) -> bool:
    """Whether it is a configuration object of one of these libraries, or replaces one on a server.

    A process that has none of them does not load what takes them apart.
    """
    if _CONFIGS not in sys.modules and sys.modules.keys().isdisjoint(_CONFIG_LIBRARIES):
        return False
    from jaxd_protocol.fingerprint.values import configs

    return configs.is_config(value)
