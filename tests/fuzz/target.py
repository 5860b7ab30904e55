"""What is given bytes, with examples to begin from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxd_protocol.errors import JaxdError


class Target(NamedTuple):
    """Something that parses.

    Attributes:
        run: is given bytes.
        seeds: bytes that it takes, to begin from.
        errors: what it may raise.
    """

    run: Callable[[bytes], object]
    seeds: Sequence[bytes]
    errors: tuple[type[Exception], ...] = (JaxdError,)
