"""The pickler: which object is written in which way."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import types
import weakref
from collections import ChainMap, deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, Final

from jaxd_protocol.fingerprint import content_id
from jaxd_protocol.fingerprint.model import ReachedObjects
from jaxd_protocol.jax_objects.reducers import reduce_jax
from jaxd_protocol.packages.importable import find_object, importable_name
from jaxd_protocol.packages.installed import OWN_PACKAGES, is_local_module
from jaxd_protocol.pickling import names
from jaxd_protocol.pickling.arrays import reduce_array
from jaxd_protocol.pickling.code_objects import code_arguments
from jaxd_protocol.pickling.pack.classes import class_name, reduce_class
from jaxd_protocol.pickling.pack.function_parts import reduce_function
from jaxd_protocol.pickling.pack.instances import (
    constant_name,
    is_plain,
    reduce_partial,
    reduce_singleton,
)
from jaxd_protocol.pickling.pack.interface import Filler
from jaxd_protocol.pickling.pack.modules import (
    UnnamedNamespace,
    reduce_archived,
    reduce_module,
    reduce_unnamed_namespace,
    refuse_compiled_object,
)
from jaxd_protocol.pickling.pack.stdlib import DISPATCH, reduce_stream
from jaxd_protocol.pickling.unpack import rebuild
from jaxd_protocol.pickling.unpack.content_table import ClassId
from jaxd_protocol.pickling.unpack.private_modules import make_private_modules
from jaxd_protocol.pickling.unpack.rebuild import make_placeholder

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
        blob: stands for the `PrivateModules`.
        carried, archives: as in `ReachedObjects`.
        last: the object that was processed last: the cause of an error.
        classes: classes by value that were met, by id.
    """

    dispatch_table: ClassVar[Any] = ChainMap(copyreg.dispatch_table, DISPATCH)  # type: ignore[misc]

    def __init__(
        self,
        file: io.BytesIO,
        buffers: Callable[[pickle.PickleBuffer], Any] | None,
        reach: ReachedObjects,
        *,
        trial: bool = False,
    ) -> None:
        super().__init__(file, PROTOCOL, buffer_callback=buffers)
        self.blob = _PrivateModulesMark()
        self.carried = reach.carried
        self.last: Any = None
        self.classes: dict[ClassId, type] = {}
        self.archives = reach.archives
        self._reach = reach
        self._trial = trial
        self._depth = 0
        self._deferred: deque[PickleBox] = deque()
        self._boxes: dict[int, PickleBox] = {}
        self._unnamed_namespaces: dict[int, UnnamedNamespace] = {}
        self._modules = {id(vars(module)): module for module in _local_modules(reach)}
        self._packable: dict[int, bool] = {}

    # what pickle asks --------------------------------------------------------------------------

    def persistent_id(self, value: Any) -> Any:
        """What is written instead of `value`; None for the value itself.

        Not for keys of anything: what is returned is written, and read back as it is. It is the
        only hook that pickle has for sets and dicts.
        """
        kind = type(value)
        if self.archives is not None and kind in _CONTAINERS:
            reduced = reduce_archived(self, value)
            if reduced is not NotImplemented:
                return self._box(value, lambda it: PickleBox(it, lambda: reduced))
        if kind is set or kind is frozenset:
            return self._box(value, boxed_set)
        if kind is dict and id(value) in self._reach.partial_reads:
            keys = self._reach.part_of(value)
            return None if keys is None else self._box(value, lambda it: boxed_dict(it, keys))
        if value is _END:
            self._depth -= 1
            return False
        if id(value) in self._reach.replacements:
            return self._reach.replacements[id(value)]
        return None

    def reducer_override(self, value: Any) -> Any:
        """A reduce tuple, or `NotImplemented` where pickle knows best."""
        kind = type(value)
        if kind is PickleBox:
            return value.reduce()
        self.last = value
        archived = reduce_archived(self, value)
        if archived is not NotImplemented:
            return archived
        if id(value) in self._reach.unpicklable and kind is not types.ModuleType:
            return make_placeholder, tuple(self._reach.unpicklable[id(value)])
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(self, value)
        if isinstance(value, type):
            return self.reduce_type(value)
        if isinstance(value, types.ModuleType):
            return self.reduce_module(value)
        names = self._reach.part_of(value)
        if names is not None and is_plain(kind):
            return reduce_partial(value, names, self.replacements_of(value))
        return self._reduce_other(value)

    def _reduce_other(self, value: Any) -> Any:
        refuse_compiled_object(value)
        for reduce in (reduce_array, reduce_jax, reduce_stream):
            reduced = reduce(value)
            if reduced is not NotImplemented:
                return reduced
        name = constant_name(value) or _name_of_callable(value)
        if name is None:
            return reduce_singleton(value)
        return find_object, name

    # what the reducers ask ---------------------------------------------------------------------

    def part_of(self, value: Any) -> set[Any] | None:
        """The names that are read of it; None when it counts whole."""
        return self._reach.part_of(value)

    def replacements_of(self, value: Any) -> dict[str, Any]:
        """What stands for its attributes that are only given to be called back."""
        found = self._reach.partial_reads.get(id(value))
        return {} if found is None else found.given

    def reduce_type(self, cls: type) -> Any:
        """For a class."""
        name = class_name(cls)
        if name is not None:
            return self.by_name(cls, name)
        if cls.__module__ == "builtins":
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

    def class_id(self, cls: type) -> ClassId:
        """What names a class by value."""
        name = ClassId(content_id(cls), cls.__qualname__, cls.__module__)
        self.classes[name] = cls
        return name

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
        """What `nested` has put off, until nothing is left.

        pickle may ask for the next item before it writes one, and stop when there is none; so
        nothing is put between them.
        """
        while self._deferred:
            yield self._deferred.popleft()
            yield None

    def cell(self, cell: types.CellType) -> PickleBox:
        """A cell of a function's closure."""
        return self._box(cell, boxed_cell)

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
        return self._box(namespace, lambda _: PickleBox(namespace, lambda: _namespace_of(module)))

    def names_of_module(self, module: types.ModuleType) -> set[str] | None:
        """What is read of a local module; None when all of it can be."""
        if id(module) in self._reach.whole:
            return set() if self._trial else None
        return self._reach.part_of(module) or set()

    def carried_below(self, name: str) -> set[str]:
        """The submodules of an installed package that lead to something carried."""
        prefix = f"{name}."
        below = [each for each in self.carried if each.startswith(prefix)]
        return {each[len(prefix) :].partition(".")[0] for each in below}

    def value_or_placeholder(self, value: Any) -> Any:
        """The value, or a placeholder when it cannot be packed: it may never be used."""
        if type(value) in (bool, bytes, float, int, str, type(None)) or self._can_pack(value):
            return value
        kind = type(value)
        return PickleBox(
            value,
            lambda: (
                make_placeholder,
                ("a global", kind.__qualname__, "it has no form that could be sent"),
            ),
        )

    def _can_pack(self, value: Any) -> bool:
        known = self._packable.get(id(value))
        if known is None:
            try:
                Pickler(io.BytesIO(), None, self._reach, trial=True).dump(value)
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
    """Where a library has a function of a kind of its own, such as those that Cython makes."""
    name = importable_name(value) if callable(value) else None
    return None if name is None or is_local_module(name[0]) else name


