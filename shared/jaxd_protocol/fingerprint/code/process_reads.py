"""What the source of a module reads of its process when it runs: variables, and arguments.

A module that a function imports runs on the server, if its client has not imported it yet, and the
process there is another one. What stands as text in the source is sent with it; which other reads
are refused there, `jaxd_protocol.pickling.unpack.patched_modules` says.
"""

from __future__ import annotations

import os
import re
import sys
from types import CodeType
from typing import Final

from jaxd_protocol.fingerprint.data_model import ProcessValues

_ENVIRONMENT: Final = frozenset({"environ", "getenv"})
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def process_values(code: CodeType) -> ProcessValues:
    """The values, in this process, of what the code of a module may read.

    Every text in code that names `os.environ` or `os.getenv` may be the name of a variable.
    """
    names, texts = _names_and_texts(code)
    variables: list[tuple[str, str | None]] = []
    if not _ENVIRONMENT.isdisjoint(names | texts):
        variables = [(name, os.environ.get(name)) for name in sorted(filter(_is_variable, texts))]
    named = "argv" in names | texts
    arguments = tuple(map(str, getattr(sys, "argv", ()))) if named else None
    return ProcessValues(tuple(variables), arguments)


def _is_variable(text: str) -> bool:
    return _VARIABLE.fullmatch(text) is not None


def _names_and_texts(code: CodeType) -> tuple[set[str], set[str]]:
    """The names and the texts in a code object, nested ones included."""
    names, texts = set(code.co_names), set[str]()
    left = list(code.co_consts)
    while left:
        each = left.pop()
        if isinstance(each, str):
            texts.add(each)
        elif isinstance(each, tuple | frozenset):
            left += each
        elif isinstance(each, CodeType):
            names.update(each.co_names)
            left += each.co_consts
    return names, texts
