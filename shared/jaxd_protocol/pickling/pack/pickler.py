"""The pickler: which object is written in which way."""

from __future__ import annotations

import io
import pickle
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from jaxd_protocol.fingerprint import content_id
from jaxd_protocol.fingerprint.canonical_bytes import digest
from jaxd_protocol.fingerprint.data_model import ReachedObjects
from jaxd_protocol.fingerprint.values.instances import ThreadLocal
from jaxd_protocol.fingerprint.values.kinds import reduce_kind
from jaxd_protocol.fingerprint.values.struct_sequences import reduce_struct_sequence
from jaxd_protocol.jax_objects.decomposition import reduce_jax
from jaxd_protocol.packages.bare_objects import constant_name
from jaxd_protocol.packages.importable import find_object, importable_name
from jaxd_protocol.packages.installed import OWN_PACKAGES, is_local_module
from jaxd_protocol.pickling import names
from jaxd_protocol.pickling.arrays import reduce_array
from jaxd_protocol.pickling.code_objects import code_arguments
from jaxd_protocol.pickling.pack.classes import (
    class_name,
    is_pythons_own,
    reduce_class,
    reduce_constant,
    reduce_primitive,
)
from jaxd_protocol.pickling.pack.function_parts import reduce_function
from jaxd_protocol.pickling.pack.instances import (
    is_plain,
    reduce_config,
    reduce_mapping,
    reduce_own,
    reduce_partial,
)
from jaxd_protocol.pickling.pack.modules import (
    UnnamedNamespace,
    reduce_archived,
    reduce_module,
    reduce_unnamed_namespace,
    refuse_compiled_object,
)
from jaxd_protocol.pickling.unpack import rebuild
from jaxd_protocol.pickling.unpack.content_table import ClassId
from jaxd_protocol.pickling.unpack.private_modules import PrivateModules
from jaxd_protocol.pickling.unpack.rebuild import Filler, make_placeholder

PROTOCOL: Final = 5

_MAX_NESTED: Final = 40
"""Functions and classes inside of each other, before the inner ones are completed later."""

_END: Final = object()
"""Written last in the state of a function or class."""

_CONTAINERS: Final = frozenset({dict, list, set})
"""Types that pickle does not ask `reducer_override` about."""


class _PrivateModulesMark:
    """Becomes the `PrivateModules` on the server."""


