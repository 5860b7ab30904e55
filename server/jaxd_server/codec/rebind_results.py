"""Result layouts from the tracer process, with references rebound to the objects of this process.

A reference in a result carries a token by which its maker finds the object again. In a form that
was read from disk, or that a tracer sent, the maker is another process. So it gets a token of this
one, and what that stands for is looked for when it comes back: imported, or found in the function.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxd_protocol.pickling.unpack.object_tokens import keep_lookup
from jaxd_protocol.pytree import parse_skeleton
from jaxd_protocol.pytree.decoder import parameter_default
from jaxd_protocol.pytree.leaves import dtype_of
from jaxd_protocol.pytree.references import Reference, load_reference, replace_tokens
from jaxd_server.codec.object_references import object_numbers
from jaxd_server.codec.results import ResultLayout


def rebind_form(form: ResultLayout) -> ResultLayout:
    """The same form with tokens of this process.

    Raises:
        ProtocolError: when its skeleton is none.
    """
    if b"R" not in form.skeleton:
        return form
    own = _References()
    parse_skeleton(form.skeleton, lambda *_: object, None, own)
    skeleton = replace_tokens(form.skeleton, own.found, _token_of)
    return replace(form, skeleton=skeleton)


class _References:
    """Takes down the references of a skeleton; nothing is built from it."""

    def __init__(self) -> None:
        self.found: list[Reference] = []

    def getter(
        self, reference: Reference, holders: tuple[type, ...], field: str
    ) -> Callable[[], Any]:
        self.found.append(reference)
        return lambda: None

    def unflattener(self, cls: type) -> Callable[[Any, list[Any]], Any]:
        return lambda aux, children: None

    def structure(self, tree: Any) -> Any:
        return None


def _token_of(reference: Reference) -> bytes:
    name = (reference.kind, repr(reference.detail))
    if reference.kind == "m":  # a detail with a token in it, which is another one each time
        owner, member = reference.detail
        name = ("m", repr((_token_of(load_reference(owner)), member)))
    return keep_lookup(name, lambda: _find(reference))


def _find(reference: Reference) -> Any:
    """The object here; LookupError, ImportError or AttributeError when there is none."""
    kind, detail = reference.kind, reference.detail
    if kind == "i":
        return _imported(*detail)
    if kind in "ke" and not detail[2]:
        cls = _imported(*detail[:2])
        return cls[detail[3]] if kind == "e" else cls
    if kind == "d":
        return dtype_of(detail[0])
    if kind == "s":
        return {"set": set, "frozenset": frozenset}[detail[0]](detail[1])
    if kind == "m":
        return getattr(_find(load_reference(detail[0])), detail[1])
    if kind == "p":
        return parameter_default(_imported(*detail[:2]), detail[2], None)
    if kind == "n":
        return object_numbers.at(detail[0])
    raise LookupError(f"a {reference.about} that only the process had that made it")


def _imported(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found
