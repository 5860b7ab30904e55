"""Exceptions as plain data, and decoded as the type that the other end has.

To decode one, nothing is imported or unpickled, and no attribute of a module is computed. Decoded
types are jaxd's, Python's own, jax's, and those that the called function reaches itself; any other
becomes a `RemoteError` with its text.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any, Final, Protocol

from jaxd_protocol import errors
from jaxd_protocol.errors import Busy, JaxdError, ProtocolError, RemoteError
from jaxd_protocol.messages.calls import ORIGIN, FailureOrigin, set_origin
from jaxd_protocol.messages.tracebacks import (
    format_traceback,
    frames_of,
    raising_module,
    traceback_of,
)
from jaxd_protocol.packages.installed import content_of
from jaxd_protocol.pytree import TreeEncoder
from jaxd_protocol.pytree.literals import dump_literal, load_literal

Failure = tuple[Any, ...]
"""(module, qualified name, message, literal of args or None, retry_after_s, traceback text, frames,
links, notes, own, members, origin): frames as in `tracebacks`; links the failure that led to it,
with "cause" or "context" before it; own the content id of a type of the user's with the skeleton
and blob of its attributes, or nothing; members the failures in a group; origin a `FailureOrigin`.
"""

_MAX_TEXT: Final = 1 << 20
_MAX_CAUSES: Final = 8
_MAX_MEMBERS: Final = 64
_MAX_ID: Final = 32
_JAX_PACKAGES: Final = frozenset({"jax", "jaxlib"})
_CODE_METHODS: Final = frozenset({"__del__", "__new__", "__repr__", "__str__"})
_NEEDS_INIT: Final = frozenset({"JaxRuntimeError"})
"""Types of jax that cannot be shown without what their `__init__` sets, which does nothing else."""


_LEFT_OUT: Final = (
    "The frames of jax and of the jaxd server are left out. Set JAX_TRACEBACK_FILTERING=off to "
    "include them."
)
_TRACEBACK: Final = "Traceback (most recent call last):"
_INTERNAL_LINE: Final = re.compile(
    r'  File ".*/(jaxd_server/|jaxd_protocol/|jaxlib/|jax/_src/|threading\.py"|concurrent/)'
)


class FunctionContent(Protocol):
    """The exception types and the code that a function reaches."""

    def exception_type(self, module: str, name: str, content: bytes) -> type | None:
        """The type with that name and content id; None where the function reaches none."""

    def attributes(self, skeleton: bytes, blob: bytes) -> dict[str, Any]:
        """The attributes of an exception that were sent."""

    def find_code(self, mark: bytes) -> Sequence[CodeType]:
        """The code objects with a `code_mark`."""


class ForwardedFailure(Exception):
    """An exception of another process of this server, which is forwarded unchanged.

    Attributes:
        failure: the exception, as `encode_failure` returned it there.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure[2])
        self.failure = failure


def encode_failure(
    error: BaseException, links: int = _MAX_CAUSES, phase: str = "", call: str = ""
) -> Failure:
    """The exception as plain values: its whole traceback as text, the user's frames as data.

    Never raises, whatever code an exception of the user's runs when it is read: a client waits.

    Args:
        error: the exception.
        links: how many of its causes are described as well.
        phase: that in which it was raised; see `FailureOrigin`.
        call: the id of the call that it ends.
    """
    if isinstance(error, ForwardedFailure):
        *described, (_, raised_in, *_) = error.failure
        return (*described, (phase, raised_in, call)) if phase else error.failure
    try:
        return _encoded(error, links, phase, call)
    except BaseException as broken:  # noqa: BLE001  see above
        kind, why = type(error).__qualname__, type(broken).__qualname__
        return _encoded(RuntimeError(f"{kind}, which cannot be described: {why}"), 0, call=call)


def _encoded(error: BaseException, links: int, phase: str = "", call: str = "") -> Failure:
    kind = type(error)
    return (
        kind.__module__,
        kind.__qualname__,
        _message_of(error),
        _args_of(error),
        error.retry_after_s if isinstance(error, Busy) else 0.0,
        _escape_surrogates(format_traceback(error)[-_MAX_TEXT:]),
        frames_of(error),
        _causes(error, links),
        tuple(_escape_surrogates(str(note)) for note in getattr(error, "__notes__", ())),
        _user_type(error),
        _group_members(error, links),
        (phase, raising_module(error), call),
    )


