from __future__ import annotations

import gc
import weakref

import pytest

from jaxd_protocol.errors import ArgumentError
from jaxd_protocol.pickling.unpack import object_tokens
from jaxd_protocol.pickling.unpack.object_tokens import ObjectTokens


class Thing:
    pass


def test_a_token_gives_the_object_back() -> None:
    """And an object has one token, which nobody can guess."""
    kept, thing, other = ObjectTokens(), Thing(), Thing()
    token = kept.keep(thing)
    assert kept.keep(thing) == token
    assert kept.keep(other) != token
    assert len(token) == 16
    assert kept.find(token) is thing


def test_those_that_were_used_last_are_kept() -> None:
    """The others are let go, and their tokens say what to do."""
    kept, things = ObjectTokens(limit=2), [Thing(), Thing(), Thing()]
    first, second = kept.keep(things[0]), kept.keep(things[1])
    kept.find(first)
    third = kept.keep(things[2])
    assert kept.find(first) is things[0]
    assert kept.find(third) is things[2]
    gone = weakref.ref(things[1])
    del things[1]
    gc.collect()
    assert gone() is None
    with pytest.raises(ArgumentError, match=r"last 2 of them.*make the object in your own"):
        kept.find(second)


def test_the_table_of_this_process() -> None:
    """Is reached by two functions, of which pickles name one."""
    thing = Thing()
    assert object_tokens.find_kept_object(object_tokens.keep_object(thing)) is thing
    with pytest.raises(ArgumentError):
        object_tokens.find_kept_object(b"?" * 16)


def test_a_promise_is_kept_when_it_is_recalled() -> None:
    """And not before; it has one token, however often it is given."""
    kept, things = ObjectTokens(), [Thing()]
    token = kept.promise("thing", things.pop)
    assert kept.promise("thing", things.clear) == token
    assert len(things) == 1
    assert isinstance(kept.find(token), Thing)
    assert things == []


@pytest.mark.parametrize("error", [LookupError, ImportError, AttributeError])
def test_a_promise_that_cannot_be_kept_is_as_if_it_were_gone(error: type[Exception]) -> None:
    """The message says what to do."""

    def find() -> None:
        raise error

    kept = ObjectTokens()
    with pytest.raises(ArgumentError, match="Call the function that returned it once more"):
        kept.find(kept.promise("thing", find))


def test_promises_that_were_used_last_are_kept_as_objects_are() -> None:
    """One that was let go has another token the next time."""
    kept = ObjectTokens(limit=1)
    token = kept.promise("thing", Thing)
    kept.keep(Thing())
    with pytest.raises(ArgumentError):
        kept.find(token)
    assert kept.promise("thing", Thing) != token
