"""Local modules that reached code imports but that this process has not imported yet.

They are not imported for the sake of the key: that would run code, and a light client would have to
import jax. Their compiled source counts, and that of the local modules which it imports in turn.
"""

from __future__ import annotations

from jaxd_protocol.fingerprint.bytecode import Import, facts_of
from jaxd_protocol.fingerprint.facts import Source
from jaxd_protocol.fingerprint.walk import Walk

__all__ = ["emit_source"]


def emit_source(walk: Walk, name: str, source: Source) -> None:
    """Appends the content of a module, and of those that it imports."""
    if name in walk.reach.sources:
        return
    walk.reach.sources[name] = source
    facts = facts_of(source.code)
    walk.tag("source")
    walk.write(facts.digest)
    walk.part("module", f"module {name}", facts.digest)
    walk.guards.answer(lambda: walk.world.module(name) is None, True)
    walk.guards.answer(lambda: walk.world.source(name) is source, True)
    package = name if source.is_package else name.rpartition(".")[0]
    for statement in facts.imports:
        _imported(walk, package, statement)


def _imported(walk: Walk, package: str, statement: Import) -> None:
    from jaxd_protocol.fingerprint.imports import absolute_name

    name = absolute_name(statement.name, statement.level, {"__package__": package})
    names = [name, *(f"{name}.{each}" for each in statement.names)]
    for full in names:
        if walk.is_local(full.partition(".")[0]):
            _local(walk, full)
        else:
            walk.text(name)
            walk.package(name)


def _local(walk: Walk, full: str) -> None:
    from jaxd_protocol.fingerprint.modules import emit_module

    parts = full.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        walk.text(name)
        module = walk.world.module(name)
        if module is not None:
            walk.reach.imports[name] = module
            if count == len(parts):
                emit_module(walk, module)
            continue
        source = walk.world.source(name)
        if source is not None:
            emit_source(walk, name, source)