def _user_type(error: BaseException) -> tuple[Any, ...]:
    """Content id of a type of the user's own, and the attributes that are data."""
    # where it is not imported, this process has received no class
    table = sys.modules.get("jaxd_protocol.pickling.unpack.archives")
    content = table.content_id_of(type(error)) if table is not None else None
    if content is None:
        return ()
    encoder = _AttributeEncoder()
    kept = {name: value for name, value in vars(error).items() if _is_data(name, value)}
    encoder.node(kept)
    skeleton, blob = encoder.skeleton, encoder.blob
    is_small = len(skeleton) + len(blob) <= _MAX_TEXT
    return (content, skeleton, blob) if is_small else (content, b"", b"")


def _is_data(name: str, value: Any) -> bool:
    encoder = _AttributeEncoder()
    try:
        encoder.node(value)
    except Exception:  # noqa: BLE001  a tracer, an open file, a cycle: it is not sent
        return False
    return name not in ("__notes__", ORIGIN) and not encoder.buffers


class _AttributeEncoder(TreeEncoder):
    """Writes plain values, containers of these, and small arrays."""

    def node(self, value: Any) -> None:
        """Appends one tree; numbers are static, so that they do not become arrays."""
        if type(value) in (bool, int, float, complex):
            self.static(value)
        else:
            super().node(value)

    def other(self, value: Any) -> None:
        """Appends an array; nothing else is data."""
        if not hasattr(type(value), "__array__"):
            raise TypeError(type(value).__name__)
        import numpy

        self.array(numpy.ascontiguousarray(value).reshape(value.shape))


def _group_members(error: BaseException, links: int) -> tuple[Any, ...]:
    """The members of an exception group; none where there are too many."""
    if not isinstance(error, ExceptionGroup) or not links or len(error.exceptions) > _MAX_MEMBERS:
        return ()
    return tuple(encode_failure(each, links - 1) for each in error.exceptions)


def _causes(error: BaseException, links: int) -> tuple[Any, ...]:
    """The cause or context of an exception, as far as it is of the user's own code."""
    kind, before = "cause", error.__cause__
    if before is None and not error.__suppress_context__:
        kind, before = "context", error.__context__
    if before is None or before is error or not links or isinstance(before, ForwardedFailure):
        return ()
    if before.__traceback__ is not None and not frames_of(before):
        return _causes(before, links - 1)
    return (kind, encode_failure(before, links - 1))


