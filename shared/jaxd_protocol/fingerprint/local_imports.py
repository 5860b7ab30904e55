"""Local modules that code imports, or gets from a package that imports them when they are read.

One that this process has imported counts by value, another one by its source, which the server
runs when the code gets there. Nothing is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any

from jaxd_protocol.fingerprint.code.callbacks import names_in
from jaxd_protocol.fingerprint.code.reads import Import, Read, facts_of
from jaxd_protocol.fingerprint.data_model import Source, Steps
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.process_view import prefixes_of
from jaxd_protocol.fingerprint.unpatched import is_own_code, is_replaced_constant
from jaxd_protocol.fingerprint.values import modules
from jaxd_protocol.fingerprint.walk import Walk


def absolute_name(name: str, level: int, globals_: Mapping[str, Any]) -> str:
    """The full name of a module in an import statement of a function with these globals."""
    if not level:
        return name
    parent = getattr(globals_.get("__spec__"), "parent", None)
    package = globals_.get("__package__") or parent or ""
    try:
        return resolve_name("." * level + name, package)
    except ImportError:
        return "." * level + name


def local_import(walk: Walk, name: str) -> None:
    """A local module that reached code imports: by value when this process has it.

    Else by its source, which the server runs when the statement runs.
    """
    walk.text(name)
    process_view = walk.process_view
    module = process_view.module(name)
    if module is not None:
        if name not in walk.reach.imports:
            walk.guards.answer(lambda: process_view.module(name) is module, True)
        walk.reach.imports[name] = module
        walk.reach.partial_read_of(module)
        return
    source = process_view.source(name)
    if source is None:
        walk.tag("absent")
        walk.guards.answer(
            lambda: process_view.module(name) is None and process_view.source(name) is None, True
        )
        return
    _emit_source(walk, name, source)


def from_import(
    walk: Walk, module: ModuleType, name: str, uses: Mapping[Steps, int] | None
) -> None:
    """Appends a name that is imported from a loaded module, as far as it is read."""
    walk.text(name)
    if name in vars(module):
        for steps in uses if uses is not None else ((),):
            before, walk.label = walk.label, f"global {module.__name__}"
            walk.follow(module, (("a", name), *steps))
            walk.label = before
        return
    full = f"{module.__name__}.{name}"
    if not has_submodule(walk, module, name):
        if "__getattr__" in vars(module):
            emit_made_up(walk, module, name)
            return
        walk.guards.item(vars(module), name)
        walk.guards.item(vars(module), "__getattr__")
    local_import(walk, full)
    loaded = walk.process_view.module(full)
    if loaded is not None:
        walk.emit_uses(f"global {full}", loaded, uses)


def plain_import(walk: Walk, name: str, statement: Import) -> None:
    """Appends what the variables of `import a.b` and `import a.b as c` lead to, where it is loaded.

    Of `import a.b` that is `a`, of which more may be read than `b`.
    """
    module = walk.process_view.module(name)
    top = walk.process_view.module(name.partition(".")[0])
    for _, path in statement.bound:
        bound = top if path is None else _by_attributes(walk, name) or module
        if bound is not None:
            walk.emit_uses(f"global {name}", bound, statement.uses_at(path))
    if not statement.bound and module is not None:
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


def _emit_source(walk: Walk, name: str, source: Source) -> None:
    """Appends the content of a module, and of those that it imports."""
    if name in walk.reach.sources:
        return
    walk.reach.sources[name] = source
    facts = facts_of(source.code)
    walk.tag("source")
    walk.reach.readers |= facts.readers
    walk.write(facts.digest)
    walk.part("module", f"module {name}", facts.digest)
    process_view = walk.process_view
    walk.guards.answer(lambda: process_view.module(name) is None, True)
    walk.guards.answer(lambda: process_view.source(name) is source, True)
    package = name if source.is_package else name.rpartition(".")[0]
    for statement in facts.imports:
        _imported_by_source(walk, package, statement)
    for code in _with_nested(source.code):
        facts = facts_of(code)
        for statement in facts.imports:
            _patched_for_source(walk, package, statement, facts.reads)


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    """A code object, and all that are in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)


def _patched_for_source(
    walk: Walk, package: str, statement: Import, reads: tuple[Read, ...]
) -> None:
    """Appends what is patched of a library, as far as a module that runs on the server reads it.

    Nothing else, as for the import statements of functions.
    """
    name = absolute_name(statement.name, statement.level, {"__package__": package})
    top = name.partition(".")[0]
    if walk.is_local(top):
        return
    process_view = walk.process_view
    module, first = process_view.module(name), process_view.module(top)
    if module is None:
        walk.guards.answer(lambda: process_view.module(name) is None, True)
        return
    for each in statement.names:
        for steps in statement.uses_at((each,)) or ((),):
            walk.emit_if_patched(module, (("a", each), *steps))
    if "*" in statement.names:
        for read in reads:
            walk.emit_if_patched(module, (("a", read.name), *read.steps))
    if not statement.names:
        _patched_by_module(walk, statement, reads, module, first)
    if not statement.names or "*" in statement.names:
        walk.reach.libraries[name] = module  # others may read it by way of this one


