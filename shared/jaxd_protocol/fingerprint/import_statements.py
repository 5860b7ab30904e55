"""Import statements inside of functions, also of local modules that are not imported yet.

The latter are not imported for the sake of the key: that would run code, and a light client would
have to import jax. Their compiled source counts, and that of the local modules which it imports in
turn.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from jaxd_protocol.fingerprint import archive_members
from jaxd_protocol.fingerprint.access_paths import bound_uses, check_installed
from jaxd_protocol.fingerprint.code.reads import Import
from jaxd_protocol.fingerprint.local_imports import (
    absolute_name,
    from_import,
    local_import,
)
from jaxd_protocol.fingerprint.process_view import prefixes_of
from jaxd_protocol.fingerprint.values import modules
from jaxd_protocol.fingerprint.walk import Walk


def emit_import(walk: Walk, globals_: dict[str, Any], statement: Import) -> None:
    """Appends what an import statement in a function brings in, as far as it is read."""
    walk.tag("import")
    statement = _with_callees(walk, globals_, statement)
    name = absolute_name(statement.name, statement.level, globals_)
    if not walk.is_local(name):
        modules.emit_reference(walk, name, "")
        _installed_import(walk, name, statement)
        return
    if archive_members.emit_import(walk, name, statement.names):
        return
    for parent in prefixes_of(name):
        local_import(walk, parent)
    module = walk.process_view.module(name)
    for each in statement.names:
        if module is not None:
            from_import(walk, module, each, statement.uses_at((each,)))
        elif walk.process_view.source(f"{name}.{each}") is not None:
            local_import(walk, f"{name}.{each}")
    if module is not None and not statement.names:
        _plain_import(walk, name, module, statement)


def _with_callees(walk: Walk, globals_: dict[str, Any], statement: Import) -> Import:
    """The statement, whose reads name the functions that something is passed to."""
    found = (
        bound_uses(walk, globals_, None if each is None else dict(each)) for each in statement.uses
    )
    return statement._replace(uses=tuple(u if u is None else (*u.items(),) for u in found))


def _plain_import(walk: Walk, name: str, module: ModuleType, statement: Import) -> None:
    """What the variables of `import a.b` and `import a.b as c` lead to."""
    top = walk.process_view.module(name.partition(".")[0])
    for _, path in statement.bound:
        bound = top if path is None else _by_attributes(walk, name) or module
        walk.emit_uses(f"global {name}", bound, statement.uses_at(path))
    if not statement.bound:
        modules.emit_module(walk, module)


def _by_attributes(walk: Walk, name: str) -> Any:
    """What `import a.b as c` binds: the attribute, which need not be the module of that name."""
    top, *rest = name.split(".")
    found: Any = walk.process_view.module(top)
    for part in rest:
        content = getattr(found, "__dict__", {})
        if part not in content:
            return None
        walk.guards.item(content, part, content[part])
        found = content[part]
    return found


def _installed_import(walk: Walk, name: str, statement: Import) -> None:
    """Appends what is patched, as far as this process has the module.

    Nothing else may be appended: another process may not have imported it yet.
    """
    process_view = walk.process_view
    module = process_view.module(name)
    if module is None:
        walk.guards.answer(lambda: process_view.module(name) is None, True)
        return
    top = process_view.module(name.partition(".")[0])
    for each in statement.names:
        for steps, line in (statement.uses_at((each,)) or {(): 0}).items():
            walk.line = line
            check_installed(walk, module, (("a", each), *steps))
    for _, path in () if statement.names else statement.bound:
        bound = top if path is None else module
        for steps, line in (statement.uses_at(path) or {}).items():
            walk.line = line
            check_installed(walk, bound, steps)
