from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jaxd_protocol.jit.options import Options
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.literals import load_literal
from jaxd_server.codec.results import ResultLayout
from jaxd_server.compilation.disk_cache.records import CallRecord, call_name
from jaxd_server.compilation.functions.function import Function
from tests.server.in_process import function_of

X = np.arange(3, dtype=np.float32)

CALL = CallRecord(
    name="step",
    key=b"k" * 16,
    fingerprint=b"f" * 16,
    code=b"c" * 16,
    skeleton=b"N",
    sizes=(3, 4),
    pickles=(b"abc",),
    parameters=("x", "n"),
    program=b"p" * 16,
    obstacle=None,
    form=ResultLayout.of(b"N", ()),
    trace_s=0.5,
    compile_s=1.5,
    created=1e9,
    environment=b"e" * 16,
    principal="uid:1000",
)


def step(x: Any, n: int = 3, *, mode: str = "fast") -> Any:
    """Is called in these tests."""
    return x * n


class Shut:
    """Hashable, and nothing tells what is in it."""

    def __reduce__(self) -> Any:
        raise TypeError("it is shut")


OPTIONS = Options(static_argnames=("mode", "n"), keep_unused=True)


def test_a_kept_call_is_a_literal() -> None:
    """And the same again when it is read."""
    content, _ = load_literal(dump_literal(CALL.to_content()), 0)
    assert CallRecord.from_content(content) == CALL
    assert CALL.recorded == (b"N", (3, 4), (b"abc",))


def test_a_record_of_an_earlier_version_is_read() -> None:
    """It also held what the function printed while it was traced."""
    assert CallRecord.from_content((*CALL.to_content(), ("said", "[]"))) == CALL


def named(function: Function, *args: Any, **kwargs: Any) -> bytes | None:
    """The lasting name of a call."""
    return call_name(function, (args, kwargs))


def test_a_call_has_a_name_of_its_own() -> None:
    """By function, options and signature; values do not count unless they are static."""
    plain, other = function_of(step), function_of(step, OPTIONS)
    names = [
        named(plain, X),
        named(plain, X[:2]),
        named(plain, X, 1),
        named(plain, X, n=1),
        named(other, X),
        named(other, X, n=1),
        named(other, X, n=2),
        named(other, X, n=True),
    ]
    assert None not in names
    assert len(set(names)) == len(names)
    assert named(plain, X) == named(plain, X + 1)
    assert named(plain, {"a": 1.0, "b": X}) == named(plain, {"b": X, "a": 2.0})


def test_what_means_nothing_elsewhere_has_no_name() -> None:
    """A function in doubt, one of a client that says nothing of it, and objects without content."""
    private = function_of(step)
    assert private.unpacked is not None
    private.unpacked = replace(private.unpacked, doubt="it was changed")
    unknown = function_of(step)
    unknown.described = unknown.described._replace(manifest=None)
    static = function_of(step, OPTIONS)
    assert (named(private, X), named(unknown, X), named(static, X, mode=Shut())) == (None,) * 3
    assert named(static, X, mode="slow") is not None
