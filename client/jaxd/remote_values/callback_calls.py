"""What a callback asks of arrays on the server: it must not wait for what waits for the callback.

Calls on values run in the order in which they were made, and one that calls back is over when its
callbacks have returned. A call that a callback makes belongs to it, so it is in no order: it runs
at once, on arrays that are there. What would need an array that the call itself has still to make,
or one behind it, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd_protocol.errors import CallbackError

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.events.jax_callbacks import CallbackOrigin
    from jaxd.interop.handle_ranges import HandleRange
    from jaxd.request.call_request import CallRequest


CALLBACK_WAIT_S: Final = 5.0
"""How long a callback waits for another call that calls back, whose reply may be on its way."""


class Flight(Protocol):
    """A call on values that is in flight; see `PipelinedCall`."""

    call: CallRequest
    number: int
    done: bool
    is_nested: bool
    connection: ClientConnection | None

    @property
    def name(self) -> str:
        """The name of its function."""


def needed_first(call: CallRequest, flights: Sequence[Flight]) -> Iterator[Any]:
    """The calls that have to be over before one can run that is in no order.

    Args:
        call: which a callback makes.
        flights: the calls in flight, in their order.
    """
    for each in call.values:
        maker: Flight | None = each.origin.pending_call
        if maker is not None and not maker.done:
            yield maker
    if call.spec.donates:  # others may still have to read what it takes for good
        for flight in flights:
            if any(_overlap(own, other) for own in call.values for other in flight.call.values):
                yield flight


def _overlap(one: HandleRange, other: HandleRange) -> bool:
    """Whether two calls take one array."""
    return (
        one.origin is other.origin
        and one.numbers.start < other.numbers.stop
        and other.numbers.start < one.numbers.stop
    )


def waits_behind(flight: Flight, flights: Sequence[Flight], origin: Any) -> Any:
    """The call that is, or is before, `flight`, and cannot end before a callback has returned.

    None: there is none, as far as is known here.

    Args:
        flight: what is waited for.
        flights: the calls in flight, in their order.
        origin: the call whose callback waits, see `CallbackOrigin`.
    """
    if flight.is_nested:
        return None  # it waits for no other
    before = [one for one in flights if not one.is_nested and one.number <= flight.number]
    if any(one is origin for one in flights):  # calls before it have run
        return origin if any(one is origin for one in before) else None
    return next((one for one in before if _takes_turns(one, origin)), None)


def _takes_turns(flight: Flight, origin: CallbackOrigin) -> bool:
    """Whether two calls have callbacks on one worker, which runs one such call at a time."""
    here, there = flight.connection, origin.connection
    is_same = here is not None and there is not None and here.worker == there.worker
    return is_same and not flight.done and flight.call.spec.snapshot.calls_back


def circle_error(origin: CallbackOrigin, flight: Flight) -> CallbackError:
    """The error of a callback that waits for what waits for it.

    Args:
        origin: the call whose callback waits.
        flight: what it waits for.
    """
    return CallbackError(
        f"a function that {origin.call.spec.snapshot.name} has called back needs an array on the "
        f"server that {flight.name} makes or takes, which cannot be over before that function has "
        "returned: one would wait for the other. Give it the data as an argument of the callback, "
        "as in jax.debug.callback(f, x), or use the array after the call has returned."
    )
