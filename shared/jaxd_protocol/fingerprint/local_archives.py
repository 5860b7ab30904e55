"""The user's packages as files: what `ship="source"` counts and sends instead of values.

An archive is the source of whole top-level packages. An object that one of them defines under a
name counts by that name, and the archive counts by its code, so code that imports modules by
computed names can run. Changes of a module after its import are not in its source and not noticed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.canonical_bytes import atom, digest
from jaxd_protocol.fingerprint.code.callbacks import nested_codes
from jaxd_protocol.fingerprint.code.reads import Read, facts_of
from jaxd_protocol.fingerprint.data_model import Archive, Name, Source
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.fingerprint.guards import MISSING
from jaxd_protocol.fingerprint.process_view import (
    LocalProcess,
    compiled_source,
    is_extension,
    process_values,
)
from jaxd_protocol.fingerprint.unpatched import is_array, is_plain_data
from jaxd_protocol.packages.distributions import Package, package_of
from jaxd_protocol.packages.importable import importable_name

IMPORTLIB: Final = "importlib"


def archive_of(sources: Mapping[str, Source], packages: tuple[Package, ...] = ()) -> Archive:
    """An archive of these modules, by full name, and the installed packages that they import."""
    data = bytearray(b"archive")
    for name in sorted(sources):
        code, is_package, process = sources[name]
        data += b"".join(filter(None, map(atom, (name, is_package, facts_of(code).digest))))
        data += repr(process).encode()
    for package in packages:
        data += b"".join(filter(None, map(atom, package)))
    return Archive(digest(data), sources, packages)


class LocalArchives:
    """The archives of this process. They grow while a walk finds packages, until `close`."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._packages: set[Package] = set()
        self._top_level: dict[str, bool] = {}
        self._locations: dict[int, tuple[Any, Name]] | None = None
        self._final: Archive | None = None

    @property
    def archive(self) -> Archive:
        """All that has been found so far."""
        if self._final is not None:
            return self._final
        return archive_of(dict(self._sources), tuple(sorted(self._packages)))

    def close(self) -> None:
        """No package is added any more."""
        self._final = self.archive

    def objects(self) -> dict[bytes, Any]:
        """The classes and functions that the imported modules make, by `archived_id`."""
        content = self.archive.content
        found: dict[bytes, Any] = {}
        for home in self._sources:
            for value in list(getattr(sys.modules.get(home), "__dict__", {}).values()):
                if isinstance(value, type | FunctionType) and (name := self._declared_name(value)):
                    found[archived_id(content, name)] = value
        return found

    def has(self, module: str, is_local: bool = False) -> bool:
        """Whether a module is in the archive; a local one with a source file is put there.

        Raises:
            PackingError: when its package holds a compiled extension.
        """
        top = module.partition(".")[0]
        if is_local and self._final is None:
            self._add(top)
        return self._top_level.get(top, False)

    def _add(self, top: str) -> None:
        if top in self._top_level:
            return
        files = files_of(top)
        self._top_level[top] = bool(files)
        self._locations = None
        for name, path in files.items():
            if (source := source_of(path)) is not None:
                # Not the arguments: a package holds commands, which the function does not reach.
                process = process_values(source.code)._replace(arguments=None)
                self._sources[name] = source._replace(process=process)
        for name in files.keys() & self._sources.keys():
            self._add_packages_of(name, self._sources[name])

    def _add_packages_of(self, name: str, source: Source) -> None:
        """The packages that a module imports, and those that its strings may name."""
        for imported in imported_names(name, source):
            self._add_imported(imported.partition(".")[0])
        for hint in filter(LocalProcess().is_local, sorted(packages_in_strings(source.code))):
            self._add(hint)

    def _add_imported(self, top: str) -> None:
        """A package that an archived one imports is archived as well, or named when installed."""
        if top in self._top_level or top in sys.stdlib_module_names:
            return
        if LocalProcess().is_local(top):
            self._add(top)
        elif (package := package_of(top)) is not None:
            self._packages.add(package)

    def name_of(self, value: Any) -> Name | None:
        """The name under which the archive makes this very object; None when it does not.

        Plain data has none: what it is now counts, and goes along.
        """
        if value is importlib or value is importlib.import_module:
            return (IMPORTLIB, "" if value is importlib else "import_module")
        if isinstance(value, ModuleType):
            name = value.__name__
            return (name, "") if name in self._sources and sys.modules.get(name) is value else None
        return self._declared_name(value) or self._location_of(value)

    def module(self, name: str) -> ModuleType | None:
        """An archived module that is imported."""
        return sys.modules.get(name) if name in self._sources else None

    def _declared_name(self, value: Any) -> Name | None:
        if isinstance(value, FunctionType):  # also behind a persistent one of its name
            home = value.__globals__.get("__name__")
            if (name := self._verified_name(home, value.__qualname__, value)) is not None:
                return name
        try:
            home, inner = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        except Exception:  # noqa: BLE001  a user's __getattr__ may do anything
            return None
        return self._verified_name(home, inner, value)

    def _verified_name(self, module: Any, inner: Any, value: Any) -> Name | None:
        """The name, when an archived module holds this very object under it."""
        if not isinstance(module, str) or not isinstance(inner, str) or module not in self._sources:
            return None
        return (module, inner) if look_up(sys.modules.get(module), inner) is value else None

    def _location_of(self, value: Any) -> Name | None:
        """Where a module holds an object without a `__qualname__`, such as a registry."""
        if self._locations is None:
            self._locations = dict(self._find_locations())
        found = self._locations.get(id(value))
        return None if found is None else self._verified_name(*found[1], value)

    def _find_locations(self) -> Iterator[tuple[int, tuple[Any, Name]]]:
        for module in sorted(self._sources, key=lambda name: (-name.count("."), name)):
            content = getattr(sys.modules.get(module), "__dict__", {})
            for name, value in list(content.items()):
                if not name.startswith("__") and _is_made_here(value):
                    yield id(value), (value, (module, name))


