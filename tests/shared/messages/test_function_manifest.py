"""What a client says of a function beside its code."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.fingerprint import Part, walk
from jaxd_protocol.fingerprint.data_model import ListedCallback, Source
from jaxd_protocol.fingerprint.process_view import SALT
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.packages.distributions import Package

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
    """Something to look at."""
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fingerprint", "f" * 16),
        ("fingerprint", None),
        ("fingerprint", bytearray(16)),
        ("salt", 1),
        ("parts", None),
        ("parts", 5),
        ("parts", (1,)),
        ("parts", (("value",),)),
        ("parts", (("value", "a", b"d", "", "", "more"),)),
        ("parts", (("value", "a", "digest"),)),
        ("parts", (("value", 1, b"d"),)),
        ("parts", ((b"value", "a", b"d"),)),
        ("parts", (("value", "a", b"d", 1),)),
        ("parts", (("value", "a", b"d", "", None),)),
        ("packages", None),
        ("packages", ("optax",)),
        ("packages", ((),)),
        ("packages", (("optax", "optax", "1.0"),)),
        ("packages", (("optax", "optax", "1.0", "digest"),)),
        ("packages", (("optax", "optax", 1, b"d"),)),
        ("packages", ((1, "optax", "1.0", b"d"),)),
        ("packages", ((["optax"], "optax", "1.0", b"d"),)),
        ("local", None),
        ("local", (("mine",),)),
        ("local", (("mine", 1),)),
        ("local", ((1, True),)),
        ("local", (([], True),)),
        ("carried", None),
        ("carried", (1,)),
        ("carried", ([],)),
        ("ignored", None),
        ("ignored", (1,)),
        ("shared", 1),
        ("shared", None),
        ("callbacks", None),
        ("callbacks", (1,)),
        ("callbacks", ((0, "add"),)),
        ("callbacks", (("0", "add", "mine:History.add"),)),
        ("callbacks", ((True, "add", "mine:History.add"),)),
        ("callbacks", ((0, None, "mine:History.add"),)),
        ("callbacks", ((0, "add", b"mine:History.add"),)),
    ],
)
def test_what_has_another_form_is_refused(name: str, value: Any) -> None:
    """Before anything is done with it."""
    with pytest.raises(ProtocolError, match="the manifest of a function"):
        FunctionManifest.from_message(with_field(name, value))


@pytest.mark.parametrize(
    "message",
    [None, 1, b"", "text", (), (b"f" * 16,), MANIFEST.to_message()[:-2], {"fingerprint": b""}],
    ids=repr,
)
def test_what_is_no_such_message_is_refused(message: Any) -> None:
    """Of any type and length."""
    with pytest.raises(ProtocolError, match="the manifest of a function"):
        FunctionManifest.from_message(message)
