from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.messages.calls import FAILED, OK, is_failure
from jaxd_protocol.messages.failures import decode_failure, encode_failure
from jaxd_server.execution.call import Reply
from jaxd_server.rpc.ordered_calls import MAX_BYTES, ReplyCache
from tests.server.staging import at_once

REPLY: Reply = ((OK, "done"), ())
LOST: Reply = ((FAILED, encode_failure(ConnectionLost("went away")), b""), ())


class Sent(list[Reply]):
    """Collects what is sent to one client."""

    def __call__(self, reply: Reply) -> None:
        self.append(reply)


def is_new(remembered: ReplyCache, *call: Any) -> bool:
    """Whether a call is; one that is not is answered."""
    answer = remembered.find_or_register(*call)
    if answer is not None:
        answer()
    return answer is None


def test_a_new_call_is_run_and_answered() -> None:
    """Once."""
    remembered, sent = ReplyCache(), Sent()
    assert is_new(remembered, 1, 0, sent)
    assert sent == []
    remembered.answer(1, REPLY)
    assert sent == [REPLY]


def test_a_call_that_comes_again_is_not_run_again() -> None:
    """While the first still runs, both are answered when it is done; after that, at once."""
    remembered, first, again, late = ReplyCache(), Sent(), Sent(), Sent()
    assert is_new(remembered, 1, 0, first)
    assert not is_new(remembered, 1, 0, again)
    remembered.answer(1, REPLY)
    assert not is_new(remembered, 1, 0, late)
    assert (first, again, late) == ([REPLY], [REPLY], [REPLY])


def test_what_has_arrived_is_forgotten() -> None:
    """And what has not is kept."""
    remembered = ReplyCache()
    for number in (1, 2, 3):
        is_new(remembered, number, 0, Sent())
        remembered.answer(number, REPLY)
    is_new(remembered, 4, 3, Sent())
    assert len(remembered._replies) == 1
    sent = Sent()
    assert not is_new(remembered, 3, 3, sent)
    assert sent == [REPLY]


def test_a_call_whose_answer_has_arrived_is_never_run_again() -> None:
    """It may have lain in a connection that was lost; also after the others were forgotten."""
    remembered, stale = ReplyCache(), Sent()
    is_new(remembered, 1, 0, Sent())
    remembered.answer(1, REPLY)
    is_new(remembered, 2, 2, Sent())
    assert not is_new(remembered, 1, 0, stale)
    ((outcome, _),) = stale
    assert (outcome[0], outcome[2]) == (FAILED, b"")
    with pytest.raises(ConnectionLost, match="answered before"):
        raise decode_failure(outcome[1])


def test_an_answer_that_nobody_can_ask_for_is_not_kept() -> None:
    """Its client gave the call up."""
    remembered = ReplyCache()
    is_new(remembered, 1, 0, Sent())
    is_new(remembered, 2, 2, Sent())
    remembered.answer(1, REPLY)
    assert len(remembered._replies) == 0


def test_a_client_that_never_acknowledges_is_not_remembered_for_ever() -> None:
    """The oldest go first."""
    remembered = ReplyCache()
    for number in range(1100):
        is_new(remembered, number, 0, Sent())
        remembered.answer(number, REPLY)
    assert len(remembered._replies) == 1024
    assert not is_new(remembered, 1099, 0, Sent())


def test_many_threads_run_a_call_once() -> None:
    """And each of them gets the answer."""
    remembered = ReplyCache()
    sent = [Sent() for _ in range(8)]
    for number in range(200):

        def meet(index: int, number: int = number) -> Any:
            new = is_new(remembered, number, number, sent[index])
            if new:
                remembered.answer(number, REPLY)
            return new

        assert sum(at_once(8, partial(meet))) == 1
    assert [len(each) for each in sent] == [200] * 8


def test_a_call_that_lost_its_client_begins_anew_for_who_sends_it_again() -> None:
    """It could not ask what its function is, so it has not run."""
    remembered, first, second, begun = ReplyCache(), Sent(), Sent(), list[int]()
    assert is_new(remembered, 1, 0, first)
    assert not is_new(remembered, 1, 0, second, lambda: begun.append(1))
    remembered.answer(1, LOST)
    assert (first, second, begun) == ([LOST], [], [1])
    remembered.answer(1, REPLY)
    assert (first, second) == ([LOST], [REPLY])
    assert not is_new(remembered, 1, 0, Sent())


def test_a_call_that_lost_its_client_is_new_when_it_is_sent_again_later() -> None:
    """But not one that has taken something for good, nor one that failed in another way."""
    remembered = ReplyCache()
    for number, reply, begins in [
        (1, LOST, True),
        (2, ((*LOST[0][:2], b"\0\0\0\0"), ()), False),
        (3, ((FAILED, encode_failure(ZeroDivisionError()), b""), ()), False),
    ]:
        assert is_new(remembered, number, 0, Sent())
        remembered.answer(number, reply)
        assert is_new(remembered, number, 0, Sent()) == begins


def test_large_replies_are_held_up_to_a_limit() -> None:
    """The last one always; of the others the newest. Who asks for an older one learns why not."""
    remembered, size = ReplyCache(), MAX_BYTES // 2
    large: Reply = (("done",), [memoryview(bytes(size))])
    for number in (1, 2, 3):
        assert is_new(remembered, number, 0, Sent())
        remembered.answer(number, large if number < 3 else REPLY)
    kept = Sent()
    for number in (1, 2, 3):
        assert not is_new(remembered, number, 0, kept)
    assert kept == [large, large, REPLY]
    assert is_new(remembered, 4, 0, Sent())
    remembered.answer(4, (("done",), [memoryview(bytes(3 * size))]))
    found = Sent()
    for number in (1, 3, 4):
        assert not is_new(remembered, number, 0, found)
    assert is_failure(found[0][0][1], ConnectionLost)
    assert found[1] == REPLY
    assert len(found[2][1][0]) == 3 * size
