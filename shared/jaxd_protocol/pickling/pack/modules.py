"""Reduce tuples of modules: the user's own in parts, installed and archived ones by name."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.data_model import Archive
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.fingerprint.values.modules import content_names
from jaxd_protocol.packages.installed import is_local_module
from jaxd_protocol.pickling.names import find, name_of
from jaxd_protocol.pickling.pack.interface import Packer
from jaxd_protocol.pickling.unpack import private_modules, rebuild
from jaxd_protocol.pickling.unpack.archives import find_archived

_EXTENSION_SUFFIXES: Final = tuple(EXTENSION_SUFFIXES)

_missing: Final = object()


class UnnamedNamespace:
    """Globals that belong to no imported module: of `exec`, or of a module that was reloaded."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace


def reduce_module(packer: Packer, module: ModuleType) -> Any:
    """A reduce tuple."""
    name = module.__name__
    if not is_local_module(name):
        return _installed(packer, module)
    refuse_compiled(module)
    made = (
        rebuild.make_module,
        (packer.blob, *_module_arguments(vars(module), name), sys.modules.get(name) is module),
    )
    return (*made, _content(packer, module), None, None, rebuild.fill_module)


def reduce_unnamed_namespace(packer: Packer, stray: UnnamedNamespace) -> Any:
    """A reduce tuple: an empty module that cannot be imported."""
    name = str(stray.namespace.get("__name__"))
    return rebuild.make_module, (packer.blob, *_module_arguments(stray.namespace, name), False)


def _module_arguments(namespace: dict[str, Any], name: str) -> tuple[str, str | None, str]:
    kind = "module"
    if "__path__" in namespace:
        kind = "package" if namespace.get("__file__") else "namespace"
    package = namespace.get("__package__")
    return name, package if isinstance(package, str) else None, kind


def _content(packer: Packer, module: ModuleType) -> dict[str, Any]:
    names = packer.names_of_module(module)
    if names is None:
        every = [*content_names(module), *vars(module).keys() & {"__doc__"}]
        found = {name: packer.value_or_placeholder(vars(module)[name]) for name in every}
        return found | _lazy(packer, module, vars(module).get("__getattr__"))
    found = {name: _attribute(module, name) for name in sorted(names)}
    kept = {name: value for name, value in found.items() if value is not _missing}
    kept |= _lazy(packer, module, kept.get("__getattr__"))
    return kept | packer.replacements_of(module)


def _lazy(packer: Packer, module: ModuleType, getter: Any) -> dict[str, Any]:
    """What imports the submodules of a package that it imports when they are read."""
    names = packer.reach.lazy_submodules.get(module.__name__)
    if names is None:
        return {}
    made = private_modules.make_lazy_submodules
    arguments = (packer.blob, module.__name__, tuple(sorted(names)), getter)
    return {"__getattr__": packer.boxed(module, (made, arguments))}


def _attribute(module: ModuleType, name: str) -> Any:
    value = vars(module).get(name, _missing)
    is_lazy = value is _missing and "__getattr__" in vars(module)
    return sys.modules.get(f"{module.__name__}.{name}", _missing) if is_lazy else value


def _installed(packer: Packer, module: ModuleType) -> Any:
    """By name, with those of its attributes that are sent."""
    carried, prefix = packer.reach.carried, f"{module.__name__}."
    attributes = dict(sorted(carried.get(module.__name__, {}).items()))
    below = {name[len(prefix) :].partition(".")[0] for name in carried if name.startswith(prefix)}
    for name in sorted(below):  # submodules that lead to something carried
        child = vars(module).get(name)
        if isinstance(child, ModuleType) and child.__name__ == prefix + name:
            attributes.setdefault(name, child)
    if not attributes:
        stable = name_of(module.__name__, "")  # for the asserts that pytest rewrites
        if stable is not None:
            return find, (stable,)
        return private_modules.installed_module, (module.__name__,)
    return private_modules.patched_module, (packer.blob, module.__name__, attributes)


def refuse_compiled(module: object) -> None:
    """Refuses a compiled module of the user's own.

    Raises:
        PackingError: when it is one.
    """
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", None)
    if isinstance(file, str) and file.endswith(_EXTENSION_SUFFIXES) and is_local_module(name):
        raise PackingError(
            f"module {name} is a compiled extension ({file}), which cannot travel. Install its "
            "package where the server runs and here, so that it travels by name, or call it "
            "outside of the function; extra_key='...' tells one build of it from the next."
        )


def refuse_compiled_object(value: Any) -> None:
    """Refuses a function, class or instance that such a module has made.

    Raises:
        PackingError: when one has.
    """
    for module in (getattr(value, "__module__", None), type(value).__module__):
        if isinstance(module, str):
            refuse_compiled(sys.modules.get(module))


def reduce_archived(packer: Packer, value: Any) -> Any:
    """A reduce tuple that names an object of an archive; `NotImplemented` for any other."""
    archives = packer.reach.archives
    if archives is None:
        return NotImplemented
    if isinstance(value, FunctionWrapper):
        value = value.__wrapped__
    name = archives.name_of(value)
    if name is None:
        return NotImplemented
    return find_archived, (archives.archive.content, *name)


def archive_arguments(archive: Archive) -> tuple[Any, ...]:
    """What `add_archive` is called with beside the blob."""
    sources = dict(sorted(archive.sources.items()))
    return archive.content, sources, tuple(map(tuple, archive.packages))
