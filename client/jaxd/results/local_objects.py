"""Resolves references in results to local objects, and the classes that results may contain.

A server may be compromised, or shared with users who run code in it. So what it names is looked up
in tables of what this process's own function and arguments hold, never in a module: nothing is
imported, called or unpickled at the will of a server, and no callable is handed out
that the function, its arguments or the client's own classes do not have there.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Flag
from functools import partial, reduce
from operator import or_
from types import CodeType, FunctionType, MethodType
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from jaxd.interop.jax_runtime import leaves_of
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.pytree.decoder import NNX_PARTS, restore_instance
from jaxd_protocol.pytree.references import Reference, load_reference

KnownObjects = Mapping[Any, Any]
"""What was met when arguments were packed: `(module, qualified name)` to a class or an installed
callable, and content id to a class or callable of the user's own."""

_MAX_CALLABLES: Final = 4096
_MAX_PER_NAME: Final = 16
_BUILTIN: Final = frozenset(
    {bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple, OrderedDict}
)
"""Python's own types that stand for data. No other object of `builtins` is handed out."""

_CUSTOM_STATE_METHODS: Final = frozenset(
    {"__reduce__", "__reduce_ex__", "__setstate__", "__post_init__"}
)
"""A class with one of these of its own has more to it than its attributes."""

_ATTRIBUTES_ONLY: Final = frozenset(
    {("flax.nnx.pytreelib", "Pytree"), ("flax.nnx.variablelib", "Variable")}
)
"""Base classes that have such methods, with which they fill attributes and do nothing else."""

