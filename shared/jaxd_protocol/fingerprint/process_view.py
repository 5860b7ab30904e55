"""What a walk needs of modules: from this process or, on a server, from the client's report."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from importlib.util import MAGIC_NUMBER, find_spec
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple, Protocol

from jaxd_protocol.base.process import IdentityMemo
from jaxd_protocol.fingerprint.data_model import ProcessValues, Source
from jaxd_protocol.fingerprint.unpatched import is_unpatched
from jaxd_protocol.packages.distributions import FileStamp, Package, file_stamp, package_of
from jaxd_protocol.packages.installed import is_local_file, is_local_module

SALT: Final = b"jaxd-4" + MAGIC_NUMBER + bytes([sys.flags.optimize])
"""What is in every digest: this algorithm's version, the bytecode's, and whether asserts count."""


class ProcessView(Protocol):
    """What a walk needs of the process in which the function was written."""

    @property
    def salt(self) -> bytes:
        """`SALT` of that process."""

    def is_local(self, module: str) -> bool:
        """Whether a module is the user's own and travels by value."""

    def package(self, module: str) -> Package | None:
        """The distribution that a module which is not local belongs to."""

    def module(self, name: str) -> ModuleType | None:
        """The module that an import statement would find already imported."""

    def source(self, name: str) -> Source | None:
        """The source of a local module that is not imported yet."""

    def carries(self, module: ModuleType, name: str, value: Any) -> bool:
        """Whether an installed module's attribute may have another value on the other side."""

    def of_code(self, names: Mapping[str, Any]) -> ProcessView:
        """The view of code with these globals: whose imports it is that find modules."""


class LocalProcess:
    """This process."""

    salt: bytes = SALT

    def is_local(self, module: str) -> bool:
        """Whether a module is the user's own; one that is not imported yet by where it lies."""
        if module in sys.modules or ("." not in module and _find_spec(module) is None):
            return is_local_module(module)
        origin = _find_file(module)
        return is_local_file(origin) if origin else is_local_module(module.rpartition(".")[0])

    def package(self, module: str) -> Package | None:
        """The distribution that a module belongs to, imported or not."""
        return package_of(module)

    def module(self, name: str) -> ModuleType | None:
        """The module in `sys.modules`."""
        return sys.modules.get(name)

    def source(self, name: str) -> Source | None:
        """The compiled source of a local module that is not imported yet."""
        path = _find_file(name)
        if path is None or not path.endswith(".py") or not is_local_file(path):
            return None
        return compiled_source(path)

    def carries(self, module: ModuleType, name: str, value: Any) -> bool:
        """Whether an installed module may have been patched."""
        return not is_unpatched(module, name, value, self.is_local)

    def of_code(self, names: Mapping[str, Any]) -> ProcessView:
        """The same for all code of a process."""
        return self


def compiled_source(path: str) -> Source:
    """The compiled source of a module; the same object while its file stays as it is.

    Raises:
        OSError: when there is no such file.
        SyntaxError, ValueError: when it cannot be compiled.
    """
    return _compiled(file_stamp(path))


@lru_cache(maxsize=4096)
def _compiled(file: FileStamp) -> Source:
    with open(file.path, "rb") as opened:
        code = compile(opened.read(), file.path, "exec", dont_inherit=True)
    return Source(code, is_package=os.path.basename(file.path) == "__init__.py")


# what the source of a module reads of its process when it runs ------------------------------------

_ENVIRONMENT: Final = frozenset({"environ", "getenv"})
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_named: Final = IdentityMemo[tuple[frozenset[str], frozenset[str]]]()


def process_values(code: CodeType) -> ProcessValues:
    """The values, in this process, of what the code of a module may read when it runs on a server.

    Every text in code that names `os.environ` or `os.getenv` may be the name of a variable. Which
    other reads are refused there, `jaxd_protocol.pickling.unpack.private_modules` says.
    """
    names, texts = _named.get(code) or _named.put(code, _names_and_texts(code))
    variables: list[tuple[str, str | None]] = []
    if not _ENVIRONMENT.isdisjoint(names | texts):
        variables = [(name, os.environ.get(name)) for name in sorted(filter(_is_variable, texts))]
    is_named = "argv" in names or "argv" in texts
    arguments = current_arguments() if is_named else None
    return ProcessValues(tuple(variables), arguments)


