"""An array that stays on the server, and those of one session."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ValueDeleted
from jaxd_protocol.messages.data_locations import call_number_of
from jaxd_protocol.messages.failures import Failure, ForwardedFailure
from jaxd_protocol.pytree import Leaf

_MAX_FAILURES: Final = 256


@dataclass(slots=True, eq=False)
class Value:
    """An array on the server.

    Attributes:
        array: jax's; perhaps still being computed.
        leaf: what it looks like in a skeleton.
        nbytes: its size.
        maker: the function that returned it, or how else it came here.
        run: the run that makes it, as long as that is not done; None when another thing has.
        copied: whether its client has the array as well, so that it must not be donated.
        made_at: `time.time()` when it came.
        holders: how many numbers and names stand for it; `ValueStore` counts them.
    """

    array: Any
    leaf: Leaf
    nbytes: int
    maker: str
    copied: bool = False
    run: weakref.ref[Any] | None = None
    made_at: float = field(default_factory=time.time)
    holders: int = 0


@dataclass(slots=True, eq=False)
class NamedValues:
    """A tree of values under a name.

    Attributes:
        skeleton: the structure of the tree.
        values: its leaves.
        until: `time.monotonic()` after which it is gone; None: never.
    """

    skeleton: bytes
    values: tuple[Value, ...]
    until: float | None


class SessionValues:
    """The values of one session. Thread-safe; use it through `ValueStore` where room is taken.

    Attributes:
        principal: whose they are.
        values: by number.
        failures: why calls have made no values, by their numbers; for calls that take them.
        ended: whether the session is over, so that nothing is taken in any more.
        nbytes: of the values; `ValueStore` counts them.
    """

    __slots__ = ("ended", "failures", "nbytes", "principal", "values")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.ended = False
        self.nbytes = 0
        self.values: dict[int, Value] = {}
        self.failures = BoundedDict[int, Failure](_MAX_FAILURES)

    def get(self, id: int) -> Value:  # noqa: A002
        """The value with that number.

        Raises:
            ForwardedFailure: what the call that was to make it has raised.
            ValueDeleted: when it is not there, or not any more.
        """
        value = self.values.get(id)
        if value is not None:
            return value
        failure = self.failures.get(call_number_of(id))
        if failure is not None:
            raise ForwardedFailure(failure)
        raise ValueDeleted(
            "an array on the server is not there any more: it was deleted, or donated to a call. "
            "Use the result of that call instead."
        )

    def get_all(self, ids: Sequence[int]) -> list[Value]:
        """Several of them.

        Raises:
            ForwardedFailure, ValueDeleted: as `get`.
        """
        found = list(map(self.values.get, ids))
        return [self.get(id_) for id_ in ids] if None in found else found  # type: ignore[return-value]
