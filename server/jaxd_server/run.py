"""One call on one executable: dispatched, so that the device works, and delivered when it is done.

In between the next call can be dispatched; jax's arrays are there before their content is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from jaxd_protocol.calls import OK
from jaxd_protocol.elsewhere import (
    EVERYTHING,
    NOTHING,
    VALUE,
    Row,
    Stay,
    first_id,
    pack_ids,
    pack_numbers,
)
from jaxd_protocol.trees import Leaf
from jaxd_server.call import Call
from jaxd_server.executable import Executable
from jaxd_server.replies import Reply
from jaxd_server.result_forms import pack_result, wait_for
from jaxd_server.staying import Staying, staying
from jaxd_server.values import Value

__all__ = ["Run"]

_MAX_STAYS: Final = 16
_MAX_FORMS: Final = 1024


class Run:
    """A call on its executable.

    Args:
        call: the request.
        executable: what answers it.
        leaves: the arrays that the executable takes.
        donated: numbers of the call's leaves that it gives up.
    """

    __slots__ = ("_donated", "_ids", "_results", "_staying", "call", "executable", "leaves")

    def __init__(
        self,
        call: Call,
        executable: Executable,
        leaves: Sequence[Any],
        donated: Collection[int] = (),
    ) -> None:
        self.call = call
        self.executable = executable
        self.leaves = leaves
        self._donated = donated
        self._ids: tuple[int, ...] = ()
        self._results: Sequence[Any] = ()
        self._staying = self._find_staying()

    def dispatch(self) -> None:
        """Starts it; values that it makes and takes are in their place from now on.

        Raises:
            ValuesFull: when there is no room for what is to stay; nothing has happened then.
            Exception: what jax raises.
        """
        kept = self._staying
        if kept is not None and kept.kept and self.call.holdings is not None:
            holdings = self.call.holdings
            taken = (row.a for row in self._taken())
            holdings.values.check_room(holdings.own, kept.nbytes, taken)
        self._results = self.executable(self.leaves)
        if kept is not None:
            self._settle(kept)

    def _find_staying(self) -> Staying | None:
        """What stays of the result; found once for all calls that take the same from the server."""
        call, stay = self.call, self.call.stay
        if stay is None:
            return None
        rows: Sequence[Row] = ()
        if stay.above == EVERYTHING and call.elsewhere:
            rows = call.known_rows()
        taken = tuple(row.leaf for row in rows if row.kind == VALUE)
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

    def _settle(self, kept: Staying) -> None:
        call, form, holdings = self.call, self.executable.form, self.call.holdings
        assert call.stay is not None
        assert holdings is not None
        self.give_up()
        if not kept.kept:
            return
        first, name, leaves = first_id(call.stay.number), self.executable.name, form.layout.leaves
        made = {
            first + number: Value(self._results[form.order[number]], leaves[number], size, name)
            for number, size in kept.kept
        }
        if self._ids:  # dispatched again: what the client let go of meanwhile does not come back
            made = {number: made[number] for number in self._ids if number in holdings.own.values}
        self._ids = tuple(made)
        holdings.values.add(holdings.own, made)

    def _taken(self) -> Iterator[Row]:
        """The values that the call was given for good."""
        if self._donated and self.call.elsewhere:
            for row in self.call.known_rows():
                if row.kind == VALUE and row.leaf in self._donated and not self._is_copy(row.a):
                    yield row

    def _is_copy(self, id: int) -> bool:  # noqa: A002
        """Whether the client has the array as well, and the call was given another copy."""
        holdings = self.call.holdings
        value = None if holdings is None else holdings.own.values.get(id)
        return value is not None and value.copied

    def give_up(self) -> None:
        """Takes the values that the call was given for good out of the session."""
        call, rows = self.call, list(self._taken())
        if rows and call.holdings is not None:
            call.holdings.values.drop(call.holdings.own, [row.a for row in rows])
            call.given_up = tuple(row.leaf for row in rows)

    def deliver(self) -> Reply:
        """The reply, once the device is done.

        Raises:
            Exception: what jax raises when the computation failed.
        """
        value, buffers = self._delivered()
        if self.call.not_kept:
            told = value if self._staying else (*value, b"", b"")
            return (*told, pack_ids(self.call.not_kept)), buffers
        return value, buffers

    def _delivered(self) -> Reply:
        kept = self._staying
        if kept is None:
            return self.call.deliver(self._results, self.executable)
        form = self.executable.form
        if kept.kept:
            wait_for(self._results)
        blob, buffers = pack_result(self._results, form, kept.placement)
        given_up = pack_numbers(self.call.given_up)
        return (OK, self._told(form.skeleton), blob, given_up, kept.away), buffers

    def _told(self, skeleton: bytes) -> bytes:
        """The skeleton of the result; nothing when the client has just this one."""
        call = self.call
        if call.shape is None:
            return skeleton
        name, forms = (call.key, call.shape), call.session.forms
        if call.knows_form and forms.get(name) is skeleton:
            return b""
        if len(forms) >= _MAX_FORMS:
            forms.clear()
        forms[name] = skeleton
        return skeleton

    def undo(self) -> None:
        """Takes back the values that a call made which then failed."""
        if self._ids and self.call.holdings is not None:
            self.call.holdings.values.drop(self.call.holdings.own, self._ids)
        self._results = ()
