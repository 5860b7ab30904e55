"""Exceptions as plain data, and back as the type that the other end has.

Nothing is imported and nothing is unpickled to rebuild one: the type is looked up among the
modules that are already loaded, and only exception types are taken.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any, Final

from jaxd_protocol import errors
from jaxd_protocol.errors import Busy, JaxdError, ProtocolError, RemoteError
from jaxd_protocol.remote_frames import frames_of, traceback_of
from jaxd_protocol.trees.literals import dump_literal, load_literal

__all__ = ["Failure", "ForwardedFailure", "describe_failure", "rebuild_failure"]

Failure = tuple[Any, ...]
"""(module, qualified name, message, literal of args or None, retry_after_s, traceback text, frames,
links, notes): frames as in `remote_frames`; links the failure that led to it, with "cause" or
"context" before it."""

_MAX_TEXT: Final = 1 << 20
_MAX_LINKS: Final = 8
_MADE_BY_INIT: Final = frozenset({("jax.errors", "JaxRuntimeError")})
"""Types that cannot be shown without what their `__init__` sets, which does nothing else."""


class ForwardedFailure(Exception):
    """An exception of another process of this server, which goes to the client as it is.

    Attributes:
        failure: what `describe_failure` made of it there.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure[2])
        self.failure = failure


def describe_failure(error: BaseException, links: int = _MAX_LINKS) -> Failure:
    """The exception as plain values, with its whole traceback as text, and its user's as data.

    Args:
        error: the exception.
        links: how many of those that led to it are described as well.
    """
    if isinstance(error, ForwardedFailure):
        return error.failure
    kind = type(error)
    return (
        kind.__module__,
        kind.__qualname__,
        _message_of(error),
        _args_of(error),
        error.retry_after_s if isinstance(error, Busy) else 0.0,
        _sendable("".join(traceback.format_exception(error))[-_MAX_TEXT:]),
        frames_of(error),
        _links(error, links),
        tuple(_sendable(str(note)) for note in getattr(error, "__notes__", ())),
    )


def _links(error: BaseException, links: int) -> tuple[Any, ...]:
    """What led to an exception, as far as it is of the user's own code."""
    kind, before = "cause", error.__cause__
    if before is None and not error.__suppress_context__:
        kind, before = "context", error.__context__
    if before is None or before is error or not links or isinstance(before, ForwardedFailure):
        return ()
    if before.__traceback__ is not None and not frames_of(before):
        return _links(before, links - 1)
    return (kind, describe_failure(before, links - 1))


def _sendable(text: str) -> str:
    """The text with lone surrogates, as paths that are no UTF-8 have them, made visible."""
    return text.encode("utf-8", "backslashreplace").decode()


def _args_of(error: BaseException) -> bytes | None:
    """What the type was called with, as a literal; None when that is not plain or too large."""
    args = error.args
    if isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args = (*args, error.filename)  # left out of `args`, but not of the message
    try:
        data = dump_literal(args)
    except (TypeError, RecursionError):
        return None
    return data if len(data) <= _MAX_TEXT else None


def _message_of(error: BaseException) -> str:
    try:
        return _sendable(str(error)[:_MAX_TEXT])
    except Exception as broken:  # noqa: BLE001  a user's __str__ may do anything
        return f"<its message cannot be shown: {type(broken).__name__}>"


def rebuild_failure(failure: Failure, *, with_jax: bool = False) -> BaseException:
    """The exception in this process's own type, else `RemoteError`, with the user's frames there.

    Where there are none, its note has the whole traceback as text.

    Args:
        failure: what `describe_failure` made of it.
        with_jax: whether frames of jax are wanted as well.

    Raises:
        ProtocolError: when the data stands for no exception.
    """
    try:
        return _whole(failure, with_jax=with_jax)
    except ProtocolError:
        raise
    except (AttributeError, IndexError, OverflowError, RecursionError, TypeError, ValueError) as no:
        raise ProtocolError(
            "the peer raised an exception that cannot be read. Install the same jaxd on both sides."
        ) from no


def _whole(failure: Failure, *, with_jax: bool) -> BaseException:
    error = _rebuilt(failure)
    frames, links, notes = failure[6:9] or ((), (), ())
    for note in notes:
        error.add_note(note)
    error.__traceback__ = traceback_of(frames, with_jax=with_jax)
    if links:
        before = _whole(links[1], with_jax=with_jax)
        if links[0] == "cause":
            error.__cause__ = before
        else:
            error.__context__ = before
    if not frames and (type(error) is RemoteError or not isinstance(error, JaxdError)):
        error.add_note(f"\nRaised on the jaxd server:\n\n{failure[5].rstrip()}")
    return error


def _rebuilt(failure: Failure) -> BaseException:
    module, name, message, args, retry_after_s = failure[:5]
    if module == errors.__name__ and name in errors.__all__:
        return _own_error(name, message, retry_after_s)
    kind = _loaded_exception(module, name)
    error = _foreign_error(kind, message, args) if kind else None
    if error is None:
        qualified = name if module == "builtins" else f"{module}.{name}"
        error = RemoteError(f"{qualified}: {message}", qualified)
    return error


def _own_error(name: str, message: str, retry_after_s: float) -> BaseException:
    kind: type[JaxdError] = getattr(errors, name)
    return Busy(message, retry_after_s) if kind is Busy else kind(message)


def _loaded_exception(module: str, name: str) -> type[Exception] | None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # a module's __getattr__ may import
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _foreign_error(kind: type[Exception], message: str, args: bytes | None) -> BaseException | None:
    """An instance with these `args`; but for few types without calling `__init__`."""
    values = load_literal(args, 0)[0] if args is not None else (message,)
    try:
        if kind.__module__ == "builtins" or (kind.__module__, kind.__name__) in _MADE_BY_INIT:
            error = kind(*values)
        else:
            error = kind.__new__(kind, *values)
            error.args = values
        return error if str(error) == message else None
    except Exception:  # noqa: BLE001  a class with demands of its own: RemoteError will name it
        return None
