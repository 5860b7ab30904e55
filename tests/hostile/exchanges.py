"""What a hostile server says to one thing that its client asks for, and how that is kept."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxd_protocol.pytree import dump_literal, load_literal


class Step(NamedTuple):
    """One message of the server's.

    Attributes:
        verb: `event`, a question's verb, or `reply`.
        args: plain values; None stands for the number of the client's request.
        buffers: what travels beside them.
    """

    verb: str
    args: Any
    buffers: tuple[bytes, ...] = ()


class Exchange(NamedTuple):
    """What a server says to one thing that a client asks for.

    Attributes:
        act: what the client is told to do.
        name: of the function with which it does that.
        steps: what is said, the reply last.
    """

    act: str
    name: str
    steps: tuple[Step, ...]

    def to_bytes(self) -> bytes:
        """As plain values, to be kept."""
        return dump_literal((self.act, self.name, tuple(map(tuple, self.steps))))


def read_exchange(data: bytes) -> Exchange:
    """What `to_bytes` wrote."""
    act, name, steps = load_literal(data, 0)[0]
    return Exchange(act, name, tuple(Step(*each) for each in steps))
