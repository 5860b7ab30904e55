"""Functions, programs and records as a server has them, made by hand."""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import jax

from jaxd.request.arguments import encode_arguments
from jaxd_protocol.fingerprint.data_model import Part
from jaxd_protocol.jit.options import Options, function_key
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_server.codec.results import ResultLayout
from jaxd_server.compilation.compiling.executable import Costs, Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.compilation.executable_source import BuildResult
from jaxd_server.compilation.history.build_history import BuildEntry

PARAMETERS = ("x", "steps")


def digest(text: str, size: int = 8) -> bytes:
    """Stands for the digest of a content."""
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def function_part(name: str, code: str = "code", where: str = "train.py:7") -> Part:
    """A function with that code."""
    return Part("function", f"function {name}", digest(code), "", where)


def value_part(name: str, shown: str) -> Part:
    """A global with that value."""
    return Part("value", f"global {name}", digest(shown), shown, "train.py:7")


def described(
    *parts: Part, name: str = "step", options: Options | None = None, where: str = "train.py:7"
) -> FunctionDescriptor:
    """A function of those parts, beside itself."""
    whole = (function_part(name, where=where), *parts)
    fingerprint = digest(repr(whole), 16)
    return FunctionDescriptor(name, fingerprint, options or Options(), whole, PARAMETERS)


def key_of(description: FunctionDescriptor) -> bytes:
    """Its name on the wire."""
    return function_key(description.fingerprint, description.options)


def skeleton_of(*args: Any, statics: StaticArgs = NO_STATIC_ARGS, **kwargs: Any) -> bytes:
    """That of a call."""
    return encode_arguments(args, kwargs, statics, {}).skeleton


def executable(seconds: float = 0.5, name: str = "step") -> Executable:
    """One that is only there, and took that long."""
    program = Program(b"p" * 16, lambda *leaves: list(leaves), compile_s=seconds)
    form = ResultLayout.of(b"N", ())
    return Executable(name, b"k" * 16, program, form, costs=Costs(0.0, seconds, seconds))


def live_executables() -> int:
    """Number of compiled programs that the default backend holds in memory."""
    return len(jax.devices()[0].client.live_executables())


def made(program: Executable, *, was_compiled: bool = True, name: bytes = b"") -> BuildResult:
    """The note that the program was built just now."""
    return BuildResult(program, "compile", was_compiled, name)


def loaded(program: Executable, name: bytes) -> BuildResult:
    """The note that the program was read from disk just now."""
    return BuildResult(program, "load", name=name)


def built(program: Executable, *args: Any, statics: StaticArgs = NO_STATIC_ARGS) -> BuildEntry:
    """The note that the program was made for those arguments."""
    return BuildEntry(
        skeleton_of(*args, statics=statics), PARAMETERS, 0.5, 1e9, weakref.ref(program)
    )
