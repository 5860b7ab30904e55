"""How notebooks show what this package returns: tables as HTML, and the corner of an array.

Whatever is shown may come from a user or another client, so all of it is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from jaxd_protocol.base.terminal import size, truncate

_LEFT: Final = 'style="text-align: left"'
_MAX_CELL: Final = 200
_MOST: Final = 100
"""Rows or columns of a preview."""


def titled(title: str, *parts: str) -> str:
    """HTML with a line in bold above other HTML.

    Args:
        title: plain text.
        *parts: HTML.
    """
    return f"<div><b>{escape(title)}</b>{''.join(parts)}</div>"


def paragraphs(lines: Iterable[str]) -> str:
    """Each line of plain text in a line of its own."""
    return "".join(f"<div>{escape(line)}</div>" for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of plain values.

    Args:
        head: the headings; none: there is no such row.
        rows: their cells, of which the text is shown.
    """
    shown = ["<tr>" + "".join(f"<th {_LEFT}>{escape(each)}</th>" for each in head) + "</tr>"]
    shown += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows]
    return f"<table>{''.join(shown if head else shown[1:])}</table>"


def _cell(value: object) -> str:
    return f"<td {_LEFT}>{escape(truncate(str(value), _MAX_CELL))}</td>"


class Preview:
    """The first rows and columns of an array, as a table in a notebook; `str` of it elsewhere.

    Args:
        array: a `RemoteArray`.
        rows: how many of these, a hundred at most.
        columns: likewise.

    Attributes:
        title: the array in one line.
        data: what was fetched, as a numpy array of at most two dimensions; None of PRNG keys.
    """

    def __init__(self, array: Any, rows: int, columns: int) -> None:
        self.title = _title(array)
        self.data = None if array.leaf.tag == "K" else _corner(array, rows, columns)
        self._note = _note(array.shape, self.data)

    def __repr__(self) -> str:
        return "\n".join([self.title, *([] if self.data is None else [str(self.data)]), self._note])

    def _repr_html_(self) -> str:
        if self.data is None:
            return titled(self.title, paragraphs([self._note]))
        grid = self.data.reshape((-1, self.data.shape[-1])) if self.data.ndim else [[self.data]]
        rows = [[f"{each:.6g}" if _is_real(each) else each for each in row] for row in grid]
        return titled(self.title, table((), rows), paragraphs([self._note]))


def _corner(array: Any, rows: int, columns: int) -> Any:
    import numpy as np

    last = (slice(min(rows, _MOST)), slice(min(columns, _MOST)))
    dimensions = len(array.shape)
    index = (*([0] * (dimensions - 2)), *last[2 - min(dimensions, 2) :])
    return np.asarray(array[index])


def _is_real(value: Any) -> bool:
    return getattr(value, "dtype", None) is not None and value.dtype.kind == "f"


def _note(shape: tuple[int, ...], data: Any) -> str:
    if data is None:
        return "PRNG keys have no numbers to look at."
    if not shape:
        return "the only element"
    leading = ", ".join(["0"] * (len(shape) - 2))
    where = f" at [{leading}]" if leading else ""
    return f"{' x '.join(map(str, data.shape))}{where} of {' x '.join(map(str, shape))}"


def _title(array: Any) -> str:
    kind = f"key<{array.leaf.impl}>" if array.leaf.tag == "K" else array.leaf.dtype
    return f"RemoteArray {kind}[{','.join(map(str, array.shape))}]"


def array_html(array: Any) -> str:
    """What a `RemoteArray` is, how large and where; moves nothing."""
    copy = "a copy is in this process" if array.is_here else "not fetched"
    rows = [
        ("shape", array.shape),
        ("dtype", array.dtype),
        ("size", size(array.nbytes)),
        ("where", f"{array.fetcher.address}, {'deleted' if array.is_deleted() else copy}"),
    ]
    hint = (
        [] if array.is_deleted() else ["Its method preview() fetches the first rows and columns."]
    )
    return titled(_title(array), table((), rows), paragraphs(hint))