def _escape_surrogates(text: str) -> str:
    """The text with lone surrogates, which paths that are no UTF-8 contain, escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def _args_of(error: BaseException) -> bytes | None:
    """The `args` of an exception as a literal; None when they are not plain or too large."""
    args = error.args[:1] if isinstance(error, ExceptionGroup) else error.args
    if isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args = (*args, error.filename)  # left out of `args`, but not of the message
    try:
        data = dump_literal(args)
    except (TypeError, RecursionError):
        return None
    return data if len(data) <= _MAX_TEXT else None


def _message_of(error: BaseException) -> str:
    try:
        return _escape_surrogates(str(error)[:_MAX_TEXT])
    except Exception as broken:  # noqa: BLE001  a user's __str__ may do anything
        return f"<its message cannot be shown: {type(broken).__name__}>"


def decode_failure(
    failure: Failure, own: FunctionContent | None = None, *, with_jax: bool = False
) -> BaseException:
    """The exception in this process's own type, else `RemoteError`, with the user's remote frames.

    Where there are none, and frames of jax are included, its note has the whole traceback as text.

    Args:
        failure: as `encode_failure` returned it.
        own: what the function that was called reaches; without it, no type of the user's own is
            made, and frames are shown where the other end has their code.
        with_jax: whether frames of jax and of the server are included.

    Raises:
        ProtocolError: when the data is no exception.
    """
    try:
        return _decoded(failure, own, with_jax=with_jax)
    except ProtocolError:
        raise
    except (AttributeError, IndexError, OverflowError, RecursionError, TypeError, ValueError) as no:
        raise ProtocolError(
            "the peer raised an exception that cannot be read. Install the same jaxd on both sides."
        ) from no


def _decoded(failure: Failure, own: FunctionContent | None, *, with_jax: bool) -> BaseException:
    *described, text, frames, links, notes, user_type, group, origin = failure
    if not with_jax:
        described[2:4] = _without_internal_lines(*described[1:4])
    members = [_decoded(each, own, with_jax=with_jax) for each in group]
    error = _rebuilt(described, user_type, members, own)
    for note in notes:
        error.add_note(note)
    find_code = own.find_code if own is not None else None
    error.__traceback__ = traceback_of(frames, with_jax=with_jax, find_code=find_code)
    if links:
        before = _decoded(links[1], own, with_jax=with_jax)
        if links[0] == "cause":
            error.__cause__ = before
        else:
            error.__context__ = before
    phase, raised_in, call = map(str, (*origin, "")[:3])  # an older server sends no id
    set_origin(error, FailureOrigin(phase, raised_in, call[:_MAX_ID]))
    if call:
        vars(error).setdefault("call_id", call[:_MAX_ID])
    if not frames and (type(error) is RemoteError or not isinstance(error, JaxdError)):
        error.add_note(
            f"\nRaised on the jaxd server:\n\n{text.rstrip()}" if with_jax else _LEFT_OUT
        )
    return error


def _without_internal_lines(name: str, message: str, args: bytes | None) -> Any:
    """Message and args of an exception, without frames of jax and the server in jax's own text.

    The runtime of jax reports what a callback has raised with the traceback as text.
    """
    if name != "JaxRuntimeError" or type(message) is not str or _TRACEBACK not in message:
        return message, args
    head, _, rest = message.partition(_TRACEBACK)
    lines = [line for line in rest.split("\n") if not _INTERNAL_LINE.match(line)]
    return head + _TRACEBACK + "\n".join(lines), None


def _rebuilt(
    described: list[Any],
    user_type: tuple[Any, ...],
    members: list[BaseException],
    own: FunctionContent | None,
) -> BaseException:
    module, name, message, args, retry_after_s = described
    if module == errors.__name__ and name in errors.__all__:
        kind: type[JaxdError] = getattr(errors, name)
        return Busy(message, retry_after_s) if kind is Busy else kind(message)
    content, skeleton, blob = user_type or (b"", b"", b"")
    try:
        values = load_literal(args, 0)[0] if args is not None else (message,)
        values = (*values, members) if members else values
        if own is not None and content:
            error = _user_error(own.exception_type(module, name, content), values)
            if error is not None and skeleton:
                vars(error).update(own.attributes(skeleton, blob))
        else:
            error = _known_error(module, name, message, values)
        if error is not None and str(error) == message:
            return error
    except Exception:  # noqa: BLE001, S110  it needs other arguments: RemoteError will name it
        pass
    qualified = name if module == "builtins" else f"{module}.{name}"
    return RemoteError(f"{qualified}: {message}", qualified)


def _user_error(kind: type | None, values: tuple[Any, ...]) -> BaseException | None:
    """An instance with these `args`, made without `__init__`, whose parameters are unknown."""
    if kind is None or not issubclass(kind, Exception):
        return None
    error: BaseException = kind.__new__(kind, *values)
    error.args = values
    return error


def _known_error(
    module: str, name: str, message: str, values: tuple[Any, ...]
) -> BaseException | None:
    """One of Python's own exceptions, or of jax's."""
    if module == "builtins":
        kind: Any = vars(builtins).get(name)
        if _is_exception(kind) and issubclass(kind, SyntaxError):
            values = (message,)  # to display one opens the file that it names
        return kind(*values) if _is_exception(kind) else None
    kind = content_of(module).get(name) if module.partition(".")[0] in _JAX_PACKAGES else None
    if not _is_exception(kind) or kind.__module__ != module:
        return None
    if name in _NEEDS_INIT:
        return kind(*values)  # type: ignore[no-any-return]
    return None if has_code(kind, _CODE_METHODS) else _user_error(kind, values)


def has_code(kind: type, methods: frozenset[str]) -> bool:
    """Whether an exception type, or its metaclass, has code of its own.

    Args:
        kind: an exception type, chosen by the other end.
        methods: those in which code counts: what is run of one that is made, shown and dropped.
    """
    own = [vars(base) for base in kind.__mro__ if base.__module__ != "builtins"]
    return type(kind) is not type or any(methods & members.keys() for members in own)


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)