def _namespace_of(module: Any) -> Any:
    return rebuild.namespace_of, (module,)


def _local_modules(reach: ReachedObjects) -> Iterator[types.ModuleType]:
    found = [each.value for each in reach.partial_reads.values()]
    for value in (*reach.imports.values(), *reach.numbered, *reach.objects, *found):
        if isinstance(value, types.ModuleType) and is_local_module(value.__name__):
            yield value


def _reduce_cell(pickler: Pickler, cell: types.CellType) -> Any:
    """A cell that was met as a value; where a function has it, it is the same one."""
    try:
        content = (cell.cell_contents,)
    except ValueError:
        return rebuild.same, (pickler.cell(cell),)
    return rebuild.same, (pickler.cell(cell),), content, None, None, rebuild.fill_cell


def _reduce_weak_reference(pickler: Pickler, reference: weakref.ref[Any]) -> Any:
    value = reference()
    if value is None:
        return rebuild.dead_reference, ()
    return rebuild.make_reference, (pickler.blob, value)


_SPECIAL: Final[dict[type, Callable[[Pickler, Any], Any]]] = {
    types.FunctionType: reduce_function,
    type: lambda pickler, value: pickler.reduce_type(value),
    types.ModuleType: lambda pickler, value: pickler.reduce_module(value),
    types.CodeType: lambda _, code: (rebuild.make_code, code_arguments(code)),
    types.CellType: _reduce_cell,
    weakref.ref: _reduce_weak_reference,
    _PrivateModulesMark: lambda _, mark: (make_private_modules, ()),
    UnnamedNamespace: reduce_unnamed_namespace,
}


class PickleBox:
    """Is pickled by a reduce tuple of its own; unpacked, it is the value again.

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


def boxed_cell(cell: Any) -> PickleBox:
    """A cell that the function which has it fills by itself."""
    return PickleBox(cell, lambda: (rebuild.make_cell, ()))
