"""What a function changes in the flax nnx objects that it is given.

They arrive taken apart, and the function changes objects that are made of the parts. `Updating`
returns what it changed, and `ObjectCall` brings that into the caller's own objects: new values of
variables, and attributes that have come, changed or gone, as `nnx.jit` does it. `Updating` reaches
the server inside of the functions that are sent.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxd_protocol.errors import LostUpdateError, ProtocolError
from jaxd_protocol.jit.nnx_objects import (
    CONTAINER,
    LEAF,
    STATE,
    VARIABLE,
    ObjectParts,
    PutTogether,
    TakenApart,
    contains_objects,
    flatten_container,
    is_data,
    kind_of,
    loaded_nnx,
    update_object,
)
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs
from jaxd_protocol.pickling.names import HERE

Reply = tuple[dict[int, Any], Any, list[dict[int, Any]], list[None]]
"""Values of variables by number, the function's result, parts of other objects, and a None where
the result has objects in it."""


class ObjectCall(NamedTuple):
    """The arguments of one call with nnx objects.

    Attributes:
        args, kwargs: what is sent: the objects taken apart.
        objects: the caller's own, by number.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    objects: list[Any]

    @classmethod
    def of(
        cls,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        statics: StaticArgs = NO_STATIC_ARGS,
    ) -> ObjectCall | None:
        """The call with these arguments; None when no nnx object is among them."""
        positions = statics.at(len(args)) if statics else ()
        dynamic = [not (positions and place in positions) for place in range(len(args))]
        if not (any(map(contains_objects, args)) or any(map(contains_objects, kwargs.values()))):
            return None
        apart = TakenApart()
        sent = tuple(
            apart.tree(arg) if is_dynamic else arg
            for arg, is_dynamic in zip(args, dynamic, strict=True)
        )
        named = {
            name: kwargs[name] if name in statics.names else apart.tree(kwargs[name])
            for name in sorted(kwargs)
        }
        return cls(sent, named, apart.objects)

    def finish(
        self,
        reply: Reply,
        convert: Callable[[Any], Any] | None = None,
        check: Callable[[type, str, Any], object] | None = None,
    ) -> Any:
        """Brings the caller's objects up to date; returns the function's own result.

        Args:
            reply: what an `Updating` has returned.
            convert: as for `PutTogether`.
            check: as for `PutTogether`.

        Raises:
            ProtocolError: when it names objects that were not given; nothing is changed then.
        """
        changes, result, updates, marks = reply
        if any(kind_of(self._own(number)) != VARIABLE for number in changes):
            raise ProtocolError("a call has given a value to an object that is no variable.")
        if marks or updates:
            together = PutTogether(self.objects, convert, check)
            result = together.tree(result) if marks else result
            found = [self._update(each) for each in updates]
            ready = [(own, parts, together.attributes(parts)) for own, parts in found]
            for own, parts, attributes in ready:
                update_object(own, parts, attributes)
        for number, value in changes.items():
            self.objects[number].set_raw_value(value if convert is None else convert(value))
        return result

    def restructured(self, reply: Reply) -> list[Any]:
        """The caller's objects of which a call has changed more than the values of variables."""
        return [self._own(number) for update in reply[2] for number in update]

    def _update(self, update: dict[int, Any]) -> tuple[Any, ObjectParts]:
        ((number, parts),) = update.items()
        own = self._own(number)
        if type(parts) is not ObjectParts or type(own) is not parts.cls:
            raise ProtocolError("a call has changed an object into one of another class.")
        return own, parts

    def _own(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self.objects):
            raise ProtocolError("a call has changed an object that it was not given.")
        return self.objects[number]


class Updating:
    """A function that also returns what it changes in the nnx objects that it is given.

    Calls take objects as `ObjectCall` takes them apart, and return a `Reply`.

    Args:
        function: what is called.
        refuses: a change is an error, and calls return only what the function returns.
        all_of_them: return unchanged data as well: the caller donates its own arrays.
    """

    __module__ = HERE  # keys and packed bytes name it

    def __init__(
        self, function: Callable[..., Any], *, refuses: bool = False, all_of_them: bool = False
    ) -> None:
        self.function = function
        self.refuses = refuses
        self.all_of_them = all_of_them

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function that has this signature."""
        return self.function

    def __getattr__(self, name: str) -> Any:
        if name in {"__name__", "__qualname__"}:
            return getattr(self.__wrapped__, name, type(self.__wrapped__).__qualname__)
        raise AttributeError(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function.

        Raises:
            LostUpdateError: when it changes an object although changes are refused.
        """
        together = PutTogether()
        args = tuple([together.tree(arg) for arg in args])
        kwargs = {name: together.tree(kwargs[name]) for name in sorted(kwargs)}
        before = _ObjectsBefore(together.objects, args, kwargs)
        result = self.function(*args, **kwargs)
        if self.refuses:
            before.refuse_changes()
            return result
        return before.reply(result, all_of_them=self.all_of_them)


