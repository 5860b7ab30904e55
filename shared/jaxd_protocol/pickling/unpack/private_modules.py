"""The private modules of one packed function, invisible to all other code.

Two versions of a user's module coexist on a server, and neither is in `sys.modules`. Their
functions have builtins of their own, whose `__import__` searches the private modules first.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from types import CodeType, ModuleType
from typing import Any

from jaxd_protocol.errors import MissingPackage, PackingError
from jaxd_protocol.fingerprint.canonical_bytes import is_same
from jaxd_protocol.fingerprint.data_model import Source
from jaxd_protocol.fingerprint.values.modules import LazySubmodules
from jaxd_protocol.packages.installed import is_local_file


class PatchedModule(ModuleType):
    """An installed module as the code of a client finds it on a server.

    Some of its attributes are the client's; the others are the server's own.
    """

    def __init__(self, real: ModuleType, attributes: Mapping[str, Any]) -> None:
        super().__init__(real.__name__, real.__doc__)
        for name in ("__package__", "__path__", "__spec__", "__file__"):
            if hasattr(real, name):
                vars(self)[name] = getattr(real, name)
        vars(self)["_jaxd_real"] = real
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_jaxd_real"], name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(vars(self)["_jaxd_real"])} - {"_jaxd_real"})


class NotShipped(PackingError, ModuleNotFoundError):
    """Code on the server imports a module of the user's own that was not sent with it."""


class PrivateModules:
    """The modules that were sent with one function, and the import that its code uses.

    Thread-safe.

    Attributes:
        modules: the user's modules that were sent as values, complete or in part, by name.
        sources: those that were sent as source, which runs at the first import.
        patched_modules: installed modules of which some attributes were sent, by name; the user's
            code imports these.
        namespaces: those of `modules` that are namespace packages.
        builtins: `__builtins__` of these modules.
        kept: objects that only weak references lead to.
        arrived: the user's packages that were sent as a whole, which run when they are imported.
    """

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.sources: dict[str, Source] = {}
        self.patched_modules: dict[str, ModuleType] = {}
        self.namespaces: set[str] = set()
        self.kept: list[Any] = []
        self.arrived: PrivateModules | None = None
        self.builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}
        self._executed: dict[str, ModuleType] = {}
        self._lock = threading.RLock()  # guards _executed, while a source runs

    def make_module(self, name: str, package: str | None, is_package: bool) -> ModuleType:
        """An empty module whose code searches these modules first when it imports."""
        module = ModuleType(name)
        content = vars(module)
        content["__builtins__"] = self.builtins
        content["__package__"] = package
        if is_package:
            content["__path__"] = []
        return module

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002  as Python calls it
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Replaces `builtins.__import__` in the code of these modules."""
        full = resolve_name("." * level + name, _package_of(globals or {})) if level else name
        if not self._is_private(full):
            archive = self.arrived
            if archive is not None and archive._is_private(full):
                return archive._import(full, globals, locals, fromlist)
            module = self.special(builtins.__import__(full, globals, locals, fromlist or (), 0))
            return module if archive is None else archive.special(module)
        module = self.load(full)
        wanted = fromlist or ()
        if "*" in wanted:
            wanted = vars(module).get("__all__", ())
        for item in wanted:  # a submodule, perhaps
            inner = f"{full}.{item}"
            if not hasattr(module, item) and (inner in self.modules or inner in self.sources):
                vars(module).setdefault(item, self.load(inner))
        return module if fromlist else self.load(full.partition(".")[0])

    def special(self, module: ModuleType) -> ModuleType:
        """A module of the server's own, or the patched one that replaces it."""
        return self.patched_modules.get(module.__name__, module)

    def _is_private(self, name: str) -> bool:
        if name in self.modules or name in self.sources:
            return True
        top = name.partition(".")[0]
        if top in self.namespaces:
            return False  # other distributions may hold parts of it
        return any(known.partition(".")[0] == top for known in (*self.modules, *self.sources))

    def load(self, name: str) -> ModuleType:
        """The private module of that name, whose source runs if it has not yet.

        Raises:
            NotShipped: when it did not come with the function.
        """
        found = self.modules.get(name)
        if found is None:
            with self._lock:  # another thread may be running its source
                found = self._executed.get(name)
        if found is not None:
            return found
        parent, _, last = name.rpartition(".")
        package = self.load(parent) if parent else None
        if name in self.sources:
            module = self._execute(name)
        elif any(known.startswith(f"{name}.") for known in (*self.modules, *self.sources)):
            with self._lock:  # a package of which only submodules were sent
                module = self._executed.setdefault(name, self.make_module(name, name, True))
        else:
            raise NotShipped(
                f"no module named {name!r} came with this function: it was not seen that it is "
                f"imported. Write 'import {name}' where the function's code can be read, at the "
                "top of its file or in its body, instead of computing the name; or send whole "
                "packages with persistent_call(ship='source')."
            )
        if package is not None:
            vars(package).setdefault(last, module)
        return module

    def _execute(self, name: str) -> ModuleType:
        """Runs a module's source, once; circular imports see it incomplete, as in Python."""
        with self._lock:
            if name in self._executed:
                return self._executed[name]
            source = self.sources[name]
            package = name if source.is_package else name.rpartition(".")[0]
            module = self.make_module(name, package, source.is_package)
            vars(module)["__file__"] = source.code.co_filename
            self._executed[name] = module
            try:
                with _in_sys_modules(name, module):
                    exec(source.code, vars(module))  # noqa: S102  it is what an import does
            except BaseException:
                del self._executed[name]
                raise
            return module


