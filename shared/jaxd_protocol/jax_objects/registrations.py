"""Classes of the user's own: made again from their parts, and registered as they were.

What a class statement sets in motion (a metaclass's `__new__`, the `__init_subclass__` of a base,
a library's decorator) has run where the class was defined, and its effects are in the class's
namespace. Running it again over a namespace that is still empty would do something else: flax
would register a dataclass without fields, a registry of the user's would hold the class twice, a
hook with arguments would fail. So the class is made without it; `finish_class` then repeats what
a library keeps outside of the class. Primitives of jax likewise: their rules are in tables of jax
and of the libraries on it.

Private to jax: `jax._src.tree_util._registry` with the fields `to_iter` and `from_iter` of its
entries, and the names of the functions that jax's own ways of registering put there. Private to
the libraries: `equinox._module._module` with `_module_info`, `_ModuleInfo`, `_has_dataclass_init`
and `_abstract_module_registry`; `equinox._module._flatten.generate_flatten_functions`;
`flax.serialization._STATE_DICT_REGISTRY`; the classes of `flax.nnx` that register their
subclasses. tests/shared/jax_objects/test_registrations_libraries.py fails when they move.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import operator
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableSet
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from jaxd_protocol.errors import PackingError
from jaxd_protocol.jax_objects.names import attribute, kind_of, name_of_jax_object
from jaxd_protocol.packages.bare_objects import file_of, names_made_in
from jaxd_protocol.packages.importable import find_object
from jaxd_protocol.packages.installed import OWN_PACKAGES, content_of, is_local_module

# Held while hooks of base classes are replaced. Other threads may define subclasses meanwhile:
# the replacement looks at the thread.
_hooks_lock = threading.RLock()


def build_class(
    meta: type, name: str, bases: tuple[type, ...], namespace: Mapping[str, Any]
) -> type:
    """A new class without running any code of its metaclass, its bases or their libraries.

    Args:
        meta: the metaclass.
        name: the class's name.
        bases: what the class has as `__bases__`.
        namespace: what cannot be set later: `__slots__` and its like.
    """
    # Python 3.12's `Generic` has its hook in C. An empty `__orig_bases__` keeps it content.
    whole = {"__orig_bases__": ()} | dict(namespace)
    with _hooks_lock, _disabled_hooks(bases):
        cls: type = _new(meta)(meta, name, bases, whole)
    if "__orig_bases__" not in namespace:
        type.__delattr__(cls, "__orig_bases__")
    return cls


def _new(meta: type) -> Any:
    if issubclass(meta, abc.ABCMeta):
        return abc.ABCMeta.__new__
    # The nearest one in C: a metaclass may be an extension's.
    for base in meta.__mro__:
        found = vars(base).get("__new__")
        if found is not None and not isinstance(found, staticmethod):
            return found
    return type.__new__


@contextmanager
def _disabled_hooks(bases: tuple[type, ...]) -> Iterator[None]:
    owners = dict.fromkeys(owner for base in bases for owner in base.__mro__)
    hooks = {owner: vars(owner).get("__init_subclass__") for owner in owners}
    kept = {owner: hook for owner, hook in hooks.items() if isinstance(hook, classmethod)}
    for owner, hook in kept.items():
        type.__setattr__(owner, "__init_subclass__", _in_other_threads(hook))
    try:
        yield
    finally:
        for owner, hook in kept.items():
            type.__setattr__(owner, "__init_subclass__", hook)


def _in_other_threads(hook: Any) -> Any:
    builder = threading.get_ident()

    def instead(cls: type, /, **arguments: Any) -> None:
        if threading.get_ident() != builder:
            hook.__get__(None, cls)(**arguments)

    return classmethod(instead)


GENERATED_ATTRIBUTES = frozenset(
    {
        "__abstractclassvars__",  # equinox: from annotations, whose types are no content
        "__abstractvars__",
        "__dataclass_params__",  # its effects are in the methods
        "__signature__",  # flax sets it where documents are built
    }
)
"""Attributes of a class that follow from the rest: they do not count in its digest."""


class Registration(NamedTuple):  # keys name it and its module
    """How a class was registered, in parts that can be hashed and packed.

    Attributes:
        style: `node`, `keyed`, `dataclass` or `static`, as jax calls its ways; `equinox` or
            `flax.nnx` where the library does it; `made` where a library of the user's own makes the
            functions; `none` when only flax's serialisation has it.
        parts: the functions or field names that go with the style.
        state_dict: the functions with which flax saves and restores instances, if it does.
    """

    style: str
    parts: tuple[Any, ...] = ()
    state_dict: tuple[Any, Any] | None = None


_finished: WeakSet[type] = WeakSet()


def class_registration(cls: type) -> Registration | None:
    """How the class is registered in this process; None when it is not at all.

    For a class that was registered with `register_pytree_with_keys` and a `flatten_func` of its
    own, jax does not keep the function with keys; such a class arrives without its key names.
    """
    registry = attribute("jax._src.tree_util", "_registry")
    if registry is None:
        return None
    style = _library_registration(cls)
    if style is None and cls in registry:
        entry = registry[cls]
        style = _style(cls, entry.to_iter, entry.from_iter)
    serialization = sys.modules.get(_SERIALIZATION)
    state_dict = None if serialization is None else serialization._STATE_DICT_REGISTRY.get(cls)
    if style is None and state_dict is None:
        return None
    return Registration(*(style or ("none", ())), state_dict)


def node_of(cls: type) -> Any:
    """What jax keeps of a class that is registered as a node of trees; None for any other."""
    return (attribute("jax._src.tree_util", "_registry") or {}).get(cls)


def node_count() -> int:
    """How many classes are registered with jax in this process."""
    return len(attribute("jax._src.tree_util", "_registry") or ())


def finish_class(cls: type, registration: Registration | None) -> None:
    """Completes a class that has arrived, when its namespace is whole.

    Later calls for the class do nothing. Runs on the server: it imports jax when there is
    something to register.
    """
    if cls in _finished:
        return
    _finished.add(cls)
    if registration is None:
        return
    if registration.style != "none":
        _REGISTER[registration.style](cls, *registration.parts)
    if registration.state_dict is not None:
        serialization = importlib.import_module(_SERIALIZATION)
        serialization.register_serialization_state(cls, *registration.state_dict, override=True)


def _style(cls: type, to_iter: Any, from_iter: Any) -> tuple[str, tuple[Any, ...]]:
    made_by = getattr(to_iter, "__qualname__", "") if _is_of_tree_util(to_iter) else ""
    if made_by == "register_dataclass.<locals>.flatten_func":
        inner = _closure(to_iter)
        return "dataclass", (tuple(inner["data_fields"]), tuple(inner["meta_fields"]))
    if made_by == "register_pytree_with_keys.<locals>.flatten_func_impl":
        with_keys = _closure(to_iter)["flatten_with_keys"]
        if _is_of_tree_util(with_keys):  # only `register_static` brings a function of jax's own
            return "static", ()
        return "keyed", (with_keys, from_iter)
    if type(to_iter) is operator.methodcaller and hasattr(cls, "tree_flatten_with_keys"):
        return "keyed", (operator.methodcaller("tree_flatten_with_keys"), from_iter, to_iter)
    return "node", (to_iter, from_iter)


def _is_of_tree_util(function: Any) -> bool:
    return getattr(function, "__module__", None) in ("jax._src.tree_util", "jax.tree_util")


def _closure(function: Any) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
    }


def _register_with_jax(function: str) -> Callable[..., None]:
    def register(cls: type, *parts: Any) -> None:
        import jax

        getattr(jax.tree_util, function)(cls, *parts)

    return register


def _register_dataclass(cls: type, data: tuple[str, ...], meta: tuple[str, ...]) -> None:
    import jax

    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    dropped = {field.name for field in fields if field.init} - {*data, *meta}
    jax.tree_util.register_dataclass(cls, data, meta, drop_fields=tuple(dropped))


_EQUINOX = "equinox._module._module"
_SERIALIZATION = "flax.serialization"

FLAX_HOOKS = {
    "flax.nnx.pytreelib": "Pytree",
    "flax.nnx.variablelib": "Variable",
    "flax.nnx.statelib": "State",
}
"""The classes of `flax.nnx`, by module, that register each subclass with flax and jax."""


def _library_registration(cls: type) -> tuple[str, tuple[Any, ...]] | None:
    """Which library registers the class, and with which settings; None when none does."""
    made = _made.get(cls)
    if made is not None:
        return made
    equinox = sys.modules.get(_EQUINOX)
    if equinox is not None and cls in equinox._module_info:
        if is_local_module(_EQUINOX):  # its tables are the user's, too, and their entries travel
            return "made", (equinox.generate_flatten_functions,)
        is_abstract = cls in equinox._abstract_module_registry
        return "equinox", (equinox._has_dataclass_init[cls], is_abstract)
    if _flax_hook(cls) is not None:
        return "flax.nnx", (getattr(cls, "_pytree__is_pytree", None),)
    return None


def _register_with_equinox(cls: type, has_dataclass_init: bool, is_abstract: bool) -> None:
    equinox = importlib.import_module(_EQUINOX)
    fields = dataclasses.fields(cls)
    names = tuple(field.name for field in fields)
    equinox._module_info[cls] = equinox._ModuleInfo(names_tuple=names, names_set=frozenset(names))
    equinox._has_dataclass_init[cls] = has_dataclass_init
    if is_abstract:
        equinox._abstract_module_registry.add(cls)
    generate = importlib.import_module("equinox._module._flatten").generate_flatten_functions
    _register_with_made(cls, generate)


_made: WeakKeyDictionary[type, tuple[str, tuple[Any, ...]]] = WeakKeyDictionary()
"""How classes that have arrived were registered, where jax's registry does not say it."""


