"""The frames of a traceback as data, and decoded as one that every tool of this process can show.

Only source positions are sent. The lines of source are read where the traceback is shown: from the
user's own files, or the cells of a notebook, which the other end may not have. Tools that show a
traceback or a warning open the file that it names. So names of files from which this process has
not loaded code are put in angle brackets, like names that are no files; these are not opened.

The lines of a function are not part of its key: a server may have it as it was before an edit above
it, or from another process. So a frame names its code and the instruction, and is shown where this
process has that code.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from traceback import FrameSummary, StackSummary, TracebackException, walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple

from jaxd_protocol.packages.installed import OWN_PACKAGES, content_of

_OWN_PACKAGES: Final = frozenset(OWN_PACKAGES)
_HIDDEN_PACKAGES: Final = _OWN_PACKAGES | {"concurrent", "threading"}
"""Packages of the frames that call a user's function on a server."""

_JAX_PACKAGES: Final = frozenset({"jax", "jaxlib"})
_MAX_FRAMES: Final = 200
_MAX_LINES: Final = 1000
"""Of one statement. Python 3.13 shows all lines that the other end reports."""


class RemoteFrame(NamedTuple):
    """One line of a traceback. A plain tuple on the wire.

    Attributes:
        file, module, name: of the code.
        line, end_line, column, end_column: position in the file; -1 where it is unknown.
        code: the `code_mark` of the code.
        offset: bytes before the instruction.
    """

    file: str
    module: str
    name: str
    line: int
    end_line: int
    column: int
    end_column: int
    code: bytes
    offset: int


FindCode = Callable[[bytes], Sequence[CodeType]]
"""The code objects of this process with a `code_mark`."""