_PLAIN_DTYPES: Final = frozenset(
    {"bool", "complex64", "complex128", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_NUMBER_MODULES: Final = ("numpy", "jax.numpy", "ml_dtypes")
_NUMBER_NAMES: Final = _PLAIN_DTYPES | {"bfloat16"}
_missing: Final = object()

_live_instances: WeakValueDictionary[bytes, LocalObjects] = WeakValueDictionary()


class RemoteObject:
    """An object in a result that exists only on the server.

    It can be passed back to the same server, alone or inside of another argument, and becomes the
    object again there. The server keeps the last few thousand of them, and none when it starts
    again; then the call that gets it raises ArgumentError.

    Attributes:
        token: by which the server knows it.
        about: what it is, for people.
        function: whose result it was part of.
    """

    __slots__ = ("about", "function", "token")

    def __init__(self, token: bytes, about: str, function: str) -> None:
        self.token = token
        self.about = about
        self.function = function

    def __eq__(self, other: object) -> bool:
        return type(other) is RemoteObject and other.token == self.token

    def __hash__(self) -> int:
        return hash(self.token)

    def __copy__(self) -> RemoteObject:
        return self

    def __deepcopy__(self, memo: Any) -> RemoteObject:
        return self

    def __reduce__(self) -> Any:
        from jaxd_protocol.pickling.names import call

        return call, ("kept_object", self.token)

    def __repr__(self) -> str:
        return f"<RemoteObject: {self.about}, on the server; from a result of {self.function}>"


class LocalObjects:
    """The local objects and classes that results of one function may refer to. Thread-safe.

    Args:
        function: what people call the function.
        mark: the function's, see `function_mark`; empty for one that has no numbers.
        objects: what it reaches, by number.
        packages: top-level names of the installed packages that it reaches. Only of these are
            classes taken by name, and only those that hold nothing but data.
        others: what else it reaches; of these its classes are known.
        installed: modules and callables of installed packages that its code names.
    """

    def __init__(
        self,
        function: str = "a function",
        mark: bytes = b"",
        objects: Sequence[Any] = (),
        packages: Iterable[str] = (),
        others: Sequence[Any] = (),
        installed: Sequence[Any] = (),
    ) -> None:
        self._function = function
        self._mark = mark
        self._objects = objects
        self._others = others
        self._packages = set(packages)
        self._contents = BoundedDict[bytes, Any](_MAX_CALLABLES)
        self._classes: dict[str, tuple[type, ...]] = {}  # by qualified name; the latest first
        self._installed = installed
        self._named_in_code: dict[tuple[str, str], Any] | None = None
        self._held_by_arguments: dict[tuple[str, str], Any] = {}
        self._names: frozenset[str] | None = None
        self._code: dict[bytes, list[CodeType]] | None = None
        self._texts: frozenset[str] | None = None
        self._learn_classes((*objects, *others))
        if mark:
            _live_instances[mark] = self

    def learn(self, known_objects: KnownObjects) -> bool:
        """Adds what was met when a call was packed; True when a class was not known before."""
        self._code = self._texts = None
        for name, found in known_objects.items():
            if type(name) is tuple:
                if name[0] != "builtins" or _is_data_type(found):
                    self._held_by_arguments[name] = found
            elif self._contents.get(name) is not found:
                self._contents[name] = found
        return self._learn_classes(known_objects.values())

    def _learn_classes(self, objects: Iterable[Any]) -> bool:
        """Adds the classes among these; True when one was not known before."""
        return True in [self._learn_class(each) for each in objects if isinstance(each, type)]

    def _learn_class(self, cls: type) -> bool:
        same = self._classes.get(cls.__qualname__, ())
        if cls in same:
            return False
        self._classes[cls.__qualname__] = (cls, *same)[:_MAX_PER_NAME]
        homes = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
        self._packages |= homes - sys.stdlib_module_names
        return True

    def find_code(self, mark: bytes) -> Sequence[CodeType]:
        """Code of functions and methods that the function and its arguments hold, by its mark."""
        if self._code is None:
            from jaxd_protocol.messages.tracebacks import code_mark

            self._code = {}
            for code in codes_in((*self._objects, *self._others, *self._contents.values())):
                self._code.setdefault(code_mark(code), []).append(code)
        return self._code.get(mark, ())

    def texts(self) -> frozenset[str]:
        """Those in the code of the function and its arguments."""
        if self._texts is None:
            self._texts = texts_of((*self._objects, *self._others, *self._contents.values()))
        return self._texts

    def reaches(self, module: str) -> bool:
        """Whether the function or its arguments reach the installed package of a module."""
        from jaxd_protocol.packages.distributions import import_root

        return not self._packages.isdisjoint((module.partition(".")[0], import_root(module)))

    def reaches_libraries(self) -> bool:
        """Whether they reach a package beside Python, jax and numpy; it may be imported later."""
        from jaxd_protocol.packages.installed import (
            OWN_PACKAGES,
            SERVER_PACKAGES,
            is_local_module,
        )

        others = self._packages - SERVER_PACKAGES - OWN_PACKAGES
        return any(root not in sys.modules or not is_local_module(root) for root in others)

    # classes ----------------------------------------------------------------------------------

    def class_of(
        self, module: str, name: str, content: bytes = b"", places: tuple[Any, ...] = ()
    ) -> type | None:
        """The class of an object in a result; None when there is none that may be made.

        Args:
            module: the module of the class.
            name: its qualified name.
            content: its content id; empty for an installed class.
            places: its numbers in functions.
        """
        return (
            self._local_class(module, name, content, places)
            if content
            else self._installed_node(module, name)
        )

    def _local_class(
        self, module: str, name: str, content: bytes, places: tuple[Any, ...] = ()
    ) -> type | None:
        """A class that the function or its arguments hold."""
        known = self._by_numbers(places)  # first: a class may have changed since
        if isinstance(known, type):
            return known
        known = self._contents.get(content)
        if isinstance(known, type) and (known.__module__, known.__qualname__) == (module, name):
            return known
        from jaxd_protocol.fingerprint import content_id

        same = [cls for cls in self._classes.get(name, ()) if not _is_installed(cls)]
        fits = [cls for cls in same if content_id(cls) == content]
        fits.sort(key=lambda cls: cls.__module__ != module)
        return fits[0] if fits else None

    def _installed_node(self, module: str, name: str) -> type | None:
        """An installed class whose instances a server may fill."""
        from jaxd.interop.jax_registry import mapping_class

        mapping = mapping_class(module, name)
        if mapping is not None:
            return mapping
        held = self._held_by_arguments.get((module, name))
        named = self._installed_object(module, name)
        found = named if isinstance(named, type) else self._in_package(module, name)
        if found is None or any("__del__" in vars(base) for base in found.__mro__):
            return None
        is_fillable = held is found or (
            _is_node(found) and (named is found or not self._has_custom_state(found))
        )
        return found if is_fillable else None

    def _in_package(self, module: str, name: str) -> type | None:
        """A class by its name in a package that the function deals with."""
        if module.partition(".")[0] not in self._packages:
            return None
        from jaxd_protocol.packages.installed import content_of, is_local_module

        found: Any = None
        content: Any = {} if is_local_module(module) else content_of(module)
        for part in name.split("."):
            found = content.get(part)
            content = vars(found) if isinstance(found, type) else {}
        return found if isinstance(found, type) and found.__module__ == module else None

    def _has_custom_state(self, cls: type) -> bool:
        """Whether a class has methods of its own by which its instances are made.

        What a decorator of a package that the function deals with, of one that the package of
        the class requires, or of Python's, has put into the class is not its own.
        """
        for base in cls.__mro__:
            home = base.__module__
            if (home, base.__qualname__) in _ATTRIBUTES_ONLY:
                continue
            for name in _CUSTOM_STATE_METHODS & vars(base).keys():
                made_by = getattr(vars(base)[name], "__globals__", {}).get("__name__")
                if made_by is None and home.partition(".")[0] in sys.stdlib_module_names:
                    continue  # object's, or written in C: nothing of it is run here
                if made_by in (None, home) or not self._decorates(str(made_by), home):
                    return True
        return False

    def _decorates(self, module: str, home: str) -> bool:
        """Whether a module that has put a method into a class is one of a decorator.

        Args:
            module: whose method it is.
            home: where the class is from.
        """
        root = module.partition(".")[0]
        if root == "dataclasses" or root in self._packages:
            return True
        from jaxd_protocol.packages.distributions import is_required

        return is_required(module, home)

    # other objects ----------------------------------------------------------------------------

    def getter(
        self,
        reference: Reference,
        holders: tuple[type, ...] = (),
        field: str = "",
        remote: list[str] | None = None,
    ) -> Callable[[], Any]:
        """What gives the object of a reference, or what stands for it in this process.

        A value that is nothing but data is a new one each time.

        Args:
            reference: what the server wrote.
            holders: the classes of the objects that it is part of, outermost first.
            field: the attribute of the last of these; empty where it has none.
            remote: gets what it is, for people, where only the server has it.

        Raises:
            ProtocolError: when the reference cannot be meant for this process.
            ResultError: when this process has no such object, and the server has not kept it.
        """
        found = self._resolve(reference)
        if (
            reference.kind != "v"  # a mesh can be called, and a function that only calculates
            and callable(found)
            and any(map(_is_calling_container, holders))
        ):
            found = self._held_or_data_type(found)
        if reference.kind == "p" and holders:
            found = _attribute_default(reference, holders[-1], field)
        if found is _missing:
            found = self._remote_object(reference, holders)
            if remote is not None:
                remote.append(reference.about)
        elif reference.kind == "c":  # the latest of several with equal content
            (content,) = reference.detail
            return lambda: self._contents.get(content, found)
        elif reference.kind == "v":
            return lambda: self._data_value(*reference.detail)  # its parts may be changed
        return lambda: found

    def _remote_object(self, reference: Reference, holders: tuple[type, ...]) -> RemoteObject:
        if holders and _is_function_of_jax(holders[-1]):
            raise ResultError(
                f"the result of {self._function} holds a {holders[-1].__qualname__} of jax, which "
                f"calls what exists only on the server: {reference.about}. Call it in the function "
                "and return what it gives."
            )
        if not reference.token:
            raise ResultError(
                f"the result of {self._function} holds something that this process does not "
                f"have: {reference.about}. Return dicts, lists and tuples from the function."
            )
        return RemoteObject(reference.token, reference.about, self._function)

    def _held_or_data_type(self, found: Any) -> Any:
        """A function that an argument of this function held, or a type of plain data."""
        place = getattr(found, "__module__", None), getattr(found, "__name__", None)
        if found is _number_type(*place):
            return found
        if isinstance(found, type):
            return found if found in _BUILTIN else _missing
        held = (*self._contents.values(), *self._held_by_arguments.values())
        return found if any(each is found for each in held) else _missing

    def instance(self, cls: type, state: dict[Any, Any], *, is_own: bool) -> Any:
        """An object with these attributes; of one of flax nnx that a call has changed, its parts.

        Raises:
            ResultError, ProtocolError: when its class, or a part, is not as it has to be.
        """
        if NNX_PARTS in state:
            from jaxd_protocol.jit.nnx_objects import received_parts

            return received_parts(cls, state)
        return restore_instance(cls, state, by_new=is_own and _has_to_run_new(cls))

    def unflattener(self, cls: type) -> Callable[[Any, list[Any]], Any]:
        """What this process has registered with jax to make instances of a class.

        Raises:
            ResultError: when it has not registered the class, or not imported jax.
        """
        from jaxd.interop.jax_registry import is_registered, unflatten

        if not is_registered(cls):
            raise ResultError(
                f"the result holds a {cls.__module__}.{cls.__qualname__}, which only jax can make: "
                "import jax here and register the class, or return dicts, lists and tuples from "
                "the function."
            )
        return partial(unflatten, cls)

    def structure(self, tree: Any) -> Any:
        """The structure of a tree, as jax has it.

        Raises:
            ResultError: when this process has not imported jax, or a node is only on the server.
        """
        from jaxd.interop.jax_registry import structure

        made = structure(tree)
        if RemoteObject in map(type, leaves_of(tree)):  # where the server has a node, not a leaf
            raise ResultError(
                f"the result of {self._function} holds the structure of a tree with something in "
                "it that this process does not have. Return dicts, lists and tuples."
            )
        return made

    def _resolve(self, reference: Reference) -> Any:
        return self._FINDERS[reference.kind](self, *reference.detail)

    def _by_numbers(self, places: tuple[Any, ...]) -> Any:
        """The object with one of these numbers: in this function, or in another that shares it."""
        if any(
            type(place) is not tuple or tuple(map(type, place)) != (bytes, int) for place in places
        ):
            raise ProtocolError("a result names an object by something that is no number.")
        marked = dict(places)
        if self._mark in marked:
            return self.by_number(marked[self._mark])
        for mark, number in places:
            other = _live_instances.get(mark)
            found = _missing if other is None else other.by_number(number)
            if any(found is each for each in (*self._objects, *self._others)):
                return found
        return _missing

    def by_number(self, number: int) -> Any:
        """The object with that number in the walk over the function.

        Raises:
            ProtocolError: when there is none.
        """
        if not 0 <= number < len(self._objects):
            raise ProtocolError("a result names an object that its function does not reach.")
        return self._objects[number]

    def _by_class_name(self, module: str, name: str, content: bytes) -> Any:
        if not content:
            found = self._installed_object(module, name)
            if not isinstance(found, type):
                found = self._in_package(module, name)
                return found if _is_enumeration(found) else _missing
            return found
        return self._local_class(module, name, content) or _missing

    def _installed_object(self, module: str, name: str) -> Any:
        """Something installed, or a bare object, that the function reaches or its arguments held.

        Or a type of numbers.
        """
        number = _number_type(module, name)
        if number is not _missing:
            return number
        found = self._held_by_arguments.get((module, name), _missing)
        if found is not _missing:
            return found
        if self._named_in_code is None:
            from jaxd_protocol.packages.bare_objects import own_name

            own = filter(own_name, (*self._objects, *self._others))
            self._named_in_code = _by_name((*self._installed, *own))
        found = self._named_in_code.get((module, name), _missing)
        return self._constant(module, name) if found is _missing else found

    def _constant(self, module: str, name: str) -> Any:
        """What a package that the function deals with has in it to be told from all else.

        It holds at most text and numbers, as ``symmetric_tag = Tag("symmetric")`` does.
        """
        if not self.reaches(module):
            return _missing
        from jaxd_protocol.packages import bare_objects
        from jaxd_protocol.packages.installed import content_of

        found = content_of(module).get(name, _missing)
        is_data = bare_objects.is_empty_constant(found) or bare_objects.is_plain_constant(found)
        return found if is_data and bare_objects.constant_name(found) else _missing

    def _method(self, owner: tuple[Any, ...], name: str) -> Any:
        """A method of a known object that the function's own code names."""
        if self._names is None:
            self._names = frozenset(_names_in_code((*self._objects, *self._others)))
        found = self._resolve(load_reference(owner))
        if found is _missing or name not in self._names:
            return _missing
        cls = found if isinstance(found, type) else type(found)
        attributes = (vars(base).get(name) for base in cls.__mro__)
        raw = next((each for each in attributes if each is not None), None)
        if isinstance(raw, classmethod):
            raw, found = raw.__func__, cls
        elif found is cls:  # a plain function of a class is no method
            return _missing
        return MethodType(raw, found) if isinstance(raw, FunctionType) else _missing

    def _member(self, module: str, name: str, content: bytes, member: str) -> Any:
        """A member of an enum: of the function's own, or of a package that it deals with."""
        cls: Any = self._by_class_name(module, name, content)
        if cls is _missing and not content:
            cls = self._in_package(module, name)
        members = getattr(cls, "__dict__", {}).get("_member_map_", {})
        found = members.get(member, _missing)
        if found is _missing and "|" in member:
            found = _several_flags(cls, [members.get(each) for each in member.split("|")])
        return _missing if callable(found) and not content else found

    def _dtype(self, name: str) -> Any:
        from jaxd_protocol.pytree.leaves import dtype_of

        needed = "numpy" if name in _PLAIN_DTYPES else "ml_dtypes"
        if needed not in sys.modules:
            return _missing
        try:
            return dtype_of(name)
        except ProtocolError:  # of records, or text: no number
            return _missing

    def _data_value(self, name: str, parts: tuple[Any, ...]) -> Any:
        """A value that is nothing but data, of a kind that this process can make."""
        from jaxd_protocol.jax_objects.data_values import find_kind
        from jaxd_protocol.pytree.data_values import load_parts

        kind = find_kind(name)
        if kind is None:
            return _missing
        try:
            return kind.make(*load_parts(parts, self._part))
        except ProtocolError:
            raise
        except Exception:  # noqa: BLE001  parts that another version of jax, or nobody, has made
            return _missing

    def _part(self, reference: Any) -> Any:
        """A part of such a value; `LookupError` when this process does not have it."""
        from jaxd_protocol.jax_objects.data_values import kind_name

        found = self._resolve(load_reference(reference))
        if callable(found) and kind_name(found) is None:  # a mesh is, as a decorator
            found = self._held_or_data_type(found)
        if found is _missing:
            raise LookupError
        return found

    _FINDERS: ClassVar[dict[str, Callable[..., Any]]] = {
        "n": _by_numbers,
        "c": lambda self, content: self._contents.get(content, _missing),
        "k": _by_class_name,
        "i": _installed_object,
        "p": lambda self, *_: _missing,
        "m": _method,
        "e": _member,
        "d": _dtype,
        "v": _data_value,
        "o": lambda _: _missing,
    }


def _number_type(module: Any, name: Any) -> Any:
    """A type of numbers, of one of the three modules that have these: it only makes arrays."""
    if module not in _NUMBER_MODULES or name not in _NUMBER_NAMES:
        return _missing
    return getattr(sys.modules.get(module), name, _missing)


def _is_enumeration(cls: Any) -> bool:
    """Whether it is a class of constants, of equinox's kind: it makes nothing when called."""
    enumeration = getattr(sys.modules.get("equinox"), "Enumeration", None)
    return enumeration is not None and isinstance(cls, type) and issubclass(cls, enumeration)


def _several_flags(cls: Any, members: list[Any]) -> Any:
    """Members of a flag as one, put together as Python does it."""
    if not issubclass(cls, Flag) or cls.__or__ is not Flag.__or__ or None in members:
        return _missing
    return reduce(or_, members)


def _is_calling_container(cls: type) -> bool:
    """Whether instances of an installed class are called, and so may call what is in them.

    A dict that makes its values is one, and so is every class of a library with a `__call__`.
    """
    if issubclass(cls, partial | defaultdict):
        return True
    return any("__call__" in vars(base) for base in cls.__mro__) and _is_installed(cls)


def _is_function_of_jax(cls: type) -> bool:
    """Whether instances of a class of jax are called, as what `jax.vjp` returns."""
    return cls.__module__.partition(".")[0] == "jax" and _is_calling_container(cls)


def _has_to_run_new(cls: Any) -> bool:
    """Whether `__new__` of a class may give another object than a new one."""
    if type(cls.__new__) is not FunctionType:
        return True
    from jaxd_protocol.fingerprint.values.reductions import makes_new_objects  # few have one

    return not makes_new_objects(cls)


def _is_installed(cls: type) -> bool:
    """Whether a class travels by its name."""
    from jaxd_protocol.pickling.pack.classes import class_name

    return class_name(cls) is not None


def _attribute_default(reference: Reference, holder: type, field: str) -> Any:
    """The default of the attribute that the reference is, of the class that it is part of."""
    if reference.detail != (holder.__module__, holder.__qualname__, field):
        return _missing
    from jaxd_protocol.pytree.decoder import parameter_default

    return parameter_default(holder, field, _missing)


def _is_node(cls: type) -> bool:
    """Whether instances of a class are trees: named tuples, dataclasses, nodes of jax."""
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return True
    if any("__dataclass_fields__" in vars(base) for base in cls.__mro__):
        return True
    from jaxd.interop.jax_registry import is_registered

    return is_registered(cls)


def _by_name(installed: Iterable[Any]) -> dict[tuple[str, str], Any]:
    """Installed objects, and bare ones, by the name that a server has for each."""
    from jaxd_protocol.packages.bare_objects import own_name
    from jaxd_protocol.pickling.pack.instances import installed_name

    found = {}
    for value in installed:
        home = getattr(value, "__module__", None)
        if home != "builtins" or _is_data_type(value):
            name = installed_name(value) or own_name(value)
            if name is not None:
                found[name] = value
    return found


def _is_data_type(value: Any) -> bool:
    return isinstance(value, type) and value in _BUILTIN


def _names_in_code(objects: Iterable[Any]) -> Iterable[str]:
    """The names that stand in the user's own functions, and in the methods of own classes."""
    from jaxd_protocol.fingerprint.code.callbacks import names_in

    for code in _code_of(objects):
        yield from names_in(code)


def texts_in(value: Any) -> Iterator[str]:
    """The texts in a plain value, those of bytes among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield os.fsdecode(value)
    elif isinstance(value, dict):
        yield from texts_in((*value, *value.values()))
    elif isinstance(value, tuple | list | set | frozenset):
        for each in value:
            yield from texts_in(each)


def texts_of(objects: Iterable[Any]) -> frozenset[str]:
    """The names and constants in the code of own functions, methods, classes and modules."""
    codes = codes_in(objects)
    return frozenset(text for each in codes for text in texts_in((each.co_names, each.co_consts)))


def codes_in(objects: Iterable[Any]) -> Iterable[CodeType]:
    """The code of own functions and methods, and of the functions in them."""
    todo = list(_code_of(objects))
    while todo:
        code = todo.pop()
        yield code
        todo += [each for each in code.co_consts if isinstance(each, CodeType)]


def _code_of(objects: Iterable[Any]) -> Iterable[CodeType]:
    from jaxd_protocol.packages.installed import is_local_module

    for value in objects:
        if isinstance(value, CodeType):
            yield value  # of a module that is not imported yet
            continue
        function = _function_of(value)
        is_class = issubclass(type(value), type)
        home = value.__module__ if is_class else getattr(function, "__module__", None)
        if not isinstance(home, str) or not is_local_module(home):
            continue
        members = list(vars(value).values()) if is_class else []
        yield from (each.__code__ for each in (function, *map(_function_of, members)) if each)


def _function_of(value: Any) -> FunctionType | None:
    """The function that something is, or a method or a property has; runs nothing of its class."""
    if type(value) is property:
        value = value.fget
    elif type(value) in (MethodType, classmethod, staticmethod):
        value = value.__func__
    return value if type(value) is FunctionType else None