def refusing_lost_updates(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for a caller that receives only its result.

    Changes of nnx objects in its arguments would be lost, and are an error.
    """
    if isinstance(function, Updating):
        return function

    @functools.wraps(function)  # jax reads the names of its arguments
    def call(*args: Any, **kwargs: Any) -> Any:
        if loaded_nnx() is None:
            return function(*args, **kwargs)
        given = ObjectCall.of(args, kwargs)
        if given is None:
            return function(*args, **kwargs)
        before = _ObjectsBefore(given.objects, args, kwargs)
        result = function(*args, **kwargs)
        before.refuse_changes()
        return result

    return call


class _ObjectsBefore:
    """The nnx objects among some arguments, as they are before the function runs.

    What can be reached from the arguments or the result afterwards counts, as for `nnx.jit`: of an
    object that the function has taken out of another one, nothing is brought home.
    """

    def __init__(self, objects: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._objects = objects
        self._arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        self._numbers = {id(each): number for number, each in enumerate(objects)}
        self._contents = [_content(each) for each in objects]

    def reply(self, result: Any, *, all_of_them: bool) -> Reply:
        """The changes and the result."""
        changes: dict[int, Any] = {}
        updates: list[dict[int, Any]] = []
        met: deque[Any] = deque()
        apart = TakenApart(self._objects, met.append)
        marks = [None] if contains_objects(result) else []
        result = apart.tree(result)
        met.extend(_objects_in(list(self._arguments.values()), STATE))
        done: set[int] = set()
        while met:
            each = met.popleft()
            number = self._numbers.get(id(each))
            if number is None or number in done:
                continue
            done.add(number)
            if kind_of(each) == VARIABLE:
                if all_of_them or self._is_other_value(number):
                    changes[number] = each.get_raw_value()
                continue
            changed, gone = self._differences(number, all_of_them=all_of_them)
            for name, value in vars(each).items():
                if name not in changed:
                    met.extend(_objects_in(value))
            if changed or gone:
                updates.append({number: apart.parts(each, changed, gone)})
        return changes, result, updates, marks

    def refuse_changes(self) -> None:
        """Raises: LostUpdateError: when an object was changed."""
        changes, _, updates, _ = self.reply(None, all_of_them=False)
        for number in (*changes, *(number for each in updates for number in each)):
            raise LostUpdateError(
                f"the function changes {self._owner(number)}, an object of flax nnx, and that "
                "cannot reach the caller's own from there. Call the function instead of submitting "
                "it; or split the object, and return the new state (nnx.split, nnx.merge)."
            )

    def _owner(self, number: int) -> str:
        for name, value in self._arguments.items():
            apart = TakenApart()
            apart.tree(value)
            if any(each is self._objects[number] for each in apart.objects):
                which = f"argument {name}" if isinstance(name, int) else f"the argument {name!r}"
                return f"{which} (a {type(value).__name__})"
        return f"a {type(self._objects[number]).__name__}"

    def _is_other_value(self, number: int) -> bool:
        return not _is_same(_held(self._objects[number].get_raw_value()), self._contents[number])

    def _differences(self, number: int, *, all_of_them: bool) -> tuple[set[str], tuple[str, ...]]:
        """Names of the attributes that have come or changed, and of those that are gone."""
        before, now = self._contents[number], _content(self._objects[number])
        changed = {
            name
            for name, held in now.items()
            if name not in before
            or not _is_same(held, before[name])
            or (all_of_them and _holds_arrays(held))
        }
        return changed, tuple(sorted(before.keys() - now.keys()))


class _Held(NamedTuple):
    """What an attribute or variable holds.

    Attributes:
        is_data: whether it is data to nnx.
        structure: of a container; None of anything else.
        leaves: in a container; else the value alone.
    """

    is_data: bool
    structure: Any
    leaves: list[Any]


def _held(value: Any, is_data: bool = True) -> _Held:
    if kind_of(value) in (CONTAINER, STATE):
        leaves, structure = flatten_container(value)
        return _Held(is_data, structure, leaves)
    return _Held(is_data, None, [value])


def _content(value: Any) -> Any:
    """What an object consists of now."""
    if kind_of(value) == VARIABLE:
        return _held(value.get_raw_value())
    return {
        name: _held(each, is_data(value, name, each))
        for name, each in vars(value).items()
        if not name.startswith("_pytree__")
    }


_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _is_same(one: _Held, other: _Held) -> bool:
    return (
        (one.is_data, len(one.leaves)) == (other.is_data, len(other.leaves))
        and one.structure == other.structure
        and all(map(_is_same_leaf, one.leaves, other.leaves))
    )


def _is_same_leaf(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and type(one) in _PLAIN and repr(one) == repr(other)


def _holds_arrays(held: _Held) -> bool:
    return held.is_data and any(hasattr(leaf, "dtype") for leaf in held.leaves)


def _objects_in(value: Any, deepest: int = VARIABLE) -> list[Any]:
    """The objects in an attribute, or an argument; those in these are left out."""
    kind = kind_of(value)
    if kind >= VARIABLE:
        return [value]
    if kind == LEAF:
        return []
    import jax

    found = jax.tree.leaves(value, is_leaf=lambda each: kind_of(each) >= deepest)
    return [each for each in found if kind_of(each) >= VARIABLE]