class Pickler(pickle.Pickler):
    """Writes one function and all that it reaches.

    Attributes:
        file: what is written to.
        blob: stands for the `PrivateModules`.
        reach: of a finished walk over it.
        last: the object that was processed last: the cause of an error.
        classes: classes by value that were reached, by id.
        objects: callables that arguments hold, by content id.
        installed: callables and classes that arguments hold, by the name under which each is
            imported; not those that only make other objects.
    """

    def __init__(
        self,
        reach: ReachedObjects,
        collect: Callable[[pickle.PickleBuffer], Any] | None = None,
        *,
        trial: bool = False,
    ) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, PROTOCOL, buffer_callback=collect)
        self.blob = _PrivateModulesMark()
        self.last: Any = None
        self.classes: dict[ClassId, type] = {}
        self.objects: dict[bytes, Any] = {}
        self.installed: dict[tuple[str, str], Any] = {}
        self.reach = reach
        self._trial = trial
        self._depth = 0
        self._deferred: deque[PickleBox] = deque()
        self._boxes: dict[int, PickleBox] = {}
        self._unnamed_namespaces: dict[int, UnnamedNamespace] = {}
        self._modules = {id(vars(module)): module for module in _local_modules(reach)}
        self._packable: dict[int, bool] = {}

    # the hooks of pickle -----------------------------------------------------------------------

    def persistent_id(self, value: Any) -> Any:
        """What is written instead of `value`; None for the value itself.

        What is returned is written, and read back as the value itself. It is the only hook that
        pickle has for sets and dicts.
        """
        kind = type(value)
        if self.reach.archives is not None and kind in _CONTAINERS:
            reduced = reduce_archived(self, value)
            if reduced is not NotImplemented:
                return self._box(value, lambda it: PickleBox(it, lambda: reduced))
        if kind is set or kind is frozenset:
            return self._box(value, boxed_set)
        if kind is dict and id(value) in self.reach.partial_reads:
            keys = self.reach.part_of(value)
            return None if keys is None else self._box(value, lambda it: boxed_dict(it, keys))
        if value is _END:
            self._depth -= 1
            return False
        if id(value) in self.reach.replacements:
            return self.reach.replacements[id(value)]
        read = self.reach.fields.get(id(value))
        if read is not None and id(value) not in self.reach.whole:
            return self._box(
                value, lambda it: PickleBox(it, lambda: (read.stand_in, (read.fields,)))
            )
        return None

    def reducer_override(self, value: Any) -> Any:
        """A reduce tuple, or `NotImplemented` where pickle has its own."""
        kind = type(value)
        if kind is PickleBox:
            return value.reduce()
        self.last = value
        archived = reduce_archived(self, value)
        if archived is not NotImplemented:
            return archived
        if id(value) in self.reach.unpicklable and kind is not types.ModuleType:
            return make_placeholder, tuple(self.reach.unpicklable[id(value)])
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(self, value)
        if isinstance(value, type):
            return self.reduce_type(value)
        if isinstance(value, types.ModuleType):
            return self.reduce_module(value)
        names = self.reach.part_of(value)
        if names is not None and is_plain(kind):
            return reduce_partial(value, names, self.replacements_of(value))
        if isinstance(value, dict):
            reduced = reduce_mapping(value, names)
            if reduced is not NotImplemented:
                return reduced
        return self._reduce_other(value)

    def _reduce_other(self, value: Any) -> Any:
        refuse_compiled_object(value)
        reduced = reduce_kind(value, self.blob)
        if reduced is not NotImplemented:
            return reduced
        ways = (
            reduce_array,
            reduce_jax,
            partial(reduce_primitive, self),
            partial(reduce_constant, self),
            reduce_struct_sequence,
            reduce_config,
        )
        for reduce in ways:
            reduced = reduce(value)
            if reduced is not NotImplemented:
                return reduced
        name = constant_name(value) or _name_of_callable(value)
        if name is None:
            return reduce_own(value)
        return find_object, name

    # the interface for reducers (`Packer`) -----------------------------------------------------

    def replacements_of(self, value: Any) -> dict[str, Any]:
        """The replacements of its attributes that are only passed to be called back."""
        found = self.reach.partial_reads.get(id(value))
        return {} if found is None else found.given

    def reduce_type(self, cls: type) -> Any:
        """For a class."""
        name = class_name(cls)
        if name is not None:
            return self.by_name(cls, name)
        if is_pythons_own(cls):
            return NotImplemented
        refuse_compiled_object(cls)
        return reduce_class(self, cls)

    def reduce_module(self, module: types.ModuleType) -> Any:
        """For a module."""
        return reduce_module(self, module)

    def by_name(self, value: Any, name: tuple[str, str]) -> Any:
        """An installed object under the name that leads to it."""
        if name[0].partition(".")[0] in OWN_PACKAGES:
            stable = names.name_of(*name)
            if stable is not None:
                return names.find, (stable,)
            if getattr(sys.modules.get("jaxd"), name[1], None) is value:
                name = "jaxd", name[1]
        own = (getattr(value, "__module__", None), getattr(value, "__qualname__", None))
        return name[1] if name == own else (find_object, name)

    def class_id(self, cls: Any, name: tuple[str, str] | None = None) -> ClassId:
        """The id of a class by value, of a primitive of jax or of a constant with that name.

        Of two that are alike, as after a reload of their module, the second has one that leads to
        no content: it is another class on the server, too, and this function's own. So is a
        constant of that class.
        """
        if name is None:
            name = cls.__module__, getattr(cls, "__qualname__", None) or cls.name
        found = ClassId(content_id(cls), name[1], name[0])
        kind = type(cls)
        is_own = kind is not type and class_name(kind) is None
        if is_own and self.class_id(kind).content != content_id(kind):  # it is the second one
            found = found._replace(content=digest(b"alike" + found.content))
        while self.classes.setdefault(found, cls) is not cls:
            found = found._replace(content=digest(b"alike" + found.content))
        return found

    def nested(
        self, value: Any, made: tuple[Any, ...], filler: Filler, state: Callable[[], Any]
    ) -> Any:
        """The reduce tuple of a function or class: first it is made, then completed.

        Where they are nested too deeply it is completed at the end, so that a chain of helpers
        may be of any length.
        """
        if self._depth >= _MAX_NESTED:
            self._deferred.append(
                PickleBox(value, lambda: (rebuild.fill_later, (value, filler, state())))
            )
            return made
        self._depth += 1
        return (*made, (filler, state(), _END), None, None, rebuild.fill)

    def deferred_completions(self) -> Iterator[Any]:
        """What `nested` has deferred, until nothing is left.

        pickle may take the next item before it writes one, and stop when there is none; so a None
        follows each.
        """
        while self._deferred:
            yield self._deferred.popleft()
            yield None

    def cell(self, cell: types.CellType) -> PickleBox:
        """A cell of a function's closure."""
        return self._box(cell, lambda it: PickleBox(it, lambda: (rebuild.make_cell, ())))

    def boxed(self, owner: Any, reduced: tuple[Any, ...]) -> PickleBox:
        """What is written by this reduce tuple; `owner` keeps it alive."""
        return PickleBox(owner, lambda: reduced)

    def namespace(self, namespace: dict[str, Any]) -> PickleBox:
        """The globals of a function: those of its module, where there is one."""
        module: Any = self._modules.get(id(namespace))
        if module is None:
            named = sys.modules.get(str(namespace.get("__name__")))
            if named is not None and vars(named) is namespace:
                module = named
            else:
                module = self._unnamed_namespaces.setdefault(
                    id(namespace), UnnamedNamespace(namespace)
                )
        return self._box(
            namespace, lambda it: PickleBox(it, lambda: (rebuild.namespace_of, (module,)))
        )

    def names_of_module(self, module: types.ModuleType) -> set[str] | None:
        """What is read of a local module; None when all of it can be."""
        if id(module) in self.reach.whole:
            return set() if self._trial else None
        return self.reach.part_of(module) or set()

    def value_or_placeholder(self, value: Any) -> Any:
        """The value, or a placeholder when it cannot be packed: it may never be used."""
        if type(value) in (bool, bytes, float, int, str, type(None)) or self._can_pack(value):
            return value
        words = "a global", type(value).__qualname__, "it has no form that could be sent"
        return PickleBox(value, lambda: (make_placeholder, words))

    def _can_pack(self, value: Any) -> bool:
        known = self._packable.get(id(value))
        if known is None:
            try:
                Pickler(self.reach, trial=True).dump(value)
                known = True
            except Exception:  # noqa: BLE001  whatever a user's __reduce__ may raise
                known = False
            self._packable[id(value)] = known
        return known

    def _box(self, value: Any, make: Callable[[Any], PickleBox]) -> PickleBox:
        known = self._boxes.get(id(value))
        if known is None:
            known = self._boxes[id(value)] = make(value)
        return known