def frames_of(error: BaseException) -> tuple[tuple[Any, ...], ...]:
    """The frames of an exception, without those of the server that called the user's function.

    None when there are only frames of jax and of the server: then the user's code has not failed.
    """
    found = []
    trace = error.__traceback__
    while trace is not None:
        found.append(_frame(trace))
        trace = trace.tb_next
    known = _HIDDEN_PACKAGES | _JAX_PACKAGES
    first = next((i for i, each in enumerate(found) if _root(each) not in known), len(found))
    frames = [each for each in found[first:] if _root(each) not in _OWN_PACKAGES]
    if len(frames) > _MAX_FRAMES:  # an endless recursion: its beginning and its end suffice
        frames = [*frames[: _MAX_FRAMES // 2], *frames[-_MAX_FRAMES // 2 :]]
    return tuple(map(tuple, frames))


def raising_module(error: BaseException) -> str:
    """The module whose `raise` or `assert` raised it; empty when Python or code in C did."""
    from opcode import opmap  # most processes read and write no failure

    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code, at = trace.tb_frame.f_code.co_code, trace.tb_lasti
    is_statement = 0 <= at < len(code) and code[at] == opmap["RAISE_VARARGS"]
    return str(trace.tb_frame.f_globals.get("__name__", "")) if is_statement else ""


def code_mark(code: CodeType) -> bytes:
    """Eight bytes that two code objects share which differ at most in where they stand."""
    named = repr((code.co_qualname, code.co_names, code.co_varnames, code.co_freevars))
    digest = hashlib.blake2b(named.encode("utf-8", "backslashreplace"), digest_size=8)
    digest.update(code.co_code)
    return digest.digest()


def traceback_of(
    frames: tuple[Any, ...], *, with_jax: bool, find_code: FindCode | None = None
) -> TracebackType | None:
    """A traceback with these frames, outermost first; None without any.

    Args:
        frames: as `frames_of` returned them at the other end.
        with_jax: whether those of jax are included: by default jax leaves its own out.
        find_code: finds the code of this process that frames are shown in.
    """
    wanted = [RemoteFrame(*each) for each in frames[:_MAX_FRAMES]]
    if not with_jax:
        wanted = [each for each in wanted if _root(each) not in _JAX_PACKAGES]
    trace: TracebackType | None = None
    for each in reversed(wanted):
        shown, first_line = _shown_frame(
            each, find_code(each.code) if find_code is not None else ()
        )
        made = _make_frame(shown, first_line)
        trace = TracebackType(trace, made, made.f_lasti, max(1, shown.line))
    return trace


def _shown_frame(frame: RemoteFrame, found: Sequence[CodeType]) -> tuple[RemoteFrame, int]:
    """The frame where this process has its code; as the other end has it where it has none.

    And the first line of the code: IPython counts the lines that it shows from there.
    """
    if not found:
        return frame._replace(file=display_file(frame.file)), max(1, frame.line)
    code = min(
        found, key=lambda c: (c.co_filename != frame.file, abs(c.co_firstlineno - frame.line))
    )
    place = _position(code, frame.offset, None)
    shown = RemoteFrame(
        code.co_filename, frame.module, frame.name, *place, frame.code, frame.offset
    )
    return shown, code.co_firstlineno


def display_file(file: str) -> str:
    """A file's name from the other end, as it is shown: in angle brackets if it may not be opened.

    The file of a module may be opened, and one that lines were read from before, such as the cell
    of a notebook.
    """
    is_none = file.startswith("<") and file.endswith(">")
    files = (content_of(module).get("__file__") for module in list(sys.modules))
    return file if is_none or file in linecache.cache or file in files else f"<{file}>"


def format_traceback(error: BaseException) -> str:
    """As `traceback.format_exception`, for the other end.

    Frames that it has named itself are shown without lines of source: else it could read any file
    that it names.
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


def _frame(trace: TracebackType) -> RemoteFrame:
    code, offset = trace.tb_frame.f_code, max(trace.tb_lasti, 0)
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    file = code.co_filename.encode("utf-8", "backslashreplace").decode()
    place = _position(code, offset, trace.tb_lineno or 1)
    return RemoteFrame(file, module, code.co_name, *place, code_mark(code), offset)


def _position(code: CodeType, offset: int, line: int | None) -> tuple[int, int, int, int]:
    """Line, end line, column and end column of an instruction; the line is known where given."""
    positions = islice(code.co_positions(), offset // 2, None)
    first, *others = next(positions, (None, None, None, None))
    line = line or first or code.co_firstlineno
    known = (-1 if first != line or number is None else number for number in others)
    end_line, column, end_column = known
    return line, end_line, column, end_column


def _root(frame: RemoteFrame) -> str:
    return frame.module.partition(".")[0]


class _Here(Exception):
    """Raised to obtain the frame that raises it."""


_PROTOTYPE: Final = compile("raise _Here", "<jaxd>", "exec")


def _make_frame(place: RemoteFrame, first_line: int) -> FrameType:
    """A frame of code with that position and first line. It has run, and does nothing."""
    code = _PROTOTYPE.replace(
        co_filename=place.file,
        co_name=place.name,
        co_qualname=place.name,
        co_firstlineno=first_line,
        co_linetable=_line_table(_PROTOTYPE, place, max(1, place.line) - first_line),
    )
    trace = None
    try:
        exec(code, {"__name__": place.module, "_Here": _Here})  # noqa: S102  it is our own
    except _Here as here:
        trace = here.__traceback__
    assert trace is not None
    assert trace.tb_next is not None
    return trace.tb_next.tb_frame


def _line_table(code: CodeType, place: RemoteFrame, skipped: int) -> bytes:
    """One position for all instructions, as CPython 3.11 and later write it (PEP 626).

    It begins that many lines below the first one of the code.
    """
    kind, numbers = 13, list[int]()  # without columns
    known = min(place.end_line, place.column, place.end_column) >= 0
    if known and place.end_line - place.line <= _MAX_LINES:
        lines = max(0, place.end_line - place.line)
        kind, numbers = 14, [lines, place.column + 1, place.end_column + 1]
    position = b"".join(map(_varint, numbers))
    below = _varint(skipped << 1 if skipped >= 0 else (-skipped << 1) | 1)
    units = len(code.co_code) // 2
    lengths = (min(8, units - start) for start in range(0, units, 8))
    heads = (bytes((0x80 | kind << 3 | length - 1,)) for length in lengths)
    return b"".join(
        head + (_varint(0) if at else below) + position for at, head in enumerate(heads)
    )


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 64:
        found.append(64 | number & 63)
        number >>= 6
    found.append(number)
    return bytes(found)
