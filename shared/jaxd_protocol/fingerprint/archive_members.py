"""Members of an archive: an object is appended by its name, the archive by its code.

Most functions travel without archives, so the modules that build archives are imported lazily.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.canonical_bytes import ATOMS, digest
from jaxd_protocol.fingerprint.code.reads import facts_of
from jaxd_protocol.fingerprint.data_model import Name, Steps
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.walk import Walk, short_repr


def is_archived(walk: Walk, module: str) -> bool:
    """Whether a module counts as a file."""
    return walk.archives is not None and walk.archives.has(module, walk.is_local(module))


def name_of(walk: Walk, value: Any) -> Name | None:
    """The name of an object in an archive; None when it has none."""
    if walk.archives is None:
        return None
    for home in _possible_modules(value):
        is_archived(walk, home)
    return walk.archives.name_of(value)


def emit_archived(walk: Walk, value: Any) -> bool:
    """Appends an object by its name in an archive; False when it has none."""
    name = name_of(walk, value)
    if name is None:
        return False
    home, inner = name

    def body(walk: Walk, _: Any) -> None:
        walk.tag("archived")
        walk.text(home)
        walk.text(inner)

    walk.archived.add(home)
    walk.numbered(value, body)
    return True


def _possible_modules(value: Any) -> Iterator[str]:
    """The modules that an object may be in."""
    if isinstance(value, ModuleType):
        yield value.__name__
        return
    if isinstance(value, FunctionType):
        yield str(value.__globals__.get("__name__") or "?")
    yield from filter(None, map(_declared_module, (value, type(value))))


def _declared_module(value: Any) -> str | None:
    try:
        home = getattr(value, "__module__", None)
    except Exception:  # noqa: BLE001  a user's __getattr__ may do anything
        return None
    return home if isinstance(home, str) else None


def emit_defining_module(walk: Walk, function: FunctionType) -> bool:
    """Appends the module of a function that is no global of it, such as one in a closure.

    Its globals are those of the archive. False when its module is in none.
    """
    home = function.__globals__.get("__name__")
    if walk.archives is None or not isinstance(home, str) or not is_archived(walk, home):
        return False
    module = walk.archives.module(home)
    if module is None or vars(module) is not function.__globals__:
        return False
    return emit_archived(walk, module)


def emit_import(walk: Walk, name: str, names: tuple[str, ...]) -> bool:
    """Appends an import statement in a function; False when it is not of an archived module."""
    if not is_archived(walk, name):
        return False
    walk.tag("from archive")
    walk.text(name)
    for each in names:
        walk.text(each)
    walk.archived.update((name, *(f"{name}.{each}" for each in names)))
    return True


def add_computed_imports(walk: Walk, function: FunctionType) -> None:
    """Puts packages into the archive whose names begin strings in code that computes imports."""
    if walk.archives is not None:
        from jaxd_protocol.fingerprint.local_archives import packages_in_strings

        for top in sorted(packages_in_strings(function.__code__)):
            is_archived(walk, top)


def allow_computed_import(walk: Walk, steps: Steps) -> bool:
    """Whether code may import modules by computed names.

    A name that can be read puts its package into the archive.
    """
    if walk.archives is None:
        return False
    if steps and steps[0][0] in "ci" and isinstance(steps[0][1], str):
        name = steps[0][1]
        if name.strip(".") and is_archived(walk, name):
            walk.archived.add(name)
    return True


def emit_read(walk: Walk, value: Any, steps: Steps) -> bool:
    """Appends what code reads of an object that an archive makes; False for any other.

    A plain value counts: the server refuses the function when its copy, as the source makes it,
    has another one.
    """
    if not emit_archived(walk, value):
        return False
    assert walk.archives is not None
    from jaxd_protocol.fingerprint.local_archives import IMPORTLIB

    home, inner = walk.archives.name_of(value) or ("", "")
    if home == IMPORTLIB:
        allow_computed_import(walk, steps if inner else steps[1:])
        return True
    path = [*filter(None, (home, inner))]
    for kind, name in steps:
        content = getattr(value, "__dict__", {})
        if kind != "a" or name not in content or not _is_user_code(walk, value):
            return True
        walk.text(name)
        found = content[name]
        if isinstance(value, type):
            walk.guards.attribute(value, name, getattr(value, name, MISSING))
        else:
            walk.guards.item(content, name, found)
        path.append(name)
        _refuse_patched(walk, ".".join(path), found)
        value = found
    if _is_plain_setting(value):
        data = repr(value).encode()
        walk.write(digest(data))
        walk.part("archived", ".".join(path), data, short_repr(value))
    return True


def _is_user_code(walk: Walk, owner: Any) -> bool:
    """Whether the attributes of an object are the user's own, and not a library's."""
    if isinstance(owner, ModuleType):
        return is_archived(walk, owner.__name__)
    cls = owner if isinstance(owner, type) else type(owner)
    return walk.is_local(cls.__module__)


def _refuse_patched(walk: Walk, place: str, found: Any) -> None:
    """Raises where code of the user's that is in no archive was put into one.

    Raises:
        PackingError: the server has what the source makes.
    """
    if not isinstance(found, FunctionType | type):
        return
    home = getattr(found, "__globals__", {}).get("__name__") or found.__module__
    if walk.is_local(str(home)) and not is_archived(walk, str(home)):
        raise PackingError(
            f"{walk.path()} uses {place}, which was replaced by {found.__qualname__} of {home}. "
            "With ship='source' the server has what the source makes: pass the function as an "
            "argument, or leave ship= out."
        )


def _is_plain_setting(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain_setting, value))
    if type(value) is dict:
        return all(map(_is_plain_setting, (*value, *value.values())))
    return type(value) in ATOMS


def emit_archive(walk: Walk) -> None:
    """Appends the code of all archived packages, and the installed ones that have to be there.

    The latter are those that modules import of which something is reached.
    """
    assert walk.archives is not None
    archive = walk.archives.archive
    walk.tag("archive")
    walk.write(archive.content)
    for name in sorted(archive.sources):
        walk.part("module", f"module {name}", facts_of(archive.sources[name].code).digest)
    for imported in sorted(_reached_sources(archive.sources, walk.archived)):
        top = imported.partition(".")[0]
        if imported not in archive.sources and not walk.is_local(top):
            walk.package(top)


def _reached_sources(sources: Any, named: set[str]) -> set[str]:
    """All that these modules import, and the archived ones among it in turn."""
    from jaxd_protocol.fingerprint.local_archives import imported_names

    left, found = [name for name in named if name in sources], set[str]()
    while left:
        name = left.pop()
        parents = {name.rpartition(".")[0]} - {""}
        for imported in {*imported_names(name, sources[name]), *parents} - found:
            found.add(imported)
            if imported in sources:
                left.append(imported)
    return found
