"""What is said in plain values: of functions, their options, and what went wrong with them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from jaxd.events.jax_callbacks import CallbackTable
from jaxd_protocol.errors import Busy
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.failures import decode_failure, encode_failure
from jaxd_protocol.messages.function_manifest import FunctionDescriptor, FunctionManifest
from jaxd_protocol.messages.recipes import load_recipes
from jaxd_protocol.pytree import dump_literal, load_literal
from jaxd_protocol.pytree.references import load_reference
from tests.fuzz.examples import MANIFEST, SKELETON
from tests.fuzz.target import Target


def _literal(data: bytes) -> Any:
    return load_literal(data, 0)[0]


def _of_literal(parse: Callable[[Any], object]) -> Callable[[bytes], None]:
    """What is said in rpyc's values, which have the same forms as literals."""

    def run(data: bytes) -> None:
        parse(_literal(data))

    return run


held: list[Any] = []


def _note(value: Any) -> None:
    """May be called."""
    os.mkdir(value)


def _outer(x: Any, log: Any = None) -> Any:
    import jax

    def inner(y: Any) -> Any:
        return y if x else inner(os.getpid())

    jax.debug.callback(lambda y: inner(x + y), x)
    jax.debug.callback(held.append, x)
    jax.debug.callback(log.append, x)
    return os.system


_TARGETS = walk(_outer, "outer").reach.targets
_CODES = [each for each in _outer.__code__.co_consts if isinstance(each, CodeType)]


def _callback(value: Any) -> None:
    """What a server may have called, of a function that gives these and reaches others."""
    found: Any = CallbackTable(_TARGETS, [_note], ((0, held), {})).function_at(value, [np.ones(2)])
    while isinstance(found, functools.partial):
        found = found.func
    owner = getattr(found, "__self__", None)
    code = getattr(found, "__code__", None)
    assert owner is held or found is _note or code in _CODES


def _failure(value: Any) -> None:
    str(decode_failure(value))


def _failures() -> list[bytes]:
    found = []
    for error in (ValueError("x", 1), KeyError("é"), OSError(2, "no"), Busy("later", 3.0)):
        try:
            error.add_note("a note")
            raise error from KeyError("before")  # noqa: TRY301  for its traceback
        except Exception as raised:  # noqa: BLE001  whatever it is
            found.append(dump_literal(encode_failure(raised)))
    return found


LITERALS: dict[str, Target] = {
    "literal": Target(
        lambda data: dump_literal(_literal(data)),
        [dump_literal((1, "a", b"b", 2.5, None, True, (1 << 70, ("x",))))],
    ),
    "options": Target(Options.from_bytes, [Options().to_bytes()]),
    "meaning": Target(_of_literal(FunctionManifest.from_message), [dump_literal(MANIFEST)]),
    "description": Target(
        _of_literal(FunctionDescriptor.from_message),
        [dump_literal(("f", b"f" * 16, Options().to_bytes(), (), ("x",), True))],
    ),
    "reference": Target(
        _of_literal(load_reference),
        [dump_literal(("n", ((b"mark", 1),), b"token", "about")), dump_literal(("o", (), b"", ""))],
    ),
    "recipes": Target(
        _of_literal(lambda value: load_recipes(value, [memoryview(b"code")])),
        [dump_literal((("f", b"k" * 16, b"", MANIFEST, ((SKELETON, ()),), ("x",)),))],
    ),
    "failure": Target(_of_literal(_failure), _failures()),
    "aim": Target(
        _of_literal(_callback),
        [
            dump_literal(callback_target)
            for callback_target in (
                ("given", 0),
                ("listed", 0),
                ("argument", 0),
                ("partial", ("given", 0), (("list", (("value", 1), ("held", 0))),), ()),
                ("partial", ("given", 0), (), (("name", ("dict", ())),)),
                ("made", 0, (("inner", ("code", (), None, None)),), None, None),
                ("made", 0, (("x", ("array", 0)), ("inner", ("again",))), (), ()),
            )
        ],
    ),
}
