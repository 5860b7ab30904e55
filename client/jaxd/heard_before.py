"""What calls have said while they ran, for the case that one is lost and made once more.

Then it says the same again. What each call has said is counted, and not taken in order: a program
says unordered things as it comes to them.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Any, Final

__all__ = ["HeardBefore"]

_MAX_CALLS: Final = 64
_MAX_THINGS: Final = 1000

_Call = tuple[object, int]
_Things = Counter[tuple[str, Any]]


class HeardBefore:
    """Thread-safe.

    Attributes:
        is_waiting: whether a call was lost that may be made again; each call looks here.
    """

    def __init__(self) -> None:
        self.is_waiting = False
        self.after_fork()

    def after_fork(self) -> None:
        """Forgets the calls of the parent, as the child of a fork must."""
        self._lock = threading.Lock()  # guards these
        self._said: OrderedDict[_Call, _Things] = OrderedDict()
        self._lost: OrderedDict[int, tuple[object, _Things]] = OrderedDict()
        self._expected: OrderedDict[_Call, _Things] = OrderedDict()
        self.is_waiting = False

    def was_said(self, connection: object, number: int, thing: tuple[str, Any]) -> bool:
        """Notes what a call says; whether it had said it before it was lost.

        Args:
            connection: over which the call was made.
            number: which one it is.
            thing: what kind of thing it says, and what.
        """
        name = connection, number
        with self._lock:
            said = self._said.setdefault(name, Counter())
            if len(said) < _MAX_THINGS:
                said[thing] += 1
            _limit(self._said)
            expected = self._expected.get(name)
            if not expected or not expected[thing]:
                return False
            expected[thing] -= 1
            return True

    def lost(self, call: object, connection: object, number: int) -> None:
        """The connection of a call ended before its reply."""
        with self._lock:
            self._expected.pop((connection, number), None)
            said = self._said.pop((connection, number), None)
            if said:
                self._lost[id(call)] = call, said  # which keeps the id
                self.is_waiting = True
                _limit(self._lost)

    def goes_on_as(self, call: object, repeated: object) -> None:
        """A call that was lost is made again as another one."""
        if self.is_waiting and call is not repeated:
            with self._lock:
                _, said = self._lost.pop(id(call), (None, None))
                if said:
                    self._lost[id(repeated)] = repeated, said

    def again(self, call: object, connection: object, number: int) -> None:
        """The call is made under this number."""
        with self._lock:
            _, said = self._lost.pop(id(call), (None, None))
            self.is_waiting = bool(self._lost)
            if said:
                self._expected[connection, number] = said
                _limit(self._expected)


def _limit(calls: OrderedDict[Any, Any]) -> None:
    if len(calls) > _MAX_CALLS:
        calls.popitem(last=False)