def _register_with_own_equinox(cls: type, generate: Callable[..., Any]) -> None:
    _made[cls] = "made", (generate,)
    _register_with_made(cls, generate)


def _register_with_made(cls: type, generate: Callable[..., Any]) -> None:
    """Registers a class with the functions that equinox makes for it."""
    import jax

    flatten, with_keys, unflatten = generate(cls, dataclasses.fields(cls))
    jax.tree_util.register_pytree_with_keys(
        cls,
        flatten_with_keys=with_keys,
        flatten_func=flatten,
        unflatten_func=partial(unflatten, cls),
    )


def _flax_hook(cls: type) -> Any:
    bases = (base for base in cls.__mro__[1:] if FLAX_HOOKS.get(base.__module__) == base.__name__)
    return next((vars(base).get("__init_subclass__") for base in bases), None)


def _register_with_flax(cls: type, is_pytree: bool | None) -> None:
    """Runs flax's hook over the finished class, and undoes what it does to the class itself."""
    before = dict(vars(cls))
    # The hook reads annotations, which may name things that this process does not have.
    cls.__annotations__ = {}
    arguments = {} if is_pytree is None else {"pytree": is_pytree}
    _flax_hook(cls).__func__(cls, **arguments)
    for name in set(vars(cls)) - set(before):
        delattr(cls, name)
    for name, value in before.items():
        if vars(cls)[name] is not value:
            setattr(cls, name, value)


