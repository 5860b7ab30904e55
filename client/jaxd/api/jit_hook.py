"""`jax.jit` becomes `persistent_call` from outside, without a changed line in the program.

    JitHook().install()  # before the program is imported or run

`jax.jit` is replaced in the namespace of jax, and what stands there asks which module calls it:
for the program's own code and for libraries it makes a persistent function, for jax itself it is
jax's own. The server has no such hook, so that a trace there uses plain `jax.jit`.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple

from jaxd.api.decorator import persistent_call
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.packages.installed import is_local_module

_PLAIN_CALLERS: Final = frozenset({"jax", "jaxlib", "jaxd", "jaxd_protocol", "jaxd_server"})
"""Packages whose own use of `jax.jit` is left alone."""

_PLAIN_MODULES: Final = ("flax.nnx.transforms",)
"""Modules that write to objects of this process while jax traces what they jit."""


class _Jit(NamedTuple):
    """A function that jits others.

    Attributes:
        name: of the function in its module.
        static: what is static in the functions that it makes, as for `persistent_call`.
        plain: options that only the original has.
        resolve: gives options without those that mean what is done anyway.
    """

    name: str
    static: str
    plain: frozenset[str]
    resolve: Callable[[dict[str, Any]], dict[str, Any]] = dict


def _without_graph_mode(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `nnx.jit`, with a mode only where it is another one than `persistent_call`'s.

    That is nnx's own default, of which a program may have made another.
    """
    nnx = sys.modules["flax.nnx"]
    for option, mode in (("graph", "set_graph_mode"), ("graph_updates", "set_graph_updates")):
        asked = options.get(option)
        if asked is None and hasattr(nnx, mode):
            asked = getattr(nnx, mode).current_value()
        if asked is not None:
            options = {**options, option: None if asked else False}
    return options


_PLACEMENT: Final = frozenset({"device", "backend", "abstracted_axes"})

_JITS: Final[Mapping[str, tuple[_Jit, ...]]] = MappingProxyType(
    {
        "jax": (_Jit("jit", "jax", _PLACEMENT),),
        "jax.experimental.pjit": (_Jit("pjit", "jax", _PLACEMENT),),
        "flax.nnx": (
            _Jit("jit", "auto", _PLACEMENT | {"graph", "graph_updates"}, _without_graph_mode),
        ),
    }
)
"""By the module in which users find them."""


class JitHook:
    """Replaces `jax.jit` and what is like it, for modules that are imported from now on.

    Args:
        libraries: whether installed packages get persistent functions as well; else only the
            program's own code does.
        make: makes a persistent function, as `persistent_call`.

    Attributes:
        not_served: why functions were given to plain `jax.jit`, and how many for each reason.
    """

    def __init__(
        self, *, libraries: bool = True, make: Callable[..., Any] = persistent_call
    ) -> None:
        self.not_served: Counter[str] = Counter()
        self._libraries = libraries
        self._make = make
        self._finder = AfterImport(_JITS, self._patch)
        self._originals: list[tuple[ModuleType, str, Any]] = []

    def install(self) -> None:
        """Replaces them in what is imported already, and in the rest when it is imported."""
        for name in _JITS:
            if name in sys.modules:
                self._patch(sys.modules[name])
        sys.meta_path.insert(0, self._finder)

    def remove(self) -> None:
        """Gives modules their own functions again; what was made stays persistent."""
        sys.meta_path.remove(self._finder)
        while self._originals:
            module, name, original = self._originals.pop()
            setattr(module, name, original)

    def serves(self, module: str) -> bool:
        """Whether functions that this module jits become persistent."""
        if module.partition(".")[0] in _PLAIN_CALLERS or module.startswith(_PLAIN_MODULES):
            return False
        return self._libraries or is_local_module(module)

    def jitted(
        self, jit: _Jit, original: Callable[..., Any], function: Any, options: dict[str, Any]
    ) -> Any:
        """The function as a persistent one; as the original makes it where that is not possible."""
        resolved = jit.resolve(options)
        given = {name for name, value in resolved.items() if value is not None}
        for name in sorted(given & jit.plain):
            self.not_served[f"the option {name}"] += 1
            return original(function, **options)
        passed = {name: value for name, value in resolved.items() if name not in jit.plain}
        try:
            return self._make(function, static=jit.static, **_without_defaults(passed))
        except Exception as error:  # noqa: BLE001  the original raises what jax raises, or nothing
            made = original(function, **options)
            self.not_served[f"{type(error).__name__}: {error}"] += 1
            return made

    def _patch(self, module: ModuleType) -> None:
        for jit in _JITS[module.__name__]:
            original = getattr(module, jit.name)
            if not isinstance(original, HookedJit):
                self._originals.append((module, jit.name, original))
                setattr(module, jit.name, HookedJit(original, jit, self))


class HookedJit(FunctionWrapper):
    """What stands in the place of `jax.jit`; in code that travels it is `jax.jit` itself."""

    def __init__(self, original: Callable[..., Any], jit: _Jit, hook: JitHook) -> None:
        functools.update_wrapper(self, original)
        self.__wrapped__ = original
        self._jit = jit
        self._hook = hook

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As `jax.jit`, also as a decorator with options."""
        caller = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001  what it is for
        if len(args) > 1 or not self._hook.serves(str(caller)):
            return self.__wrapped__(*args, **options)
        if not args:
            return functools.partial(self, **options)
        return self._hook.jitted(self._jit, self.__wrapped__, args[0], options)

    def __copy__(self) -> HookedJit:
        """As of any function: itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> HookedJit:
        """As of any function: itself."""
        return self

    def __reduce__(self) -> Any:
        """On the way to a server it is the original."""
        from jaxd_protocol.jit.nested import nested

        return nested, (self.__wrapped__, None)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def _without_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that are as jax has them where nothing is said."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and type(value).__name__ != "UnspecifiedValue"
    }


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls back when one of some modules has been imported; to be put into `sys.meta_path`.

    Args:
        names: of the modules.
        imported: is called with the module.
    """

    def __init__(self, names: Container[str], imported: Callable[[ModuleType], None]) -> None:
        self._names = names
        self._imported = imported
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that others find, with a loader that calls back."""
        if fullname not in self._names or getattr(self._searching, "now", False):
            return None
        self._searching.now = True
        try:
            spec = next(self._found(fullname, path, target), None)
        finally:
            self._searching.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._imported)
        return spec

    def _found(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> Iterator[importlib.machinery.ModuleSpec]:
        for finder in list(sys.meta_path):
            spec = finder.find_spec(fullname, path, target) if finder is not self else None
            if spec is not None:
                yield spec


class _CallingLoader(importlib.abc.Loader):
    """Loads as another loader does, puts that one back, and calls back."""

    def __init__(
        self, loader: importlib.abc.Loader, imported: Callable[[ModuleType], None]
    ) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """What the other loader creates."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module as the other loader does."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imported(module)
