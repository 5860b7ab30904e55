"""The effects of one call in this process, over all of its attempts: none happens twice.

A call that is sent again prints, and calls back functions of this process, as it did before.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from jaxd_protocol.errors import CallbackError

_MAX_OUTPUTS: Final = 100_000
_MAX_ANSWER_BYTES: Final = 1 << 20
_MAX_ASKED: Final = 4096
_MOST_AHEAD: Final = 256
"""So many questions may come before one that was asked before them, by another thread."""
_HASH_BYTES: Final = 16

Answer = tuple[Any, Sequence[memoryview]]
"""What a function of this process has returned: a plain value, and buffers."""


class AnswerRoom(Protocol):
    """Where the bytes of answers are counted."""

    def take(self, nbytes: int) -> bool:
        """Counts so many more, if they have room; whether they have."""

    def free(self, nbytes: int) -> None:
        """Counts them no longer; also called during garbage collection."""


class CallEffects:
    """The outputs and callbacks of one call.

    They are counted, and not compared in order: a program has unordered ones in any order. Used by
    the thread that reads the connection of the attempt.

    Attributes:
        is_mute: whether the call is over, and is only made again for the arrays that it returns: it
            prints nothing, and calls nothing back that it did not before.
        are_recorded: whether all answers of functions that were called back are here.
    """

    __slots__ = (
        *("_answers", "_asked", "_attempt", "_emitted", "_full_in", "_in_this_attempt", "_lock"),
        *("_room", "are_recorded", "is_mute"),
    )

    def __init__(self) -> None:
        # no counters, which take a dozen function calls to make: each call on arrays has these
        self._emitted: dict[int, int] = {}
        self._answers: _Answers | None = None
        self._asked: _Asked | None = None
        self._room: AnswerRoom | None = None
        self._lock = threading.Lock()  # guards the answers: an attempt may outlive its connection
        self._in_this_attempt: dict[Any, int] = {}
        self._attempt = self._full_in = 0
        self.are_recorded = True
        self.is_mute = False

    def __bool__(self) -> bool:
        return bool(self._emitted or self._answers or not self.are_recorded)

    def begin_attempt(self) -> None:
        """The call is sent again."""
        with self._lock:
            self._attempt += 1
            self._in_this_attempt.clear()
            self._asked = None  # another run of the program counts from the start

    def keep_in(self, room: AnswerRoom) -> None:
        """Counts the answers of its functions there as long as they are kept.

        Where they have no room, they are not kept.
        """
        with self._lock:
            self._room = room
            if self._answers is not None and not self._answers.count_in(room):
                self._forget_answers()

    def _forget_answers(self) -> None:
        """They have no room: not all of them are here from now on. The lock is held."""
        self._full_in = self._attempt if self.are_recorded else self._full_in
        self.are_recorded, self._answers = False, None

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
        key = hash(output)
        if len(self._emitted) >= _MAX_OUTPUTS and key not in self._emitted:
            return False
        number = self._in_this_attempt.get(key, 0)
        self._in_this_attempt[key] = number + 1
        if number < self._emitted.get(key, 0):
            return True
        self._emitted[key] = number + 1
        return False

    def answer(
        self,
        question: Sequence[Any],
        buffers: Sequence[memoryview],
        call: Callable[[], Answer],
        place: int = -1,
        *,
        is_recorded: bool = True,
    ) -> Answer:
        """What a function of this process returns; it is called unless an earlier attempt did.

        Args:
            question: what is to be called with what.
            buffers: the rest of it.
            call: calls it.
            place: how many the program has asked for before; another question has another place,
                and one that is asked again over the next connection has the same. -1: this one is
                not asked again.
            is_recorded: whether the call may be made again; else only what has no answer is asked
                again.

        Raises:
            CallbackError: when a call that is over asks for something that it did not before, and
                when the answer was too large to be kept.
            BaseException: what the function raises.
        """
        with self._lock:
            if not is_recorded:
                self.are_recorded, self._full_in = False, self._attempt
            one = self._asked_before(place)
            is_new = one is None
            if one is None:
                is_new, one = self._of_content(question, buffers)
                self._note_asked(place, one)
        return self._called(one, call) if is_new else one.answer()

    def _asked_before(self, place: int) -> _Call | None:
        """The call of a function for the question of that place. The lock is held."""
        return None if place < 0 or self._asked is None else self._asked.find(place)

    def _note_asked(self, place: int, one: _Call) -> None:
        if place >= 0:
            self._asked = self._asked or _Asked()
            self._asked.add(place, one)

    def _of_content(
        self, question: Sequence[Any], buffers: Sequence[memoryview]
    ) -> tuple[bool, _Call]:
        """The call of a function for a question that was not asked in this attempt, if it is new.

        The lock is held.
        """
        if not self.are_recorded and self._attempt == self._full_in:
            return True, _Call()  # which no other attempt asks for
        content = hashlib.blake2b(repr(question).encode(), digest_size=_HASH_BYTES)
        for data in buffers:
            content.update(data)
        target = hash(question[0]) if question else 0
        is_new, number, known = self._place(content.digest(), ("target", target))
        if number >= len(known):
            raise CallbackError(
                "a call that is made again for its arrays calls back what it did not before. "
                "Nothing is called."
            )
        return is_new, known[number]

    def _place(self, key: bytes, target: tuple[str, int]) -> tuple[bool, int, list[_Call]]:
        """Whether a function is to be called for this question, and its place. The lock is held.

        Raises:
            CallbackError: when answers are not here, or the question is new, and the program has
                not asked so far what it had asked the same function before: it does something
                else this time, as on a GPU in the last bits, and would have those effects twice.
        """
        if not self.are_recorded:
            raise _too_large()
        if self._answers is None:
            self._answers = _Answers()
            if self._room is not None:
                self._answers.count_in(self._room)
        known = self._answers.calls.setdefault(key, [])
        number = self._in_this_attempt.get(key, 0)
        self._in_this_attempt[key] = number + 1
        is_new = number >= len(known)
        asked = self._in_this_attempt.get(target, 0)
        self._in_this_attempt[target] = asked + 1
        if is_new and not self.is_mute:
            if asked < self._answers.of_target.get(target, 0):
                raise _differs()
            self._answers.of_target[target] = asked + 1
            known.append(_Call())
        return is_new, number, known

    def _called(self, one: _Call, call: Callable[[], Answer]) -> Answer:
        try:
            value, data = call()
        except BaseException as error:
            one.future.set_exception(error)
            raise
        nbytes = _HASH_BYTES + len(repr(value)) + sum(map(len, data))
        with self._lock:
            is_kept = self._answers is not None and self._answers.add(nbytes)
            if not is_kept:
                self._forget_answers()
            asked = self._asked
        if is_kept or (asked is not None and nbytes <= _MAX_ANSWER_BYTES):
            one.future.set_result((value, [memoryview(bytes(each)) for each in data]))
        else:
            one.future.set_exception(_too_large())
        if asked is not None:
            with self._lock:
                asked.make_room(one, nbytes)
        return value, data


class _Answers:
    """What functions have returned for one call, by question."""

    __slots__ = ("_room", "calls", "nbytes", "of_target")

    def __init__(self) -> None:
        self.calls: dict[bytes, list[_Call]] = {}
        self.of_target: dict[tuple[str, int], int] = {}  # how many of them
        self.nbytes = 0
        self._room: AnswerRoom | None = None

    def __bool__(self) -> bool:
        return bool(self.calls)

    def __del__(self) -> None:
        if self._room is not None:
            self._room.free(self.nbytes)

    def count_in(self, room: AnswerRoom) -> bool:
        """Counts them there from now on; whether they have room."""
        has_room = room.take(self.nbytes)
        if has_room:
            self._room = room
        return has_room

    def add(self, nbytes: int) -> bool:
        """Counts one more; whether it is to be kept."""
        if self.nbytes + nbytes > _MAX_ANSWER_BYTES:
            return False
        if self._room is not None and not self._room.take(nbytes):
            return False
        self.nbytes += nbytes
        return True


class _Asked:
    """The questions of one run of a program, by place: the server may ask once more for the last.

    Of those that have an answer, the first ones go.
    """

    __slots__ = ("_calls", "_first", "_nbytes")

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._first = self._nbytes = 0

    def find(self, place: int) -> _Call | None:
        """The call of a function for the question of that place; None: it was not asked yet.

        Raises:
            CallbackError: when its answer is here no more.
        """
        if place < self._first:
            raise _too_large()
        return self._calls.get(place)

    def add(self, place: int, one: _Call) -> None:
        """A function is called for the question of that place, or was in an earlier run.

        Raises:
            CallbackError: when a question before it has not come for too many others.
        """
        is_ahead = self._first < place and self._first not in self._calls
        is_full = len(self._calls) >= _MOST_AHEAD or place - self._first > _MAX_ASKED
        if is_ahead and is_full:
            raise _skips()
        self._calls[place] = one
        self._nbytes += one.nbytes

    def make_room(self, one: _Call, nbytes: int) -> None:
        """A function has returned so many bytes."""
        one.nbytes = nbytes
        self._nbytes += nbytes
        while self._nbytes > _MAX_ANSWER_BYTES or len(self._calls) > _MAX_ASKED:
            first = self._calls.get(self._first)
            if first is None or first is one or not first.future.done():
                return  # it may still be asked for, or has not come yet
            self._nbytes -= first.nbytes
            del self._calls[self._first]
            self._first += 1


def _differs() -> CallbackError:
    return CallbackError(
        "a call is made again, since its worker had ended, and calls functions back with other "
        "arguments than before. They are not called twice."
    )


def _skips() -> CallbackError:
    return CallbackError(
        "the server leaves out questions of a program, so their answers could not be told apart. "
        "The function is not called; install the same jaxd on both sides."
    )


def _too_large() -> CallbackError:
    return CallbackError(
        "a call goes on, or is made again, and what functions that it called back have returned "
        "was too large to be kept. They are not called twice."
    )


class _Call:
    """One call of a function of this process; others may wait for its answer.

    Attributes:
        future: its answer.
        nbytes: of that, once it is here.
    """

    def __init__(self) -> None:
        self.future: Future[Answer] = Future()
        self.nbytes = 0
        self._thread = threading.get_ident()

    def answer(self) -> Answer:
        """What it has returned.

        Raises:
            CallbackError: when it runs in this thread, which would wait for itself.
            BaseException: what it has raised.
        """
        if not self.future.done() and self._thread == threading.get_ident():
            raise CallbackError(
                "a call is made again while a function that it has called back still runs, which "
                "itself uses arrays on the server. It is not called twice."
            )
        return self.future.result()
