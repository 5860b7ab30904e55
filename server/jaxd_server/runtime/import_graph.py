"""Which installed packages import which, as far as their modules are loaded in this process.

An edge leads from a package to each one that a module of it names in an import statement, also in
one inside of a function; that something in the namespace of such a module comes from; whose name is
a text in a module that computes imports; and, for a module without a source, that its distribution
declares to need. So the graph is never too narrow for what a program can have run, but for
plug-ins that a package finds by entry points and keeps in none of its modules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from jaxd_protocol.packages.distributions import normalized_name, requirements
from jaxd_protocol.packages.installed import content_of

_BASE: Final = frozenset({"jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "opt_einsum"})
_BASE_PREFIXES: Final = ("jax_plugins", "jax_cuda", "jax_rocm", "jax_metal", "libtpu", "nvidia")

_STATEMENT: Final = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+([A-Za-z_][\w.]*)[ \t]+import\b|import[ \t]+([^#;\n]+))"
)
_QUOTED: Final = re.compile(rb"[\"']([A-Za-z_][\w.]*)[\"']")
_COMPUTED: Final = (b"import_module", b"__import__", b"LazyLoader", b"lazy_loader")


class _Imports(NamedTuple):
    """What modules import.

    Attributes:
        names: full names of modules, loaded or not.
        distributions: normalized names of distributions.
    """

    names: frozenset[str]
    distributions: frozenset[str] = frozenset()


class ImportGraph:
    """The graph; each module is looked at once, when it is needed first. Thread-safe."""

    def __init__(self) -> None:
        # Entries are replaced as a whole, and two threads put the same ones there.
        self._of_modules: dict[str, _Imports] = {}
        self._of_packages: dict[str, tuple[int, _Imports]] = {}  # and how many modules that were

    def reached(
        self,
        starts: Iterable[str],
        modules: Mapping[str, Sequence[str]],
        distributions: Mapping[str, str],
    ) -> set[str]:
        """The packages that some packages import, directly or not, with these themselves.

        Those that compute, jax and what it is made of, are always among them. What these import in
        turn is not: their other imports are for tools, such as a table that is printed.

        Args:
            starts: import names.
            modules: names of the loaded modules, by import name of their package.
            distributions: the distributions of each package, as `Package` names them.
        """
        found = {name for name in modules if is_base(name)}
        left = list(starts)
        while left:
            package = left.pop()
            if package not in found and package in modules:
                found.add(package)
                imports = self._imported_by(package, modules[package])
                left += packages_named(imports.names, modules)
                left += (
                    name
                    for name, several in distributions.items()
                    for one in several.split(", ")
                    if normalized_name(one) in imports.distributions
                )
        return found

    def _imported_by(self, package: str, modules: Sequence[str]) -> _Imports:
        count = len(modules)
        known = self._of_packages.get(package)
        if known is None or known[0] != count:
            each = [self._of_module(name) for name in modules[:count]]
            names = frozenset().union(*(one.names for one in each))
            needed = frozenset().union(*(one.distributions for one in each))
            known = self._of_packages[package] = count, _Imports(names, needed)
        return known[1]

    def _of_module(self, name: str) -> _Imports:
        known = self._of_modules.get(name)
        if known is None:
            known = self._of_modules[name] = _imports_of(name)
        return known


def is_base(package: str) -> bool:
    """Whether every program depends on a package: jax, and what it computes with."""
    return package in _BASE or package.startswith(_BASE_PREFIXES)


def packages_named(names: Iterable[str], packages: Iterable[str]) -> set[str]:
    """Those among some packages that names of modules lead to.

    The name of a namespace leads to all that share it: `from google import protobuf`.
    """
    by_top: dict[str, list[str]] = {}
    for package in packages:
        by_top.setdefault(package.partition(".")[0], []).append(package)
    return {
        package
        for name in names
        for package in by_top.get(name.partition(".")[0], ())
        if f"{name}.".startswith(f"{package}.") or package.startswith(f"{name}.")
    }


def _imports_of(module: str) -> _Imports:
    content = content_of(module)
    if _is_namespace(content):
        return _Imports(frozenset())
    names = set(_origins(content))
    source = _source(content.get("__file__"))
    if source is None:
        return _Imports(_foreign(names), requirements(module))
    names.update(_named_in(source))
    return _Imports(_foreign(names))


def _foreign(names: Iterable[str]) -> frozenset[str]:
    """Without the standard library, which is as old as this process."""
    return frozenset(n for n in names if n.partition(".")[0] not in sys.stdlib_module_names)


def _origins(content: Mapping[str, Any]) -> Iterator[str]:
    """Where the objects of a namespace come from; runs no code of theirs."""
    for value in list(content.values()):
        kind = type(value)
        if issubclass(kind, ModuleType):
            inner = object.__getattribute__(value, "__dict__")
            # of a namespace, import statements say which part is meant
            found = None if _is_namespace(inner) else inner.get("__name__")
        elif kind in (FunctionType, BuiltinFunctionType):
            found = value.__module__
        else:
            found = _module_of(value if issubclass(kind, type) else kind)
        if isinstance(found, str):
            yield found


def _is_namespace(content: Mapping[str, Any]) -> bool:
    return content.get("__file__") is None and "__path__" in content


def _module_of(cls: type) -> object:
    return type.__getattribute__(cls, "__module__")


def _source(file: object) -> bytes | None:
    """The source of a module; that of one which was installed anew since is as good.

    A program that reaches its package is out of date by then, whatever else that imports.
    """
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    try:
        with open(file, "rb", buffering=0) as opened:
            return opened.read()
    except OSError:
        return None


def _named_in(source: bytes) -> Iterator[str]:
    """The modules that a source imports by their full names; relative ones are of its package."""
    position = source.find(b"import")
    while position >= 0:
        start, end = source.rfind(b"\n", 0, position) + 1, source.find(b"\n", position)
        line = source[start : end if end >= 0 else len(source)]
        while line.endswith((b"\\", b"\\\r")) and end >= 0:
            start, end = end + 1, source.find(b"\n", end + 1)
            line = line.rstrip(b"\\\r") + source[start : end if end >= 0 else len(source)]
        for origin, several in _STATEMENT.findall(line):
            words = [each.split() for each in several.split(b",")] if several else [[origin]]
            yield from (each[0].decode(errors="replace") for each in words if each)
        position = source.find(b"import", end) if end >= 0 else -1
    if any(word in source for word in _COMPUTED):
        yield from (word.decode() for word in _QUOTED.findall(source))
