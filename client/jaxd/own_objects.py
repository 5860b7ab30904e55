"""This process's own objects, as results name them.

Everything here is looked up: in what a function reaches, in what calls have sent, and among loaded
modules. Nothing is imported, called or unpickled because a server says so.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from jaxd.remote_objects import RemoteObject
from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.trees.references import Reference, load_reference

__all__ = ["Met", "OwnObjects", "loaded"]

Met = Mapping[Any, Any]
"""What was met when arguments were packed: `(module, qualified name)` to class, and content id to
class or callable."""

_MAX_CALLABLES: Final = 4096
_MAX_OF_ONE_NAME: Final = 16
_ALWAYS: Final = frozenset({"jax", "jaxlib", "ml_dtypes", "numpy"})
_BUILTIN: Final = frozenset(
    {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}
)
_PLAIN_DTYPES: Final = frozenset(
    {"bool", "complex64", "complex128", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_missing: Final = object()

_known: WeakValueDictionary[bytes, OwnObjects] = WeakValueDictionary()


class OwnObjects:
    """What one function's results can be made of. Safe from any thread.

    Args:
        function: what people call the function.
        mark: the function's, see `mark_of`; empty for one that has no numbers.
        objects: what it reaches, by number.
        packages: top-level names of the installed packages that it reaches. Only objects of these
            are taken by name: a server must not be able to put any function it likes (such as
            `os.system`) where a caller expects its own.
        others: what else it reaches; of these its classes are known.
    """

    def __init__(
        self,
        function: str = "a function",
        mark: bytes = b"",
        objects: Sequence[Any] = (),
        packages: Iterable[str] = (),
        others: Iterable[Any] = (),
    ) -> None:
        self._function = function
        self._mark = mark
        self._objects = objects
        self._packages = _ALWAYS | set(packages)
        self._contents: OrderedDict[bytes, Any] = OrderedDict()
        self._classes: dict[str, tuple[type, ...]] = {}  # by qualified name; the latest first
        for found in (*objects, *others):
            if isinstance(found, type):
                self._learn_class(found)
        if mark:
            _known[mark] = self

    def learn(self, met: Met) -> bool:
        """Adds what was met when a call was packed; True when a class was not known before."""
        news = False
        for name, found in met.items():
            if isinstance(found, type):
                news = self._learn_class(found) or news
            if type(name) is bytes and self._contents.get(name) is not found:
                self._contents[name] = found
                if len(self._contents) > _MAX_CALLABLES:
                    self._contents.popitem(last=False)
        return news

    def _learn_class(self, cls: type) -> bool:
        same = self._classes.get(cls.__qualname__, ())
        if cls in same:
            return False
        self._classes[cls.__qualname__] = (cls, *same)[:_MAX_OF_ONE_NAME]
        homes = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
        self._packages |= homes - sys.stdlib_module_names
        return True

    # classes ----------------------------------------------------------------------------------

    def class_of(
        self, module: str, name: str, content: bytes = b"", places: tuple[Any, ...] = ()
    ) -> type | None:
        """The class with these numbers or that content id; without them, an installed one.

        None when this process does not have it.
        """
        if not content:
            found = _installed(module, name)
            return found if isinstance(found, type) else None
        known = self._numbered(places, own=True)  # first: a class may have changed since
        if isinstance(known, type):
            return known
        known = self._contents.get(content)
        if isinstance(known, type) and (known.__module__, known.__qualname__) == (module, name):
            return known
        from jaxd_protocol.fingerprint import content_id

        same = self._classes.get(name, ())
        fits = [cls for cls in same if content_id(cls) == content]
        fits.sort(key=lambda cls: cls.__module__ != module)
        if fits:
            return fits[0]
        known = self._numbered(places)  # last: another function may have its twin
        return known if isinstance(known, type) else None

    def may_make(self, cls: type) -> bool:
        """Whether instances of an installed class may be made."""
        from jaxd.jax_nodes import is_mapping

        return is_mapping(cls) or self._is_expected(cls)

    # other objects ----------------------------------------------------------------------------

    def getter(self, reference: Reference) -> Callable[[], Any]:
        """What gives the object of a reference, or what stands for it in this process.

        Raises:
            ProtocolError: when the reference cannot be meant for this process.
            ResultError: when this process has no such object, and the server has not kept it.
        """
        found = self._find(reference)
        if found is _missing:
            if not reference.token:
                raise ResultError(
                    f"the result of {self._function} holds something that this process does not "
                    f"have: {reference.about}. Return dicts, lists and tuples from the function."
                )
            found = RemoteObject(reference.token, reference.about, self._function)
        elif reference.kind == "c":  # the latest of several with equal content
            (content,) = reference.detail
            return lambda: self._contents.get(content, found)
        elif reference.kind == "s":
            return lambda: set(found) if type(found) is set else found
        return lambda: found

    def unflattener(self, cls: type) -> Callable[[Any, list[Any]], Any]:
        """What this process has registered with jax to make instances of a class.

        Raises:
            ResultError: when it has not registered the class, or not imported jax.
        """
        from jaxd.jax_nodes import is_registered, unflatten

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
            ResultError: when this process has not imported jax.
        """
        from jaxd.jax_nodes import structure

        return structure(tree)

    def _find(self, reference: Reference) -> Any:
        return self._FINDERS[reference.kind](self, *reference.detail)

    def _nothing(self) -> Any:
        return _missing

    def _numbered(self, places: tuple[Any, ...], *, own: bool = False) -> Any:
        """The object with one of these numbers: in this function, or else in another one."""
        for place in places:
            if type(place) is not tuple or tuple(map(type, place)) != (bytes, int):
                raise ProtocolError("a result names an object by something that is no number.")
        marked = dict(places)
        if self._mark in marked:
            return self.by_number(marked[self._mark])
        for mark, number in () if own else places:
            other = _known.get(mark)
            if other is not None:
                return other.by_number(number)
        return _missing

    def by_number(self, number: int) -> Any:
        """The object with that number in the walk over the function.

        Raises:
            ProtocolError: when there is none.
        """
        if not 0 <= number < len(self._objects):
            raise ProtocolError("a result names an object that its function does not reach.")
        return self._objects[number]

    def _content(self, content: bytes) -> Any:
        return self._contents.get(content, _missing)

    def _class(self, module: str, name: str, content: bytes) -> Any:
        if module == "builtins" and name in _BUILTIN:
            return loaded(module, name)
        found = self.class_of(module, name, content)
        if found is None or not (content or self._is_expected(found)):
            return _missing
        return found

    def _installed_object(self, module: str, name: str) -> Any:
        found = _installed(module, name)
        return found if found is not None and self._is_expected(found) else _missing

    def _method(self, owner: tuple[Any, ...], name: str) -> Any:
        found = self._find(load_reference(owner))
        if found is _missing:
            return _missing
        for base in (found if isinstance(found, type) else type(found)).__mro__:
            raw = base.__dict__.get(name)
            if isinstance(raw, classmethod):
                raw = raw.__func__
                found = found if isinstance(found, type) else type(found)
            if raw is not None:
                return MethodType(raw, found) if isinstance(raw, FunctionType) else _missing
        return _missing

    def _member(self, module: str, name: str, content: bytes, member: str) -> Any:
        cls: Any = self._class(module, name, content)
        members = {} if cls is _missing else cls.__dict__.get("_member_map_", {})
        return members.get(member, _missing)

    def _dtype(self, name: str) -> Any:
        from jaxd_protocol.trees.leaves import dtype_of

        needed = "numpy" if name in _PLAIN_DTYPES else "ml_dtypes"
        if needed not in sys.modules:
            return _missing
        try:
            return dtype_of(name)
        except ProtocolError:  # of records, or text: no number
            return _missing

    def _set(self, kind: str, items: tuple[Any, ...]) -> Any:
        return set(items) if kind == "set" else frozenset(items)

    def _is_expected(self, found: Any) -> bool:
        """Whether an installed object belongs to a package that this function deals with."""
        if isinstance(found, ModuleType):
            home: Any = found.__name__
        else:
            home = getattr(found, "__module__", None) or type(found).__module__
        return isinstance(home, str) and home.partition(".")[0] in self._packages

    _FINDERS: ClassVar[dict[str, Callable[..., Any]]] = {
        "n": _numbered,
        "c": _content,
        "k": _class,
        "i": _installed_object,
        "m": _method,
        "e": _member,
        "d": _dtype,
        "s": _set,
        "o": _nothing,
    }


def _installed(module: str, name: str) -> Any:
    from jaxd_protocol.installed import is_local_module

    if module not in sys.modules or is_local_module(module):
        return None
    return loaded(module, name) if name else sys.modules[module]


def loaded(module: str, name: str) -> Any:
    """An object of a module that is already loaded; nothing is imported for the server."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # getattr could run a module's own code
    return found.__func__ if isinstance(found, staticmethod) else found