_REGISTER: dict[str, Callable[..., None]] = {
    "node": _register_with_jax("register_pytree_node"),
    "keyed": _register_with_jax("register_pytree_with_keys"),
    "static": _register_with_jax("register_static"),
    "dataclass": _register_dataclass,
    "equinox": _register_with_equinox,
    "made": _register_with_own_equinox,
    "flax.nnx": _register_with_flax,
}
"""By the style of a `Registration`."""


# the rules of primitives -------------------------------------------------------------------------

Place = tuple[str, ...]
"""A module, the name of a table in it, and where that is a dict of tables the key of one."""

_TABLE_TYPES = frozenset({dict, OrderedDict, defaultdict, set, WeakKeyDictionary, WeakSet})
_MOST_TABLES_INSIDE = 64
_MAKES_A_TABLE = r"[\w.]*[({]"


class RuleTable(NamedTuple):
    """A table of an installed module that may have rules by primitive.

    Attributes:
        names: of the module and of the table in it, those of imports of it among them.
        inside: the key under which the named table has this one; empty where it is that itself.
        content: a dict or a set.
        is_known: whether there are primitives in it.
    """

    names: list[Place]
    inside: tuple[Any, ...]
    content: Any
    is_known: bool

    def place(self) -> Place:
        """Where it is made: the same in each process.

        Raises:
            PackingError: when the key in that place is no text, by which it could be found.
        """
        if not all(type(key) is str for key in self.inside):
            table, key = ".".join(self.names[0]), self.inside[0]
            raise PackingError(
                f"a rule of a primitive is in {table} under {key!r:.60}, which has no name: define "
                "the primitive in a package that is installed on both ends"
            )
        of = self.names
        made = [each for each in of if each[1] in names_made_in(file_of(each[0]), _MAKES_A_TABLE)]
        return *min(made or of), *self.inside

    def rule(self, primitive: Any) -> Any:
        """What it has for a primitive; True where it is a set."""
        return True if isinstance(self.content, MutableSet) else self.content[primitive]


