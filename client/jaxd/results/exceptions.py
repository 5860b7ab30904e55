"""Converts failures of the server to exceptions that are raised at the call."""

from __future__ import annotations

import os
import re
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from jaxd.interop.jax_runtime import loaded_jax
from jaxd.results.reader import received_texts
from jaxd_protocol.errors import JaxdError, RemoteError
from jaxd_protocol.messages.calls import origin_of
from jaxd_protocol.messages.failures import Failure, decode_failure
from jaxd_protocol.packages.installed import OWN_PACKAGES

if TYPE_CHECKING:
    from jaxd.results.reader import ResultReader

_MAX_LINE: Final = 300
_OF_RUNNING: Final = frozenset({"JaxRuntimeError", "XlaRuntimeError"})
_OF_EQUINOX: Final = re.compile(r"\b_EquinoxRuntimeError: (.*?)\n\n\n-{20}", re.DOTALL)
_OWN: Final = frozenset(OWN_PACKAGES)
_CALLED_BY_OWN: Final = frozenset({"jax", "jaxlib", "numpy", "concurrent", "threading", "asyncio"})


def exception_of(failure: Failure, name: str, reader: ResultReader, address: str) -> BaseException:
    """The exception that a call has ended with; a note says which call, and of which server.

    Args:
        failure: that of the reply.
        name: what people call the function.
        reader: of its results; of the user's own exceptions, those that it reaches are known.
        address: of the server, for people.
    """
    error = decode_failure(failure, reader, with_jax=shows_all_frames())
    _note_texts(error)
    _tell_equinox(error)
    if type(error) is RemoteError or not isinstance(error, JaxdError):
        call = origin_of(error).call
        which = f" (call {call})" if call else ""
        error.add_note(f"Raised in the call of {name} on the jaxd server at {address}{which}.")
    return error


def _note_texts(error: BaseException) -> None:
    """Takes note of the texts in an exception, its causes and its members."""
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        file = getattr(one, "filename", None) if isinstance(one, OSError) else None
        received_texts.take_note((one.args, file, [*vars(one).values()]))
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def _tell_equinox(error: BaseException) -> None:
    """Has `eqx.filter_jit` of this process find what `eqx.error_if` has said on the server.

    It raises its own error of that, in the place of one of jax that says little.
    """
    jit: Any = sys.modules.get("equinox._jit")
    is_candidate = jit is not None and type(error).__name__ in _OF_RUNNING
    said = _OF_EQUINOX.search(str(error)) if is_candidate else None
    if said is not None:
        jit.last_error_info = said[1], []  # what it says, and frames, which are the server's


def hide_own_frames(error: BaseException) -> None:
    """Takes the frames of jaxd, and what these have called, out of an exception and its causes.

    What is left are the user's own, here and on the server. With `JAX_TRACEBACK_FILTERING=off`
    nothing is taken out.
    """
    if shows_all_frames():
        return
    todo, seen = [error], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        before = one.__traceback__
        one.__traceback__ = _without_own(before)
        if before is not None and one.__traceback__ is None and one is error.__context__:
            error.__suppress_context__ = True  # only our own code has met it
        todo += [each for each in (one.__cause__, one.__context__) if each is not None]


def line_of(error: BaseException) -> str:
    """Its kind, and the first line of what it says, cut where that is long."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:_MAX_LINE]


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    kept = []
    is_inside = False
    while trace is not None:
        root = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        is_inside = root in _OWN or (is_inside and root in _CALLED_BY_OWN)
        if not is_inside:
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown


def shows_all_frames() -> bool:
    """Whether this process has told jax not to leave its own frames out of tracebacks."""
    jax = loaded_jax()
    if jax is not None:
        return bool(jax.config.jax_traceback_filtering == "off")
    return os.environ.get("JAX_TRACEBACK_FILTERING", "").lower() == "off"
