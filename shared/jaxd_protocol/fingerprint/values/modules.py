"""Modules, and references to what is installed: by name, and with what it reads by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial
from types import ModuleType
from typing import Any, Final, NoReturn

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.canonical_bytes import digest
from jaxd_protocol.fingerprint.data_model import Reader
from jaxd_protocol.fingerprint.process_view import is_extension
from jaxd_protocol.fingerprint.walk import Walk

IGNORED_ATTRIBUTES: Final = frozenset({
    "__annotate__", "__annotations__", "__builtins__", "__cached__", "__conditional_annotations__",
    "__debug__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__path__",
    "__spec__",
})  # fmt: skip
"""Names in a module that describe its place, or its source, and not what it does."""


class LazySubmodules:
    """On a server, the `__getattr__` of a package that has submodules which are imported when read.

    Attributes:
        load: imports the module of a full name.
        package: name of the package.
        names: of these submodules.
        getter: the package's own `__getattr__`, where it is read; else None.
    """

    __slots__ = ("getter", "load", "names", "package")

    def __init__(
        self,
        load: Callable[[str], ModuleType],
        package: str,
        names: Collection[str],
        getter: Any = None,
    ) -> None:
        self.load = load
        self.package = package
        self.names = frozenset(names)
        self.getter = getter

    def __call__(self, name: str) -> Any:
        """The attribute of that name.

        Raises:
            AttributeError: when the package has none.
        """
        if name in self.names:
            return self.load(f"{self.package}.{name}")
        if self.getter is not None:
            return self.getter(name)
        raise AttributeError(f"module {self.package!r} has no attribute {name!r}")


def getter_of(module: ModuleType) -> Any:
    """The `__getattr__` of a module, as its own process has it."""
    found = vars(module)["__getattr__"]
    return found.getter if isinstance(found, LazySubmodules) else found


def emit_reference(walk: Walk, module: str, name: str) -> None:
    """Appends something installed, by its name and its distribution."""
    walk.tag("installed")
    walk.text(module)
    walk.text(name)
    refuse_hidden_state(walk, module, name)
    walk.package(module)
    walk.note(impurity(module, name))


_HIDDEN_STATE: Final = {
    ("click.globals", "get_current_context"): "click's context",
    **dict.fromkeys(
        [
            ("gin.config", "config_str"),
            ("gin.config", "get_bindings"),
            ("gin.config", "get_configurable"),
            ("gin.config", "operative_config_str"),
            ("gin.config", "query_parameter"),
        ],
        "gin's bindings",
    ),
    ("hydra.core.hydra_config", "HydraConfig"): "hydra's configuration of itself",
    **dict.fromkeys(
        [
            (module, name)
            for module in ("decimal", "_decimal")  # the functions, from Python 3.14 on
            for name in ("Decimal", "getcontext", "localcontext")
        ],
        "decimal's context",
    ),
}


_READERS: Final[dict[tuple[str, str], Reader]] = {
    ("copy", "deepcopy"): "identities",
    ("dataclasses", "fields"): "fields",
    ("equinox._tree", "tree_at"): "identities",
    ("inspect", "get_annotations"): "hints",
    ("inspect", "getdoc"): "docstrings",
    ("inspect", "getfullargspec"): "hints",
    ("inspect", "signature"): "hints",
    ("types", "get_original_bases"): "annotations",
    ("typing", "get_type_hints"): "hints",
    **dict.fromkeys([("_operator", "is_"), ("_operator", "is_not")], "identities"),
    **dict.fromkeys([("numpy", "copyto"), ("numpy", "put"), ("numpy", "place")], "identities"),
    **dict.fromkeys([("_pickle", "dumps"), ("_pickle", "dump")], "identities"),
}
"""What code reads by way of installed functions, beside what counts in any case."""


def refuse_hidden_state(walk: Walk, module: str, name: str) -> None:
    """Refuses an installed function or class that gives what a module keeps in its process.

    Args:
        walk: says how it was reached.
        module: its own.
        name: its name there.

    Raises:
        PackingError: when there is such a state now; the server has none, or its own.
    """
    reader = _READERS.get((module, name))
    if reader is not None:
        walk.reach.readers.add(reader)
    what = _HIDDEN_STATE.get((module, name))
    if what is None:
        return
    if _has_state(module):
        refuse_state(walk, what, module.partition(".")[0])
    walk.guards.answer(lambda: _has_state(module), False)


def refuse_state_of_import(walk: Walk, name: str) -> None:
    """Refuses the import of a library that holds state now, by code that is not looked into.

    Args:
        walk: over a function that imports a local module, which this process has not imported yet.
        name: of an installed module that this one imports.

    Raises:
        PackingError: when there is such a state; the module would run without it.
    """
    library = name.partition(".")[0]
    keepers = {module: what for (module, _), what in _HIDDEN_STATE.items()}
    for module, what in keepers.items():
        if module.partition(".")[0] == library:
            holds = partial(_is_loaded_with_state, module)
            if holds():
                refuse_state(walk, what, library)
            walk.guards.answer(holds, False)


def _is_loaded_with_state(module: str) -> bool:
    if module not in sys.modules:
        return False
    if module == "gin.config":  # whose import alone reads no binding
        return bool(vars(sys.modules[module])["config_str"]())
    return _has_state(module)


def refuse_state(walk: Walk, what: str, keeper: str) -> NoReturn:
    """For code that reads what a process holds, and a server does not."""
    raise PackingError(
        f"{walk.path()} reads {what} ({walk.where}), which {keeper} keeps where no key can see "
        "it. Read it outside of the function, and pass what it gives as an argument, or have the "
        "function close over it."
    )


def _has_state(module: str) -> bool:
    """Whether the library has any; it is loaded where its functions are reached."""
    content = vars(sys.modules[module]) if module in sys.modules else {}
    if module == "click.globals" and content:
        return content["get_current_context"](silent=True) is not None
    if module == "hydra.core.hydra_config" and content:
        return bool(content["HydraConfig"].initialized())
    if module in ("decimal", "_decimal") and content:
        return _decimal_settings(content["getcontext"]()) != _PLAIN_DECIMAL
    return True


_PLAIN_DECIMAL: Final = (
    (28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0),
    {"DivisionByZero", "InvalidOperation", "Overflow"},
)
"""The context that Python starts with."""


def _decimal_settings(context: Any) -> tuple[Any, ...]:
    """Those that decide about a result, without the flags that calculations set."""
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    traps = {signal.__name__ for signal, is_on in context.traps.items() if is_on}
    return tuple(getattr(context, name) for name in names), traps


def emit_module(walk: Walk, module: ModuleType) -> None:
    """Appends a module that is used as a value: all that is in it can be reached."""
    name = module.__name__
    if not walk.is_local(name):
        walk.reach.installed.append(module)
        emit_reference(walk, name, "")
        return
    walk.reach.whole.add(id(module))
    walk.numbered(module, _local_module, name)


def _local_module(walk: Walk, module: ModuleType) -> None:
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and is_extension(file):
        walk.tag("extension")
        with open(file, "rb") as source:
            walk.write(digest(source.read()))
        walk.unpicklable(module, "it is a compiled extension module")
        return
    refuse_own_class(walk, module)
    walk.tag("module")
    content = vars(module)
    names = sorted(content_names(module))
    walk.text(len(names))
    walk.guards.mapping(content)
    for name in names:
        walk.text(name)
        found = getter_of(module) if name == "__getattr__" else content[name]
        walk.emit_labelled(f"global {name}", found)


def refuse_own_class(walk: Walk, module: ModuleType, name: str | None = None) -> None:
    """Refuses a read of a local module that a class of the user's may answer.

    Args:
        walk: says how it was reached.
        module: the module, which arrives as one of Python's own class.
        name: of the attribute; None: all of the module is read.

    Raises:
        PackingError: when the class has the attribute, or makes attributes.
    """
    for base in type(module).__mro__:
        if base is ModuleType:
            return
        if walk.is_local(base.__module__) and _answers(base, vars(module), name):
            raise PackingError(
                f"{walk.path()} reads the module {module.__name__}, whose class "
                f"{base.__qualname__} has attributes of its own, and a server has modules of "
                "Python's class. Make an object of that class, and give it another name than the "
                "module; or define __getattr__ in the module."
            )


def _answers(cls: type, content: dict[str, Any], name: str | None) -> bool:
    """Whether a class of a module has an attribute that the module itself does not have."""
    own = vars(cls)
    if "__getattribute__" in own:
        return True
    if name is None:
        return "__getattr__" in own or any(not each.startswith("__") for each in own)
    if name in content:
        return hasattr(type(own.get(name)), "__set__")
    return name in own or "__getattr__" in own


def content_names(module: ModuleType) -> list[str]:
    """The names in a module that decide what it does, in their order.

    Not those that begin with "@py", which pytest puts there for its rewritten asserts.
    """
    names = [name for name in vars(module) if name not in IGNORED_ATTRIBUTES]
    return [name for name in names if not name.startswith("@py")]


_CLOCKS: Final = frozenset(
    [
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "process_time",
        "localtime",
        "gmtime",
        "ctime",
        "strftime",
    ]
)
_RANDOM_OBJECTS: Final = frozenset({"Random", "SystemRandom", "seed"})
_OS_STATE: Final = frozenset(["read", "readlink", "urandom", "getpid"])
_THREAD_STATE: Final = frozenset(
    ["current_thread", "get_ident", "get_native_id", "active_count", "enumerate"]
)


def impurity(module: str, name: str) -> str | None:
    """What an installed function reads besides its arguments, None for most.

    Args:
        module: the function's own.
        name: its name there; empty for the module as a whole.
    """
    if module == "time" and name in _CLOCKS:
        return f"the clock (time.{name})"
    if module == "datetime" and name.rpartition(".")[2] in ("now", "today", "utcnow"):
        return f"the clock ({name})"
    if _is_numpy_state(module, name):
        return f"numpy's global random state (numpy.random.{name})"
    if module == "random" and name and name not in _RANDOM_OBJECTS:
        return f"Python's global random state (random.{name})"
    if module in ("os", "posix") and name in _OS_STATE:
        return f"the operating system ({name})"
    if module in ("threading", "_thread") and name in _THREAD_STATE:
        return f"which thread it is ({name})"
    return None


def _is_numpy_state(module: str, name: str) -> bool:
    is_function = name[:1].islower() and name != "default_rng"  # which makes an object, as a class
    return is_function and (module + ".").startswith("numpy.random.")
