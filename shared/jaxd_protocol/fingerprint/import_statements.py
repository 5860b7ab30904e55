"""Import statements inside of functions, also of local modules that are not imported yet.

The latter are not imported for the sake of the key: that would run code, and a light client would
have to import jax. Their compiled source counts, and that of the local modules which it imports in
turn.
"""

from __future__ import annotations

from typing import Any

from jaxd_protocol.fingerprint import archive_members
from jaxd_protocol.fingerprint.access_paths import bound_uses, check_installed
from jaxd_protocol.fingerprint.code.reads import Import
from jaxd_protocol.fingerprint.local_imports import (
    absolute_name,
    from_import,
    local_import,
    plain_import,
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
    if not statement.names:
        plain_import(walk, name, statement)


def _with_callees(walk: Walk, globals_: dict[str, Any], statement: Import) -> Import:
    """The statement, whose reads name the functions that something is passed to."""
    found = (
        bound_uses(walk, globals_, None if each is None else dict(each)) for each in statement.uses
    )
    return statement._replace(uses=tuple(u if u is None else (*u.items(),) for u in found))


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
