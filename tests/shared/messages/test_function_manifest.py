"""What a client says of a function beside its code."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.data_model import ListedCallback, Part, Source
from jaxd_protocol.fingerprint.process_view import SALT
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.function_manifest import (
    FunctionDescriptor,
    FunctionManifest,
    parameter_names,
)
from jaxd_protocol.packages.distributions import Package
from tests.ids import row

PART = Part("value", "global LR", b"d" * 8, "0.1", "train.py:7")
MANIFEST = FunctionManifest(
    fingerprint=b"f" * 16,
    salt=b"salt",
    parts=(PART, Part("function", "function f", b"e" * 8)),
    packages={"optax": Package("optax", "1.0", b"p" * 16)},
    local={"mine": True, "optax": False},
    carried=frozenset({"optax:sgd", "json:limit"}),
    ignored=("CONFIG['stream']",),
    shared=False,
    callbacks=(ListedCallback(0, "", "mine:log"), ListedCallback(1, "add", "mine:History.add")),
)
FIELDS = list(FunctionManifest._fields)


def function(x: Any) -> Any:
    return sys.maxsize, x


@pytest.mark.parametrize("manifest", [MANIFEST, FunctionManifest(b"f" * 16)], ids=["full", "empty"])
def test_it_arrives_as_it_was(manifest: FunctionManifest) -> None:
    """In plain tuples, text and bytes."""
    message = manifest.to_message()
    assert FunctionManifest.from_message(message) == manifest
    assert plain(message)


def plain(value: Any) -> bool:
    """Whether it is made of what the wire takes."""
    if type(value) is tuple:
        return all(map(plain, value))
    return type(value) in (str, bytes, bool, int)


def test_it_says_what_a_walk_has_found() -> None:
    """With the algorithm of this process."""
    found = walk(function, "f").fingerprint
    manifest = FunctionManifest.of(found, ("LR",))
    assert (manifest.fingerprint, manifest.salt) == (found.digest, SALT)
    assert (manifest.parts, manifest.carried) == (found.parts, found.carried)
    assert (manifest.packages, manifest.local) == (found.packages, found.local)
    assert (manifest.ignored, manifest.shared) == (("LR",), True)


def test_a_function_with_something_that_has_no_content_is_not_shared() -> None:
    """Its fingerprint is like no other."""
    stream = (number for number in [1])
    assert not FunctionManifest.of(walk(lambda x: next(stream), "f").fingerprint).shared


def test_a_walk_on_the_server_asks_what_the_client_said() -> None:
    """With the modules that came along."""
    mine, late = ModuleType("mine"), Source(compile("1", "late.py", "exec"), False)
    there = MANIFEST.there({"mine": mine}, {"late": late})
    assert (there.salt, there.packages, there.local) == (
        MANIFEST.salt,
        MANIFEST.packages,
        MANIFEST.local,
    )
    assert there.carried == MANIFEST.carried
    assert (there.module("mine"), there.source("late")) == (mine, late)


def with_field(name: str, value: Any) -> tuple[Any, ...]:
    """The message with something else in one place."""
    message = list(MANIFEST.to_message())
    message[FIELDS.index(name)] = value
    return tuple(message)


OTHER_FORMS: dict[str, list[Any]] = {
    "fingerprint": ["f" * 16, None, bytearray(16)],
    "salt": [1],
    "parts": [
        *(None, 5, (1,), (("value",),), (("value", "a", b"d", "", "", "more"),)),
        *((("value", "a", "digest"),), (("value", 1, b"d"),), ((b"value", "a", b"d"),)),
        *((("value", "a", b"d", 1),), (("value", "a", b"d", "", None),)),
    ],
    "packages": [
        *(None, ("optax",), ((),), (("optax", "optax", "1.0"),)),
        *((("optax", "optax", "1.0", "digest"),), (("optax", "optax", 1, b"d"),)),
        *(((1, "optax", "1.0", b"d"),), ((["optax"], "optax", "1.0", b"d"),)),
    ],
    "local": [None, (("mine",),), (("mine", 1),), ((1, True),), (([], True),)],
    "carried": [None, (1,), ([],)],
    "ignored": [None, (1,)],
    "shared": [1, None],
    "callbacks": [
        *(None, (1,), ((0, "add"),), (("0", "add", "mine:History.add"),)),
        *(((True, "add", "mine:History.add"),), ((0, None, "mine:History.add"),)),
        ((0, "add", b"mine:History.add"),),
    ],
}


def test_what_has_another_form_is_refused() -> None:
    """Before anything is done with it."""
    rows: list[tuple[str, Any]] = [
        (name, value) for name, each in OTHER_FORMS.items() for value in each
    ]
    for name, value in rows:
        with row((name, value)), pytest.raises(ProtocolError, match="the manifest of a function"):
            FunctionManifest.from_message(with_field(name, value))


def test_what_is_no_such_message_is_refused() -> None:
    """Of any type and length."""
    rows: list[Any] = [
        None,
        1,
        b"",
        "text",
        (),
        (b"f" * 16,),
        MANIFEST.to_message()[:-2],
        {"fingerprint": b""},
    ]
    for message in rows:
        with row(message), pytest.raises(ProtocolError, match="the manifest of a function"):
            FunctionManifest.from_message(message)


WHOLE = FunctionDescriptor(
    "make.<locals>.step",
    b"f" * 16,
    Options(static_argnums=(1,)),
    (Part("value", "global LR", b"12345678", "0.1", "train.py:3"),),
    ("x", "steps"),
)


def test_a_description_arrives_as_it_was_sent() -> None:
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