def _patched_by_module(
    walk: Walk,
    statement: Import,
    reads: tuple[Read, ...],
    module: ModuleType,
    first: ModuleType | None,
) -> None:
    """What is patched of a library that a plain import binds.

    Args:
        walk: where to.
        statement: the import.
        reads: the globals that the code with it reads.
        module: the one that is imported.
        first: the package that it is in.
    """
    for variable, path in statement.bound:
        bound = first if path is None else module
        known = statement.uses_at(path)
        for steps in known or [read.steps for read in reads if read.name == variable]:
            if bound is not None:
                walk.emit_if_patched(bound, steps)


def emit_patched_libraries(walk: Walk) -> None:
    """Appends the user's own code in libraries that sources import whole, and other constants.

    Of constants those whose names stand in a source: a module may read those of a library that
    another one imports. What has such a name is guarded, so that what is put there later is seen.
    """
    names = set[str]().union(*map(_names_in, walk.reach.sources.values()))
    for _, module in sorted(walk.reach.libraries.items()):
        for name, value in sorted(vars(module).copy().items()):
            is_own = callable(value) and is_own_code(value, walk.is_local)
            if is_own or (name in names and is_replaced_constant(module, name, value)):
                walk.emit_if_patched(module, (("a", name),))
            elif name in names:
                walk.guards.item(vars(module), name, value)
    walk.emit_queued()


def _names_in(source: Source) -> set[str]:
    """What a module's code may read of others: names, and texts, for `getattr`."""
    texts = (each for code in _with_nested(source.code) for each in code.co_consts)
    return names_in(source.code).union(each for each in texts if type(each) is str)


def _imported_by_source(walk: Walk, package: str, statement: Import) -> None:
    name = absolute_name(statement.name, statement.level, {"__package__": package})
    if not walk.is_local(name.partition(".")[0]):
        walk.text(name)
        walk.package(name)
        modules.refuse_state_of_import(walk, name)
        return
    for parent in prefixes_of(name):
        local_import(walk, parent)
    module, source = walk.process_view.module(name), walk.process_view.source(name)
    if not statement.names:
        plain_import(walk, name, _without_callees(statement))
    elif "*" in statement.names and module is not None:
        modules.emit_module(walk, module)  # who knows what is read of it
    for each in statement.names:
        if module is not None and each != "*":
            from_import(walk, module, each, _without_callees(statement).uses_at((each,)))
        elif source is not None and source.is_package:
            local_import(walk, f"{name}.{each}")


def _without_callees(statement: Import) -> Import:
    """The statement, where what is passed to a function counts whole: no one knows the function."""
    return statement._replace(uses=tuple(map(_whole_where_passed, statement.uses)))


def _whole_where_passed(
    uses: tuple[tuple[Steps, int], ...] | None,
) -> tuple[tuple[Steps, int], ...] | None:
    if uses is None:
        return None
    found = {
        steps[:-1] if steps[-1:] and steps[-1][0] in "pr" else steps: line for steps, line in uses
    }
    return None if () in found else tuple(found.items())


# names that a package makes when they are read ----------------------------------------------------


def has_submodule(walk: Walk, module: ModuleType, name: str) -> bool:
    """Whether a name that a module does not have yet leads to a submodule of it.

    Its `__getattr__` may import something from a module of the same name.
    """
    getter = vars(module).get("__getattr__")
    if isinstance(getter, modules.LazySubmodules):
        return name in getter.names
    full = f"{module.__name__}.{name}"
    if walk.process_view.module(full) is None and walk.process_view.source(full) is None:
        return False
    taken = facts_of(getter.__code__).imports if isinstance(getter, FunctionType) else ()
    return not any(name in each.names and each.name not in ("", module.__name__) for each in taken)


def lazy_submodule(walk: Walk, module: ModuleType, name: str) -> Any:
    """Appends the submodule that a package imports when the name is read.

    Returns:
        The module; `MISSING` when this process has not imported it, and its source counts.
    """
    full = f"{module.__name__}.{name}"
    walk.guards.item(vars(module), name)
    walk.reach.partial_read_of(module)
    walk.reach.lazy_submodules.setdefault(module.__name__, set()).add(name)
    for parent in prefixes_of(full):
        local_import(walk, parent)
    loaded = walk.process_view.module(full)
    return MISSING if loaded is None else loaded


def emit_made_up(walk: Walk, module: ModuleType, name: str) -> None:
    """Appends what makes a name of a module: its `__getattr__`, with all that this reads."""
    walk.tag("made up")
    walk.guards.item(vars(module), name)
    walk.guards.item(vars(module), "__getattr__", vars(module)["__getattr__"])
    walk.reach.partial_read_of(module).names.add("__getattr__")
    walk.emit_labelled(f"global {module.__name__}.__getattr__", modules.getter_of(module))
