"""Names of test cases that are the same in every process, and of rows in one test.

The processes that share a run compare what each of them has collected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def stable_id(value: object) -> str:
    """The `repr` of a parameter, without addresses, and with the members of a set in order."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__} of {', '.join(sorted(map(stable_id, value)))}"
    return _ADDRESS.sub("", repr(value))


@contextmanager
def row(name: object) -> Iterator[None]:
    """What fails within it says that it did in this row of a table."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the row {name}")
        raise
