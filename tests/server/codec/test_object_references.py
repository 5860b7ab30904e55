from __future__ import annotations

import pytest

from jaxd_protocol.pytree.references import function_mark
from jaxd_server.codec.object_references import ObjectNumbers


class Thing:
    pass


A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_an_object_is_named_by_its_number() -> None:
    """The first one, where it has several; containers and numbers have no name."""
    homes, thing, data = ObjectNumbers(), Thing(), [1]
    homes.add(A, [data, thing, thing, 5])
    assert homes.of(thing) == ((function_mark(A), 1),)
    assert homes.of(data) == homes.of(5) == homes.of(Thing()) == ()


def test_an_object_that_several_functions_reach() -> None:
    """Is named in all of them; the last that arrived comes first."""
    homes, thing = ObjectNumbers(), Thing()
    homes.add(A, [thing])
    homes.add(B, [None, thing])
    assert homes.of(thing) == ((function_mark(B), 1), (function_mark(A), 0))


def test_a_function_that_arrives_again_brings_other_objects() -> None:
    """Those of its first arrival are forgotten."""
    homes, old, new = ObjectNumbers(), Thing(), Thing()
    homes.add(A, [old])
    homes.add(A, [new])
    assert homes.of(old) == ()
    assert homes.of(new) == ((function_mark(A), 0),)


def test_only_the_last_functions_are_kept() -> None:
    """The oldest goes first."""
    homes, thing = ObjectNumbers(limit=2), Thing()
    for fingerprint in (A, B, C):
        homes.add(fingerprint, [thing])
    assert homes.of(thing) == ((function_mark(C), 0), (function_mark(B), 0))


def test_an_object_is_found_by_its_number() -> None:
    """In whichever of the functions is here."""
    homes, thing = ObjectNumbers(), Thing()
    homes.add(B, [None, thing])
    assert homes.at(((function_mark(A), 0), (function_mark(B), 1))) is thing
    for places in (
        (),
        ((function_mark(A), 0),),
        ((function_mark(B), 2),),
        ((function_mark(B), -1),),
    ):
        with pytest.raises(LookupError, match="no function is here"):
            homes.at(places)