def came_with(namespace: Mapping[str, Any]) -> PrivateModules | None:
    """The modules that code with these globals came with, if it came as a value."""
    own = namespace.get("__builtins__")
    found = getattr(own.get("__import__"), "__self__", None) if isinstance(own, dict) else None
    return found if type(found) is PrivateModules else None


def is_private(namespace: Mapping[str, Any]) -> bool:
    """Whether these are the builtins of code that came from a client."""
    importing = namespace.get("__import__")
    return isinstance(getattr(importing, "__self__", None), PrivateModules)


@contextmanager
def _in_sys_modules(name: str, module: ModuleType) -> Iterator[None]:
    """Puts a module into `sys.modules` while it runs: `dataclasses` reads annotations there.

    Not where the name means something else in this process or on its disk.
    """
    if name in sys.modules or _is_installed(name.partition(".")[0]):
        yield
        return
    sys.modules[name] = module
    try:
        yield
    finally:
        if sys.modules.get(name) is module:
            del sys.modules[name]


def _is_installed(top: str) -> bool:
    """Whether an import of this name would find something that is not the user's own."""
    try:
        spec = PathFinder.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and not (spec.has_location and is_local_file(spec.origin or ""))


def _package_of(namespace: Mapping[str, Any]) -> str:
    """The package to which relative imports refer in code with these globals."""
    package: str | None = namespace.get("__package__")
    if package is not None:
        return package
    name: str = namespace.get("__name__", "")
    return name if "__path__" in namespace else name.rpartition(".")[0]


def add_sources(blob: PrivateModules, sources: Mapping[str, tuple[CodeType, bool]]) -> None:
    """Adds modules that run when they are first imported."""
    blob.sources.update({name: Source(*source) for name, source in sources.items()})


def installed_module(name: str) -> ModuleType:
    """A module of the server's own."""
    importlib.import_module(name)
    return sys.modules[name]


def import_submodules(names: Sequence[str]) -> None:
    """Imports modules of the server's own that code reads as attributes of their packages.

    Raises:
        MissingPackage: when one is not there.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise MissingPackage(
                f"a function uses {name}, and {error.name} is not installed on the server. Install "
                "it where the server runs."
            ) from error


def make_lazy_submodules(
    blob: PrivateModules, package: str, names: Sequence[str], getter: Any
) -> LazySubmodules:
    """The `__getattr__` of a package that has submodules which are imported when they are read."""
    return LazySubmodules(blob.load, package, names, getter)


def patched_module(blob: PrivateModules, name: str, attributes: Mapping[str, Any]) -> ModuleType:
    """The installed module; patched with the client's attributes where the server's differ."""
    real = installed_module(name)
    if all(is_same(vars(real).get(each, real), value) for each, value in attributes.items()):
        return real
    known = blob.patched_modules.get(name)
    if known is None:
        known = blob.patched_modules[name] = PatchedModule(real, attributes)
    return known