def _name_of_callable(value: Any) -> tuple[str, str] | None:
    """The name of a library's callable of a type of its own, such as Cython's functions."""
    name = importable_name(value) if callable(value) else None
    return None if name is None or is_local_module(name[0]) else name


def _local_modules(reach: ReachedObjects) -> Iterator[types.ModuleType]:
    found = [each.value for each in reach.partial_reads.values()]
    for value in (*reach.imports.values(), *reach.numbered, *reach.objects, *found):
        if isinstance(value, types.ModuleType) and is_local_module(value.__name__):
            yield value


def _reduce_cell(pickler: Pickler, cell: types.CellType) -> Any:
    """A cell that is reached as a value; where a function has it, it is the same one."""
    try:
        content = (cell.cell_contents,)
    except ValueError:
        return rebuild.same, (pickler.cell(cell),)
    return rebuild.same, (pickler.cell(cell),), content, None, None, rebuild.fill_cell


def _reduce_context_variable(_: Pickler, variable: ContextVar[Any]) -> Any:
    try:
        return rebuild.make_context_variable, (variable.name, variable.get())
    except LookupError:
        return ContextVar, (variable.name,)


def _reduce_thread_local(_: Pickler, value: threading.local) -> Any:
    return ThreadLocal, (vars(value),)


_SPECIAL: Final[dict[type, Callable[[Pickler, Any], Any]]] = {
    types.FunctionType: reduce_function,
    types.CodeType: lambda _, code: (rebuild.make_code, code_arguments(code)),
    types.CellType: _reduce_cell,
    ContextVar: _reduce_context_variable,
    threading.local: _reduce_thread_local,
    ThreadLocal: _reduce_thread_local,
    _PrivateModulesMark: lambda _, mark: (PrivateModules, ()),
    UnnamedNamespace: reduce_unnamed_namespace,
}


class PickleBox:
    """An object that is pickled by a reduce tuple of its own, and unpickled as the value.

    Attributes:
        value: kept alive, so that its id stays its own while it is packed.
        reduce: gives the tuple.
    """

    __slots__ = ("reduce", "value")

    def __init__(self, value: Any, reduce: Callable[[], Any]) -> None:
        self.value = value
        self.reduce = reduce


def boxed_set(value: AbstractSet[Any]) -> PickleBox:
    """A set in an order that does not depend on the process's hash seed."""
    deep = len(value) <= _MAX_SORTED
    items = tuple(sorted(value, key=lambda item: (type(item).__qualname__, _sort_text(item, deep))))
    if type(value) is frozenset:
        return PickleBox(value, lambda: (frozenset, (items,)))
    return PickleBox(value, lambda: (set, (), items, None, None, rebuild.fill_set))


_MAX_SORTED: Final = 1000
"""In larger sets, objects that have no name are left in the order of their process."""

_REPR_TYPES: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})


def _sort_text(item: Any, deep: bool) -> str:
    """What distinguishes an element from others of its type in every process."""
    if type(item) in _REPR_TYPES:
        return repr(item)
    if type(item) is tuple:
        return str([_sort_text(each, deep) for each in item])
    if type(item) is frozenset:
        return str(sorted(_sort_text(each, deep) for each in item))
    name = getattr(item, "__qualname__", getattr(item, "_name_", None))
    if isinstance(name, str):
        return name
    return content_id(item).hex() if deep else ""


def boxed_dict(value: dict[Any, Any], keys: AbstractSet[Any]) -> PickleBox:
    """A dict of which only some keys are read."""
    part = [(key, item) for key, item in value.items() if key in keys]
    return PickleBox(value, lambda: (dict, (), None, None, iter(part)))
