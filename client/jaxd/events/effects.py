"""The effects of one call in this process, over all of its attempts: none happens twice.

A call that is sent again prints, and calls back functions of this process, as it did before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from jaxd_protocol.errors import CallbackError

_MAX_OUTPUTS: Final = 1000
_MAX_ANSWER_BYTES: Final = 1 << 24
_HASH_BYTES: Final = 16

Answer = tuple[Any, Sequence[memoryview]]
"""What a function of this process has returned: a plain value, and buffers."""


class CallEffects:
    """The outputs and callbacks of one call.

    They are counted, and not compared in order: a program has unordered ones in any order. Used by
    the thread that reads the connection of the attempt.

    Attributes:
        is_mute: whether the call is over, and is only made again for the arrays that it returns: it
            prints nothing, and calls nothing back that it did not before.
        are_recorded: whether all answers of functions that were called back are here.
    """

    __slots__ = ("_answers", "_emitted", "_in_this_attempt", "_nbytes", "are_recorded", "is_mute")

    def __init__(self) -> None:
        # no counters, which take a dozen function calls to make: each call on arrays has these
        self._emitted: dict[tuple[str, Any], int] = {}
        self._answers: dict[bytes, list[Answer]] = {}
        self._in_this_attempt: dict[Any, int] = {}
        self._nbytes = 0
        self.are_recorded = True
        self.is_mute = False

    def __bool__(self) -> bool:
        return bool(self._emitted or self._answers)

    def begin_attempt(self) -> None:
        """The call is sent again."""
        self._in_this_attempt.clear()

    def muted(self) -> CallEffects:
        """Those of a call that is over, as it is made again."""
        effects = CallEffects()
        effects._answers, effects.is_mute = self._answers, True
        return effects

    def is_repeated_output(self, output: tuple[str, Any]) -> bool:
        """Counts an output of this attempt; whether an earlier attempt emitted it.

        Args:
            output: its kind and its content.
        """
        if self.is_mute:
            return True
        if len(self._emitted) >= _MAX_OUTPUTS and output not in self._emitted:
            return False
        number = self._in_this_attempt.get(output, 0)
        self._in_this_attempt[output] = number + 1
        if number < self._emitted.get(output, 0):
            return True
        self._emitted[output] = number + 1
        return False

    def answer(
        self, question: Sequence[Any], buffers: Sequence[memoryview], call: Callable[[], Answer]
    ) -> Answer:
        """What a function of this process returns; it is called unless an earlier attempt did.

        Args:
            question: what is to be called with what.
            buffers: the rest of it.
            call: calls it.

        Raises:
            CallbackError: when a call that is over asks for something that it did not before.
            BaseException: what the function raises.
        """
        content = hashlib.blake2b(repr(question).encode(), digest_size=_HASH_BYTES)
        for data in buffers:
            content.update(data)
        key = content.digest()
        known = self._answers.setdefault(key, [])
        number = self._in_this_attempt.get(key, 0)
        self._in_this_attempt[key] = number + 1
        if number < len(known):
            return known[number]
        if self.is_mute:
            raise CallbackError(
                "a call that is made again for its arrays calls back what it did not before. "
                "Nothing is called."
            )
        value, answered = call()
        kept = [memoryview(bytes(each)) for each in answered]
        self._nbytes += _HASH_BYTES + len(repr(value)) + sum(map(len, kept))
        if self._nbytes > _MAX_ANSWER_BYTES:
            self.are_recorded = False
        else:
            known.append((value, kept))
        return value, answered