def is_own_primitive(value: Any) -> bool:
    """Whether it is a primitive of jax that no installed module has: the user's own."""
    return kind_of(value) == "primitive" and name_of_jax_object(value) is None


def rule_tables(primitive: Any) -> list[RuleTable]:
    """The tables that have a primitive of the user's own, and those of other primitives.

    Differentiation, batching, lowering and the like each have one. Nobody lists them: they are
    found by looking at what the installed modules hold.
    """
    return [each for each in _tables.all() if each.is_known or primitive in each.content]


def rules_of(primitive: Any) -> dict[Place, Any]:
    """What jax and the libraries on it keep of a primitive, by place."""
    tables = [each for each in rule_tables(primitive) if primitive in each.content]
    found = [(each.place(), each.rule(primitive)) for each in tables]
    return dict(sorted(found, key=operator.itemgetter(0)))


def finish_primitive(primitive: Any, attributes: dict[str, Any], rules: dict[Place, Any]) -> None:
    """Completes a primitive that has arrived, with what `rules_of` has found at its client."""
    vars(primitive).update(attributes)
    for (module, name, *inside), rule in rules.items():
        table = find_object(module, name)
        for key in inside:
            table = table.setdefault(key, {})
        if isinstance(table, MutableSet):
            table.add(primitive)
        else:
            table[primitive] = rule


class _Tables:
    """What installed modules hold that may be a table of rules. Any thread may ask."""

    def __init__(self) -> None:
        self._seen: tuple[int, list[RuleTable]] = (0, [])

    def all(self) -> Iterator[RuleTable]:
        """Those of the modules that are loaded now."""
        count = len(sys.modules)
        if self._seen[0] != count:
            self._seen = count, _look_for_tables()
        for outer in self._seen[1]:
            yield outer
            if isinstance(outer.content, dict) and len(outer.content) <= _MOST_TABLES_INSIDE:
                for key, inner in outer.content.copy().items():
                    if type(inner) in _TABLE_TYPES:
                        yield RuleTable(outer.names, (key,), inner, _has_primitives(inner))


def _look_for_tables() -> list[RuleTable]:
    found: dict[int, RuleTable] = {}
    for module in sys.modules.copy():
        if is_local_module(module) or module.partition(".")[0] in OWN_PACKAGES:
            continue
        for name, value in content_of(module).copy().items():
            if type(value) in _TABLE_TYPES and not name.startswith("__"):
                new = RuleTable([], (), value, _has_primitives(value))
                found.setdefault(id(value), new).names.append((module, name))
    return list(found.values())


def _has_primitives(table: Any) -> bool:
    return kind_of(next(iter(table), None)) == "primitive"


_tables = _Tables()
