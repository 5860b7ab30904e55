"""The kinds of reads for which a function need not be answered, as data: to be made shorter.

What is neither here nor in `OPEN` has to be answered, right to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.generator.ambient_features import AMBIENT, PACKAGES, REGISTRIES, THREADS
from tests.generator.features import MORE, PIECES_AS_FEATURES, Feature

REFUSED: Final[Mapping[str, str]] = {
    "expandvars in a function": "it reads the environment",
    "getattr environ in a function": "it does not show which variable is read",
    "whole environ in a function": "it does not show which variable is read",
    "whole environ in a module": "it does not show which variable is read",
    "getattr environ in a module": "it does not show which variable is read",
    "expandvars in a module": "it reads the environment",
    "cwd in a function": "the folder is the process's",
    "cwd in a module": "the folder is the process's",
    "open in a module": "the file is the client's",
    "logging in a function": "levels are the process's",
    "logging enabled in a function": "levels are the process's",
    "locale in a function": "it is the process's",
    "recursion limit in a function": "it is the process's",
    "decimal in a function": "the context is the thread's",
    "decimal context in a function": "the context is the thread's",
    "name in builtins": "the server has only Python's own",
    "subclasses": "what a class is a base of stands nowhere in its code",
    "abstract class": "its registry is the process's",
    "abstract class of a library": "its registry is the process's",
}
"""Kinds that the server may refuse (docs/the-key.md); a wrong answer is a fault all the same."""

_OF_SERVER: Final = "not seen: it is the server's"
OPEN: Final[Mapping[str, str]] = {
    "dispatch of a library": "forms of one's own are neither seen nor refused",
    "descriptor that becomes one of data": "no guard looks whether a descriptor has __set__",
    "classes alike": "two classes with the same content are one on the server",
    "object of a package": "the server has its own, with which it answers, and warns",
    "file exists in a function": "files are not in the key",
    "open in a function": "files are not in the key: there is a TracedReadWarning",
    "pathlib in a function": "files are not in the key",
    "child in a function": "the child has the server's environment",
    "context variable": _OF_SERVER,
    "thread local": _OF_SERVER,
    "decimal in threads": "the context of the thread in which the walk was made",
    "child in a module": "the child has the server's environment",
    "file exists in a module": "files are not in the key",
    "pathlib in a module": "files are not in the key",
    "locale in a module": _OF_SERVER,
    "logging in a module": _OF_SERVER,
    "decimal in a module": _OF_SERVER,
    "recursion limit in a module": _OF_SERVER,
}
"""Kinds that are not drawn unless `--open` asks for them: what is not right yet, and why."""

FEATURES: Final[Mapping[str, Feature]] = {
    "nothing": Feature(),
    **PIECES_AS_FEATURES,
    **MORE,
    **AMBIENT,
    **THREADS,
    **REGISTRIES,
    **PACKAGES,
}
"""By name."""
