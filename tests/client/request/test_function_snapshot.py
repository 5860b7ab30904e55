"""Names of functions on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd.request.function_snapshot import FunctionSnapshot
from jaxd_protocol.errors import UnsharedWarning
from jaxd_protocol.jit.options import Options
from jaxd_protocol.pickling.unpack.unpickler import unpack_function


def fingerprint(function: Any) -> bytes:
    """That of the function, with no options."""
    return FunctionSnapshot(function, Options()).fingerprint


def make(scale: Any) -> Any:
    """A function that closes over a value."""
    return lambda x: x * scale


def test_it_has_the_name_that_people_know() -> None:
    """Also where there is no function object."""
    import functools

    class Model:
        def __call__(self, x: Any) -> Any:
            return x

    assert FunctionSnapshot(make, Options()).name == "make"
    assert FunctionSnapshot(functools.partial(make, 1), Options()).name == "partial"
    assert FunctionSnapshot(Model(), Options()).name.endswith("Model")


def test_what_has_no_content_is_warned_of() -> None:
    """In the line that is asked for, with what to do about it."""
    numbers = (number for number in [1.0])
    snapshot = FunctionSnapshot(lambda x: (numbers, x), Options())
    with pytest.warns(UnsharedWarning, match=r"generator.*ignore='numbers'.*extra_key=") as heard:
        snapshot.warn()
    assert heard[0].filename == __file__


def test_what_is_ignored_is_not_in_the_fingerprint() -> None:
    """By the name that code gives it."""

    def fingerprint_with(stamp: str) -> bytes:
        def stamped(x: Any) -> Any:
            return x, stamp

        return FunctionSnapshot(stamped, Options(), ("stamp",)).fingerprint

    assert fingerprint_with("monday") == fingerprint_with("tuesday")


def test_the_code_is_packed_when_it_is_asked_for_and_once() -> None:
    """A call of a function that the server knows needs none of it."""
    snapshot = FunctionSnapshot(make(2.0), Options())
    assert snapshot._packed is None
    assert snapshot.code is snapshot.code
    assert unpack_function(snapshot.code).function(3.0) == 6.0
