"""The frames of a traceback as data, and decoded as one that every tool of this process can show.

Only places travel. The lines of source are read where the traceback is shown: from the user's own
files, or the cells of a notebook, which the other end may not have. Whatever shows a traceback or a
warning opens the file that it names, so the other end names none but those that this process has
loaded code from; any other stands in angle brackets, as what is no file does, and is not opened.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from traceback import FrameSummary, StackSummary, TracebackException, walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple

from jaxd_protocol.packages.installed import OWN_PACKAGES, content_of

_OWN_PACKAGES: Final = frozenset(OWN_PACKAGES)
_HIDDEN_PACKAGES: Final = _OWN_PACKAGES | {"concurrent", "threading"}
"""What calls a user's function on a server."""

_JAX_PACKAGES: Final = frozenset({"jax", "jaxlib"})
_MAX_FRAMES: Final = 200
_MAX_LINES: Final = 1000
"""Of one statement. Python 3.13 shows each, as many as the other end reports."""


class RemoteFrame(NamedTuple):
    """One line of a traceback. A plain tuple on the wire.

    Attributes:
        file, module, name: of the code.
        line, end_line, column, end_column: where it was; -1 for what is not known.
    """

    file: str
    module: str
    name: str
    line: int
    end_line: int
    column: int
    end_column: int


def frames_of(error: BaseException) -> tuple[tuple[Any, ...], ...]:
    """The frames of an exception that its user knows: all but those of the server and of Python.

    None when there are only those of jax and of the server: then it is not the user's code that
    failed.
    """
    found = [_frame(frame, trace) for frame, trace in _frames_below(error.__traceback__)]
    known = _HIDDEN_PACKAGES | _JAX_PACKAGES
    first = next((i for i, each in enumerate(found) if _root(each) not in known), len(found))
    frames = [each for each in found[first:] if _root(each) not in _OWN_PACKAGES]
    if len(frames) > _MAX_FRAMES:  # a recursion without end: its beginning and its end say it
        frames = [*frames[: _MAX_FRAMES // 2], *frames[-_MAX_FRAMES // 2 :]]
    return tuple(map(tuple, frames))


def traceback_of(frames: tuple[Any, ...], *, with_jax: bool) -> TracebackType | None:
    """A traceback with these frames, outermost first; None without any.

    Args:
        frames: what `frames_of` returned elsewhere.
        with_jax: whether those of jax are wanted: by default it leaves its own out.
    """
    wanted = [RemoteFrame(*each) for each in frames[:_MAX_FRAMES]]
    if not with_jax:
        wanted = [each for each in wanted if _root(each) not in _JAX_PACKAGES]
    trace: TracebackType | None = None
    for each in reversed(wanted):
        made = _make_frame(each)
        trace = TracebackType(trace, made, made.f_lasti, max(1, each.line))
    return trace


def display_file(file: str) -> str:
    """The name under which a file that the other end names is shown: one that can be opened here.

    That is the file of a module, or what lines were read from before, such as a notebook's cell.
    Nothing opens a name in angle brackets.
    """
    is_none = file.startswith("<") and file.endswith(">")
    if is_none or file in linecache.cache or file in _files_of_modules():
        return file
    return f"<{file}>"


def _files_of_modules() -> Iterator[object]:
    for module in list(sys.modules):
        yield content_of(module).get("__file__")


def format_traceback(error: BaseException) -> str:
    """As `traceback.format_exception`, for the other end.

    Frames that it has named itself have no lines of source there: else it could read, line by line,
    what it names.
    """
    shown = TracebackException.from_exception(error)
    _hide_source_lines(shown, error)
    return "".join(shown.format())


def _hide_source_lines(shown: TracebackException, error: BaseException) -> None:
    todo = [(shown, error)]  # a chain may be longer than Python recurses
    while todo:
        one, of = todo.pop()
        _hide_source_lines_of(one, of)
        pairs = [
            (one.__cause__, of.__cause__),
            (one.__context__, of.__context__),
            *zip(one.exceptions or (), getattr(of, "exceptions", ()), strict=False),
        ]
        todo += [(a, b) for a, b in pairs if a is not None and b is not None]


def _hide_source_lines_of(shown: TracebackException, error: BaseException) -> None:
    made = [frame.f_globals.get("_Here") is _Here for frame, _ in walk_tb(error.__traceback__)]
    if any(made):
        shown.stack = StackSummary.from_list(
            FrameSummary(one.filename, one.lineno or 1, one.name, line="") if is_made else one
            for one, is_made in zip(shown.stack, made, strict=False)
        )


def _frames_below(trace: TracebackType | None) -> Iterator[tuple[FrameType, TracebackType]]:
    at = trace
    for frame, _ in walk_tb(trace):
        assert at is not None
        yield frame, at
        at = at.tb_next


def _frame(frame: FrameType, trace: TracebackType) -> RemoteFrame:
    code, line = frame.f_code, trace.tb_lineno or 1
    module = str(frame.f_globals.get("__name__", ""))
    place: list[int | None] = [line, None, None, None]
    for index, positions in enumerate(code.co_positions()):
        if index == trace.tb_lasti // 2:
            place = list(positions)
            break
    known = [-1 if number is None else number for number in place]
    if known[0] != line:
        known = [line, -1, -1, -1]
    file = code.co_filename.encode("utf-8", "backslashreplace").decode()
    return RemoteFrame(file, module, code.co_name, *known)


def _root(frame: RemoteFrame) -> str:
    return frame.module.partition(".")[0]


class _Here(Exception):
    """Raised only for the frame that it leaves behind."""


_PROTOTYPE: Final = compile("raise _Here", "<jaxd>", "exec")


def _make_frame(place: RemoteFrame) -> FrameType:
    """A frame of code with that place. It has run, and does nothing."""
    line = max(1, place.line)
    code = _PROTOTYPE.replace(
        co_filename=display_file(place.file),
        co_name=place.name,
        co_qualname=place.name,
        co_firstlineno=line,
        co_linetable=_line_table(_PROTOTYPE, place),
    )
    trace = None
    try:
        exec(code, {"__name__": place.module, "_Here": _Here})  # noqa: S102  it is our own
    except _Here as here:
        trace = here.__traceback__
    assert trace is not None
    assert trace.tb_next is not None
    return trace.tb_next.tb_frame


def _line_table(code: CodeType, place: RemoteFrame) -> bytes:
    """One place for all instructions, as CPython 3.11 and later write it (PEP 626)."""
    units = len(code.co_code) // 2
    table = bytearray()
    known = min(place.end_line, place.column, place.end_column) >= 0
    known = known and place.end_line - place.line <= _MAX_LINES
    for start in range(0, units, 8):
        length = min(8, units - start)
        if known:
            table.append(0x80 | 14 << 3 | length - 1)
            table += _varint(0)
            table += _varint(max(0, place.end_line - place.line))
            table += _varint(place.column + 1) + _varint(place.end_column + 1)
        else:
            table.append(0x80 | 13 << 3 | length - 1)
            table += _varint(0)
    return bytes(table)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 64:
        found.append(64 | number & 63)
        number >>= 6
    found.append(number)
    return bytes(found)