def current_arguments() -> tuple[str, ...]:
    """`sys.argv`, which an embedded interpreter may lack."""
    return tuple(map(str, getattr(sys, "argv", ())))


def _is_variable(text: str) -> bool:
    return _VARIABLE.fullmatch(text) is not None


def _names_and_texts(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names and the texts in a code object, nested ones included."""
    names, texts = set(code.co_names), set[str]()
    left = list(code.co_consts)
    while left:
        each = left.pop()
        if isinstance(each, str):
            texts.add(each)
        elif isinstance(each, tuple | frozenset):
            left += each
        elif isinstance(each, CodeType):
            names.update(each.co_names)
            left += each.co_consts
    return frozenset(names), frozenset(texts)


def _find_spec(module: str) -> ModuleSpec | None:
    """What an import of a module would run, found without running anything."""
    path: Any = None
    parent, _, _ = module.rpartition(".")
    if parent:
        path = getattr(sys.modules.get(parent), "__path__", None)
        if path is None:
            spec = _find_spec(parent)
            path = None if spec is None else spec.submodule_search_locations
            if path is None:
                return None
    try:
        # At the top an editable install may have a finder of its own. Nothing is imported.
        return PathFinder.find_spec(module, path) if parent else find_spec(module)
    except (ImportError, ValueError):
        return None


def _find_file(module: str) -> str | None:
    """The file that an import of a module would run; of a package without one, a folder."""
    spec = _find_spec(module)
    if spec is None:
        return None
    if spec.has_location:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), None)


def is_extension(path: str) -> bool:
    """Whether a file is a compiled extension module."""
    return path.endswith(tuple(EXTENSION_SUFFIXES))


def prefixes_of(name: str) -> list[str]:
    """A module and the packages that it lies in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


class ArrivedModules(Protocol):
    """What came with code: see `PrivateModules`."""

    @property
    def modules(self) -> Mapping[str, ModuleType]:
        """The user's modules that were sent as values."""

    @property
    def sources(self) -> Mapping[str, Source]:
        """Those that were sent as source."""

    @property
    def patched_modules(self) -> Mapping[str, ModuleType]:
        """Installed modules of which some attributes were sent."""


class ClientProcess(NamedTuple):
    """The client's process, as reported to a server: it replays what the client decided.

    Attributes:
        salt, packages, local, carried: what the client reported.
        modules: the client's local modules, as they arrived.
        sources: those of them that are not imported yet.
        came_with: for the globals of a function, what it came with, if it came from a client.
    """

    salt: bytes
    packages: Mapping[str, Package]
    local: Mapping[str, bool]
    carried: frozenset[str]
    modules: Mapping[str, ModuleType] = {}
    sources: Mapping[str, Source] = {}
    came_with: Callable[[Mapping[str, Any]], ArrivedModules | None] = lambda _: None

    def is_local(self, module: str) -> bool:
        """What the client reported; a module that it did not reach is checked in this process."""
        known = self.local.get(module)
        return is_local_module(module) if known is None else known

    def package(self, module: str) -> Package | None:
        """The client's version."""
        known = (self.packages.get(name) for name in prefixes_of(module))
        return next(filter(None, known), None)

    def module(self, name: str) -> ModuleType | None:
        """The client's own module before one of this process."""
        came = self.modules.get(name)
        return came or (None if self.is_local(name) else sys.modules.get(name))

    def source(self, name: str) -> Source | None:
        """The source that came with the function."""
        return self.sources.get(name)

    def carries(self, module: ModuleType, name: str, value: Any) -> bool:
        """What the client reported."""
        return f"{module.__name__}:{name}" in self.carried

    def of_code(self, names: Mapping[str, Any]) -> ProcessView:
        """With the modules that the code came with: that of a class may have come before."""
        found = self.came_with(names)
        if found is None:
            return self
        modules = {**found.patched_modules, **found.modules}
        return self._replace(modules=modules, sources=found.sources)
