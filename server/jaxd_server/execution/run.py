"""One call on one executable: dispatched, so that the device works, and delivered when it is done.

In between the next call can be dispatched; jax's arrays are there before their content is.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final

from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import (
    EVERYTHING,
    NOTHING,
    VALUE,
    Row,
    Stay,
    first_id,
    leaves_of_kinds,
    pack_ids,
    pack_numbers,
)
from jaxd_protocol.pytree import Leaf
from jaxd_server.codec.results import ResultForm, Staying, pack_result, staying, wait_for
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.execution.call import Call, Reply
from jaxd_server.values.references import Holdings
from jaxd_server.values.value import Value

_NO_EVENT: Final = threading.Event()
"""For runs that take nothing of others that are not done: making an event takes a microsecond."""

_MAX_STAYS: Final = 16


class Run:
    """A call on its executable.

    Args:
        call: the request.
        executable: what answers it.
        leaves: the arrays that the executable takes.

    Attributes:
        leaves: its arguments, until it is delivered.
        results: what it returns, once it is dispatched.
        taker: a later run that was given what this one returns, while this one was not done.
        dispatched: set once it is dispatched, of one that takes what others return.
    """

    __slots__ = (
        "__weakref__",
        "_ids",
        "_staying",
        "call",
        "dispatched",
        "executable",
        "leaves",
        "results",
        "taker",
    )

    def __init__(
        self,
        call: Call,
        executable: Executable,
        leaves: Sequence[Any],
    ) -> None:
        self.call = call
        self.executable = executable
        self.leaves = leaves
        self._ids: tuple[int, ...] = ()
        self.results: Sequence[Any] = ()
        self.taker: Run | None = None
        self.dispatched = _NO_EVENT
        self._staying = self._find_staying()

    def dispatch(self) -> None:
        """Starts it; values that it makes and takes are in their place from now on.

        Raises:
            ValuesFull: when there is no room for what is to stay; nothing has happened then.
            Exception: what jax raises.
        """
        kept, holdings = self._staying, self.call.holdings
        if kept is None or not kept.kept or holdings is None:
            self._start()
        else:
            with holdings.values.room(holdings.own, kept.nbytes, self.call.given.values()):
                self._start()
                self._keep(kept.kept, holdings)

    def _start(self) -> None:
        self._announce()
        try:
            self.results = self.executable(self.leaves)
        finally:
            self.dispatched.set()
        self.give_up()

    def _announce(self) -> None:
        """Registers this run as consumer of results of runs that are not delivered."""
        if self.call.holdings is None:
            return
        values = self.call.holdings.own.values
        taken = map(values.get, self.call.given.values())
        refs = {id(value.run): value.run for value in taken if value is not None}.values()
        makers = {run for ref in refs if ref is not None and (run := ref())}
        for maker in makers:
            if self.dispatched is _NO_EVENT:
                self.dispatched = threading.Event()
            maker.taker = self

    def _find_staying(self) -> Staying | None:
        """What stays of the result; found once for all calls that take the same from the server."""
        call, stay = self.call, self.call.stay
        if stay is None:
            return None
        rows: Sequence[Row] = ()
        if stay.above == EVERYTHING and call.elsewhere:
            rows = call.known_rows()
        taken = leaves_of_kinds(rows, (VALUE,))
        key = (stay.above, stay.home, taken, call.skeleton)
        found = self.executable.stays.get(key)
        if found is None:
            found = staying(self.executable.form.layout, stay, self._taken_leaves(stay, taken))
            if len(self.executable.stays) < _MAX_STAYS:
                self.executable.stays[key] = found
        return found

    def _taken_leaves(self, stay: Stay, values: Sequence[int]) -> list[Leaf]:
        """What the arrays look like that may be the state of a loop."""
        leaves = self.call.layout.leaves if self.call.layout else ()
        if stay.above == EVERYTHING:
            return [leaves[number] for number in values]
        return [] if stay.above == NOTHING else [leaf for leaf in leaves if leaf.tag in "AK"]

    def _keep(self, kept: Iterable[tuple[int, int]], holdings: Holdings) -> None:
        """Makes values of some results, of which the numbers and bytes are given."""
        stay, form, leaves = (
            self.call.stay,
            self.executable.form,
            self.executable.form.layout.leaves,
        )
        assert stay is not None
        first, name = first_id(stay.number), self.executable.name
        here, now = weakref.ref(self), time.time()
        made = {
            first + number: Value(
                self.results[form.order[number]], leaves[number], size, name, False, here, now
            )
            for number, size in kept
        }
        if self._ids:  # dispatched again: what the client let go of meanwhile does not come back
            made = {number: made[number] for number in self._ids if number in holdings.own.values}
        self._ids = tuple(made)
        holdings.values.add(holdings.own, made)

    def give_up(self) -> None:
        """Takes the values that the call was given for good out of the session."""
        call = self.call
        if call.given and call.holdings is not None:
            call.holdings.values.drop(call.holdings.own, call.given.values())
            call.given_up = tuple(call.given)

    def deliver(self) -> Reply:
        """The reply, once the device is done.

        Raises:
            Exception: what jax raises when the computation failed.
        """
        value, buffers = self._delivered()
        self.leaves = ()  # free from now on, not only when a slow client has read the reply
        if self.call.not_kept:
            told = value if self._staying else (*value, b"", b"")
            return (*told, pack_ids(self.call.not_kept)), buffers
        return value, buffers

    def _delivered(self) -> Reply:
        kept = self._staying
        if kept is None:
            return self.call.deliver(self.results, self.executable)
        form = self.executable.form
        if kept.kept:
            self._wait()
        blob, buffers, gone = pack_result(self.results, form, kept.home, kept.placement)
        away = pack_numbers(sorted((*kept.away, *gone))) if gone else kept.told
        given_up = pack_numbers(self.call.given_up)
        return (OK, self._told(form), blob, given_up, away), buffers

    def _wait(self) -> None:
        """Returns when the device is done: only then can what the call has read be used again.

        When a later call has taken all results, it is done when that one is.
        """
        run: Run | None = self
        while run is not None and not wait_for(run.likely_left()):
            run = run.taker
            if run is not None:
                run.dispatched.wait()

    def likely_left(self) -> Iterable[Any]:
        """What it returns; first what comes home, which no later call takes in a loop."""
        results, order = self.results, self.executable.form.order
        home = self._staying.home if self._staying and results else ()  # it may have been undone
        return itertools.chain((results[order[number]] for number in home), results)

    def _told(self, form: ResultForm) -> bytes:
        """The skeleton of the result; nothing when the client expects just this one."""
        stay = self.call.stay
        assert stay is not None
        return b"" if stay.knows and stay.knows == form.hash else form.skeleton

    def undo(self) -> None:
        """Takes back the values that a call made which then failed."""
        if self._ids and self.call.holdings is not None:
            self.call.holdings.values.drop(self.call.holdings.own, self._ids)
        self.results = ()
