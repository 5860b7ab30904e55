"""The kinds of reads for which a function need not be answered, as data: to be made shorter.

What is not here has to be answered, right to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.generator.ambient_features import AMBIENT, PACKAGES, REGISTRIES, THREADS
from tests.generator.features import MORE, PIECES_AS_FEATURES, Feature
from tests.generator.static_features import STATICS

REFUSED: Final[Mapping[str, str]] = {
    "whole environ in a function": "it does not show which variable is read",
    "whole environ in a module": "it does not show which variable is read",
    "child in a function": "the child has the server's environment",
    "child in a module": "the child has the server's environment",
    "decimal in a function": "the context is the thread's",
    "decimal context in a function": "the context is the thread's",
    "decimal in threads": "the context is the thread's",
    "decimal in a module": "the context is the thread's",
    "object of a package": "the server has its own",
    "name in builtins": "the server has only Python's own",
}
"""Kinds that the server may refuse (docs/the-key.md); a wrong answer is a fault all the same."""

FEATURES: Final[Mapping[str, Feature]] = {
    "nothing": Feature(),
    **PIECES_AS_FEATURES,
    **MORE,
    **STATICS,
    **AMBIENT,
    **THREADS,
    **REGISTRIES,
    **PACKAGES,
}
"""By name."""