def _is_made_here(value: Any) -> bool:
    """Whether a module's attribute is an object that the module made and that has no value form."""
    if isinstance(value, ModuleType | type | FunctionType | tuple | frozenset):
        return False
    if is_array(value) or is_plain_data(value):
        return False  # its content counts
    return not callable(value) or importable_name(value) is None


def archived_id(content: bytes, name: Name) -> bytes:
    """Sixteen bytes for an object of an archive, as `content_id` gives for one by value."""
    parts = map(atom, (content, *name))
    return digest(b"archived" + b"".join(filter(None, parts)))


def look_up(module: Any, name: str) -> Any:
    """What a module holds under a qualified name; of a persistent function the plain one."""
    found = module
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part, MISSING)
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    return found.__wrapped__ if isinstance(found, FunctionWrapper) else found


def imported_names(name: str, source: Source) -> Iterator[str]:
    """The modules that a module's code names when it imports, as far as that can be read."""
    package = name if source.is_package else name.rpartition(".")[0]
    facts = facts_of(source.code)
    for statement in facts.imports:
        if statement.level:
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - statement.level + 1])
            full = f"{base}.{statement.name}".strip(".")
        else:
            full = statement.name
        yield full
        yield from (f"{full}.{each}" for each in statement.names)
    yield from _computed_imports(facts.reads)


def _computed_imports(reads: tuple[Read, ...]) -> Iterator[str]:
    """The modules that calls such as `import_module("a.b")` name."""
    for read in reads:
        if read.steps and read.steps[-1][0] == "c" and type(read.steps[-1][1]) is str:
            called = (read.name, *(step[1] for step in read.steps[:-1]))[-1]
            if called in _COMPUTING_IMPORTS and read.steps[-1][1].strip("."):
                yield read.steps[-1][1]


_COMPUTING_IMPORTS: Final = frozenset({"import_module", "__import__"})


def packages_in_strings(code: CodeType) -> set[str]:
    """Top-level names that strings in code which computes imports begin with: `"shop.layers."`."""
    codes, found, computes = [code], set[str](), False
    for each in codes:
        codes += nested_codes(each)
        computes = computes or not _COMPUTING_IMPORTS.isdisjoint(each.co_names)
        texts = [text for text in each.co_consts if isinstance(text, str)]
        found.update(text.partition(".")[0] for text in texts if "." in text)
    return set(filter(str.isidentifier, found - sys.stdlib_module_names)) if computes else set()


def files_of(top: str) -> dict[str, str]:
    """The source file of each module of a top-level package, by full name.

    Empty for a script, and for what was not made from a file.

    Raises:
        PackingError: when there is a compiled extension among them.
    """
    if top in ("__main__", "__mp_main__"):
        return {}
    origin, folders = _find_package(top)
    found: dict[str, str] = {}
    if origin is not None and not folders:
        _add(found, top, origin)
    for folder in folders:
        for name, path in _modules_below(top, folder):
            _add(found, name, path)
    return dict(sorted(found.items()))


def _find_package(top: str) -> tuple[str | None, list[str]]:
    """The file of a module, and the folders of a package."""
    module = sys.modules.get(top)
    if module is not None:
        origin = getattr(module, "__file__", None)
        return origin, [*map(str, getattr(module, "__path__", ()))]
    try:
        spec = PathFinder.find_spec(top)
    except (ImportError, ValueError):
        return None, []
    if spec is None:
        return None, []
    origin = spec.origin if spec.has_location else None
    return origin, [*map(str, spec.submodule_search_locations or ())]


def _modules_below(package: str, folder: str) -> Iterator[tuple[str, str]]:
    """The modules in a package's folder; not what only Python or an editor has put there."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        stem, dot, _ = entry.name.partition(".")
        if not stem.isidentifier() or stem == "__pycache__":
            continue
        if not dot and entry.is_dir():
            yield from _modules_below(f"{package}.{stem}", entry.path)
        elif entry.name == "__init__.py":
            yield package, entry.path
        elif entry.name == f"{stem}.py" or is_extension(entry.name):
            yield f"{package}.{stem}", entry.path


def _add(found: dict[str, str], name: str, path: str) -> None:
    if is_extension(path):
        raise PackingError(
            f"{path} is a compiled extension, which cannot travel, also not with ship='source'. "
            "Install its package where the server runs and here, so that it travels by name."
        )
    if path.endswith(".py"):
        found.setdefault(name, path)


def source_of(path: str) -> Source | None:
    """A module's compiled source; None when it cannot be compiled, and so not be imported."""
    try:
        return compiled_source(path)
    except (OSError, SyntaxError, ValueError):
        return None
