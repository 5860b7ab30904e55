"""What is behind a key, on its way over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.fingerprint.data_model import Part
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.function_manifest import FunctionDescriptor, parameter_names

WHOLE = FunctionDescriptor(
    "make.<locals>.step",
    b"f" * 16,
    Options(static_argnums=(1,)),
    (Part("value", "global LR", b"12345678", "0.1", "train.py:3"),),
    ("x", "steps"),
)


def test_it_arrives_as_it_was_sent() -> None:
    """As plain values in between."""
    assert FunctionDescriptor.from_message(WHOLE.to_message()) == WHOLE


def test_its_short_name_leaves_out_where_it_is_nested() -> None:
    """Which is not how people call it."""
    assert WHOLE.short_name == "step"


@pytest.mark.parametrize(
    "message",
    [
        (),
        None,
        ("f", b"", Options().to_bytes(), ((),), ()),
        ("f", b"", Options().to_bytes(), (("value", 3, b"", "", ""),), ()),
        (3, b"", Options().to_bytes(), (), ()),
        ("f", b"", Options().to_bytes(), (), (3,)),
        ("f", b"", b"?", (), ()),
    ],
)
def test_what_is_no_description_is_refused(message: Any) -> None:
    """With the error that the peer's mistakes have."""
    with pytest.raises(ProtocolError):
        FunctionDescriptor.from_message(message)


def test_parameters_are_those_that_can_be_given_by_position() -> None:
    """A star before the name of any number of them; nothing of what does not say."""

    def function(x: Any, y: Any = 1, *rest: Any, z: Any = 2, **more: Any) -> None: ...

    assert parameter_names(function) == ("x", "y", "*rest")
    assert parameter_names(dict) == ()
