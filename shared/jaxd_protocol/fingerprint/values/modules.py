"""Modules, and references to what is installed."""

from __future__ import annotations

from hashlib import blake2b
from types import ModuleType
from typing import Any, Final

from jaxd_protocol.fingerprint.canonical import DIGEST_SIZE
from jaxd_protocol.fingerprint.impure import impurity
from jaxd_protocol.fingerprint.process_view import is_extension
from jaxd_protocol.fingerprint.walk import Walk

IGNORED_ATTRIBUTES: Final = frozenset(
    [
        "__name__",
        "__file__",
        "__doc__",
        "__package__",
        "__spec__",
        "__loader__",
        "__builtins__",
        "__cached__",
        "__path__",
        "__debug__",
        "__annotations__",
        "__annotate__",
        "__conditional_annotations__",
    ]
)
"""Names in a module that say where it is and not what it does."""


def emit_reference(walk: Walk, module: str, name: str) -> None:
    """Appends something installed, by its name and its distribution."""
    walk.tag("installed")
    walk.text(module)
    walk.text(name)
    walk.package(module)
    impure = impurity(module, name)
    if impure is not None:
        walk.note(impure)


def emit_module(walk: Walk, module: ModuleType) -> None:
    """Appends a module that is used as a value: all that is in it can be reached."""
    name = module.__name__
    if not walk.is_local(name):
        walk.reach.installed.append(module)
        emit_reference(walk, name, "")
        return
    walk.reach.whole.add(id(module))
    walk.numbered(module, _local_module, name)


def _local_module(walk: Walk, module: ModuleType) -> None:
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and is_extension(file):
        emit_extension(walk, module, file)
        return
    walk.tag("module")
    content = vars(module)
    names = sorted(filter(_is_content, content))
    walk.text(len(names))
    walk.guards.mapping(content)
    for name in names:
        walk.text(name)
        walk.emit_labelled(f"global {name}", content[name])


def _is_content(name: str) -> bool:
    return name not in IGNORED_ATTRIBUTES and not name.startswith(
        "@py"
    )  # pytest's rewritten asserts


def emit_extension(walk: Walk, module: Any, file: str) -> None:
    """Appends a compiled module of the user's own: the bytes of its file."""
    walk.tag("extension")
    with open(file, "rb") as source:
        walk.write(blake2b(source.read(), digest_size=DIGEST_SIZE).digest())
    walk.unpicklable(module, "it is a compiled extension module")
