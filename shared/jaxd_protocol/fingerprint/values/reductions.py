"""What pickle would write of an object: how it is made, and its state.

pickle looks for methods of its own on the object. One that passes what it does not have on to
another object (`__getattr__`, `__getattribute__`) answers with that object's, or with anything. So
of these the class is asked, and their state is what they hold themselves.
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

from jaxd_protocol.base.process import IdentityMemo
from jaxd_protocol.fingerprint.code.reads import Instruction, Instructions
from jaxd_protocol.fingerprint.guards import MISSING, Guards
from jaxd_protocol.fingerprint.values.classes import slot_names


def reduce_object(value: Any) -> str | tuple[Any, ...]:
    """What `__reduce_ex__` of an object returns, or the function that is registered for its class.

    Raises:
        Exception: whatever its class raises when it cannot be pickled.
    """
    cls: Any = type(value)
    registered = copyreg.dispatch_table.get(cls)
    if registered is not None:
        return registered(value)
    if edits_state(cls):
        make, arguments, state, *rest = value.__reduce_ex__(4)
        return (make, arguments, _with_own_values(value, state), *rest)
    reduced = _reduce_by_class(value)
    if type(reduced) is tuple and len(reduced) < 6 and _is_own_state(value, reduced[2:3]):
        make, arguments, items, pairs = ((*reduced, None, None)[each] for each in (0, 1, 3, 4))
        return make, arguments, own_state(value), items, pairs, set_own_state
    return reduced


def _reduce_by_class(value: Any) -> str | tuple[Any, ...]:
    """What the methods of a class say, without asking an object that passes questions on."""
    cls: Any = type(value)
    if not forwards(cls):
        reduced: str | tuple[Any, ...] = value.__reduce_ex__(4)
    elif cls.__reduce_ex__ is not object.__reduce_ex__:
        reduced = cls.__reduce_ex__(value, 4)
    elif cls.__reduce__ is not object.__reduce__:
        reduced = cls.__reduce__(value)
    else:
        reduced = _reduce_forwarding(value)
    return reduced


def code_asked(cls: type) -> list[FunctionType]:
    """The functions, written in Python, that say what an object of a class is made of."""
    found = [copyreg.dispatch_table.get(cls)]
    found += [find_in_class(cls, name) for name in _SAYS_CONTENT]
    return [each for each in found if type(each) is FunctionType]


_SAYS_CONTENT: Final = (
    *("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"),
)


def sets_state(cls: Any) -> bool:
    """Whether a class is given all that an object holds, and sets it by a method of its own.

    It may make something else of it. What the object holds is set as it is, so that it arrives as
    it was.
    """
    return (
        cls.__getstate__ is object.__getstate__
        and cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        and type(find_in_class(cls, "__setstate__")) is FunctionType
    )


def _is_own_state(value: Any, state: tuple[Any, ...]) -> bool:
    """Whether the state is all that the object holds, or the object itself, which says nothing."""
    return bool(state) and (state[0] is value or sets_state(type(value)))


def edits_state(cls: Any) -> bool:
    """Whether a class says which of its attributes are pickled, and not how they are set.

    It may put others in the place of what pickle cannot write, such as None for a function. A
    function under `jax.jit` would read its own, so these travel.
    """
    return (
        cls.__getstate__ is not object.__getstate__
        and cls.__reduce_ex__ is object.__reduce_ex__
        and cls.__reduce__ is object.__reduce__
        and find_in_class(cls, "__setstate__") is None
        and is_made_of_python(cls)
        and not forwards(cls)
    )


def _with_own_values(value: Any, state: Any) -> Any:
    """The state, with the object's own attributes; without those that it leaves out.

    To read one of these is an error, unless the class has another one of that name.
    """
    own = own_attributes(value)
    if type(state) is not dict or own is None:
        return state
    kept = {name: own.get(name, content) for name, content in state.items()}
    hidden = own.keys() - state.keys()
    return kept | {n: own[n] for n in own if n in hidden and _is_of_class(value, n)}


def _is_of_class(value: Any, name: str) -> bool:
    return any(name in vars(base) for base in type(value).__mro__)


def _reduce_forwarding(value: Any) -> tuple[Any, ...]:
    cls: Any = type(value)
    own = cls.__getstate__ is object.__getstate__
    state = own_state(value) if own else cls.__getstate__(value)
    if is_made_of_python(cls) and not hasattr(cls, "__getnewargs_ex__"):
        arguments = cls.__getnewargs__(value) if hasattr(cls, "__getnewargs__") else ()
        return copyreg.__newobj__, (cls, *arguments), state  # type: ignore[attr-defined]
    reduced: Any = object.__reduce_ex__(value, 4)
    make, arguments, _, *rest = reduced
    return (make, arguments, state, *rest)


def reduce_by_content(value: Any) -> tuple[Any, ...]:
    """How pickle would write an object whose own `__reduce__` gives its name, without that."""
    return copyreg.__newobj__, (type(value),), own_state(value)  # type: ignore[attr-defined]


def writes_local_name(value: Any, is_local: Callable[[str], bool]) -> bool:
    """Whether pickle would write an object by the name of a function of the user's that it wraps.

    As `toolz.curry` does of what it decorates: that imports the module where it is made again. To
    ask such a class is to import the module, so its code is looked at.

    Args:
        value: the object.
        is_local: whether a module is the user's own.
    """
    own = own_attributes(value) or {}
    home, cls = own.get("__module__"), type(value)
    if type(home) is not str or "__qualname__" not in own or not is_made_of_python(cls):
        return False
    codes = [getattr(find_in_class(cls, name), "__code__", None) for name in _WRITES]
    words = {word for code in codes if code for word in (*code.co_names, *code.co_consts)}
    return {"__module__", "__qualname__"} <= words and is_local(home)


_WRITES: Final = "__reduce_ex__", "__reduce__"


def forwards(cls: type) -> bool:
    """Whether reading an attribute of an instance may run code of its class.

    Not that of a property or another descriptor, which knows what it is asked for.
    """
    return any(
        "__getattr__" in vars(base) or type(vars(base).get("__getattribute__")) is FunctionType
        for base in cls.__mro__
    )


def needs_arguments(cls: Any) -> bool:
    """Whether `__new__` of a class takes arguments, and nothing says which an instance had."""
    if cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__:
        return False
    if not is_made_of_python(cls) or hasattr(cls, "__getnewargs__"):
        return False
    code = getattr(cls.__new__, "__code__", None)
    if code is None or hasattr(cls, "__getnewargs_ex__"):
        return False
    optional = len(cls.__new__.__defaults__ or ())
    named = set(code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount])
    return bool(code.co_argcount - optional > 1 or named - {*(cls.__new__.__kwdefaults__ or ())})


def makes_new_objects(cls: type) -> bool:
    """Whether `__new__` of a class and its bases has code, and returns a new object each time.

    What else it does, such as to add the object to a table, it has done where the object was made.
    """
    found = [vars(base)["__new__"] for base in cls.__mro__ if "__new__" in vars(base)]
    made = [getattr(each, "__func__", None) for each in found if each is not object.__new__]
    return bool(made) and all(
        type(each) is FunctionType and returns_new_object(each) for each in made
    )


def is_made_of_python(cls: type) -> bool:
    """Whether an object can be made without attributes: nothing of it is held by C code."""
    return not any(
        isinstance(vars(base).get("__new__"), BuiltinFunctionType)
        for base in cls.__mro__
        if base is not object
    )


def own_state(value: Any) -> Any:
    """The attributes that an object holds itself, as pickle writes them: a dict, slots beside it.

    None when it cannot have any.
    """
    attributes = own_attributes(value)
    slots = {name: slot_content(value, name) for name in slot_names(type(value))}
    slots = {name: content for name, content in slots.items() if content is not MISSING}
    return (attributes, slots) if slots else attributes


def guard_own_content(guards: Guards, value: Any) -> None:
    """Notices changes of what an object holds, without asking it: it may answer for another one."""
    attributes = own_attributes(value)
    if type(attributes) is dict:
        guards.mapping(attributes)
        guards.answer(lambda: own_attributes(value) is attributes, True)
    for name in kept_names(type(value)):
        content = slot_content(value, name)
        guards.answer(partial(_holds, value, name, content), True)


def _holds(value: Any, name: str, content: Any) -> bool:
    return slot_content(value, name) is content


_MOST_INSIDE: Final = 256


def guard_parts(guards: Guards, value: Any) -> None:
    """Notices changes in what an object holds, where its class says itself how it is pickled.

    Of a list that it holds it may give a tuple, which is another one each time. Only for the user's
    own classes: a library's may keep what nobody asks for.
    """
    cls: Any = type(value)
    is_plain = cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__
    if is_plain and cls not in copyreg.dispatch_table:
        return
    left = [*(own_attributes(value) or {}).values()]
    left += [slot_content(value, name) for name in slot_names(cls)]
    seen: set[int] = set()
    while left and len(seen) < _MOST_INSIDE:
        each = left.pop()
        if id(each) in seen or type(each) not in _CONTAINERS:
            continue
        seen.add(id(each))
        if type(each) is not tuple:
            guard = guards.mapping if isinstance(each, dict) else guards.sequence
            guard(each)
        left += each.values() if isinstance(each, dict) else each
    if left:
        guards.incomplete()


_CONTAINERS: Final = frozenset({dict, OrderedDict, defaultdict, list, deque, set, tuple})
_SET_IN_C: Final[dict[type, tuple[str, ...]]] = {
    defaultdict: ("default_factory",),
    partial: ("func", "args", "keywords"),
}
"""Attributes that stand in no `__dict__` and in no slot, and can be set or exchanged."""


def kept_names(cls: type) -> list[str]:
    """The attributes of an instance that its `__dict__` does not hold."""
    return slot_names(cls) + [name for base in cls.__mro__ for name in _SET_IN_C.get(base, ())]


def own_attributes(value: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object, whatever its class makes of that name; None without one."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def slot_content(value: Any, name: str) -> Any:
    """What a slot holds, without asking the object; `MISSING` when it is empty."""
    for base in type(value).__mro__:
        if name in vars(base):
            try:
                return vars(base)[name].__get__(value)
            except AttributeError:
                break
    return MISSING


def new_object(cls: Any, *arguments: Any) -> Any:
    """As `copyreg.__newobj__`, for which pickle asks an object what its class is."""
    return cls.__new__(cls, *arguments)


def set_state(value: Any, state: Any) -> None:
    """Sets the state of an object without asking it how: it may ask another object in turn."""
    method = find_in_class(type(value), "__setstate__")
    if method is None:
        set_own_state(value, state)
    else:
        method(value, state)


def set_own_state(value: Any, state: Any) -> None:
    """Sets what `own_state` has given."""
    attributes, slots = state if type(state) is tuple else (state, {})
    if attributes:
        object.__getattribute__(value, "__dict__").update(attributes)
    for name, content in slots.items():
        object.__setattr__(value, name, content)


def find_in_class(cls: type, name: str, default: Any = None) -> Any:
    """An attribute as a class or its bases have it, without asking the metaclass."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), default)


def is_own_array(numpy: Any, value: Any) -> bool:
    """Whether an array is of a subclass that leaves it to numpy how it is pickled.

    numpy leaves out the attributes of the subclass.
    """
    is_plain = type(value) in (numpy.ndarray, numpy.memmap)
    return isinstance(value, numpy.ndarray) and not is_plain and _reduces_as_numpy(type(value))


def is_own_scalar(value: Any) -> bool:
    """Whether a number is of a subclass that leaves it to numpy, which leaves out the subclass."""
    return type(value) is not value.dtype.type and _reduces_as_numpy(type(value))


def numpy_base(cls: type) -> Any:
    """The first class of numpy's own among a class and its bases."""
    return next(base for base in cls.__mro__ if base.__module__.partition(".")[0] == "numpy")


def _reduces_as_numpy(cls: Any) -> bool:
    base = numpy_base(cls)
    return all(
        getattr(cls, name, None) is getattr(base, name, None)
        for name in ("__reduce_ex__", "__reduce__", "__setstate__", "__getstate__")
    )


# what `__new__` returns, as far as its code says so -----------------------------------------------

_LOADS: Final = frozenset({"LOAD_FAST", "LOAD_DEREF", "LOAD_CONST"})
_METHODS: Final = frozenset({"LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR"})
_MAKERS: Final = frozenset({"object", "super"})
_returns_new: Final = IdentityMemo[bool]()


def returns_new_object(function: FunctionType) -> bool:
    """Whether a `__new__` returns what that of `object` or of the next class has just made.

    Not one that returns what it has kept, nor one whose code does not plainly say so.
    """
    if not _MAKERS.isdisjoint(function.__globals__):
        return False
    known = _returns_new.get(function.__code__)
    if known is None:
        known = _returns_new.put(function.__code__, _returns_made(Instructions(function.__code__)))
    return known


def _returns_made(code: Instructions) -> bool:
    """Whether each `return` is of such an object, or of the variable that has nothing else."""
    returned = [at for at, each in enumerate(code) if each.op in ("RETURN_VALUE", "RETURN_CONST")]
    return bool(returned) and all(_is_made(code, at) for at in returned)


def _is_made(code: Instructions, at: int) -> bool:
    if code[at].op != "RETURN_VALUE" or code[at].target:
        return False
    loaded = code[at - 1]
    if loaded.op != "LOAD_FAST":
        return _is_call(code, at - 1)
    stored = [at for at, each in enumerate(code) if _assigns(each, loaded.value)]
    store = code[stored[0]] if len(stored) == 1 else None
    if store is None or store.op != "STORE_FAST" or store.target:
        return False
    return _is_call(code, stored[0] - 1)


def _assigns(each: Instruction, name: Any) -> bool:
    return each.op.startswith(("STORE_FAST", "DELETE_FAST")) and name in _names(each.value)


def _names(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_call(code: Instructions, at: int) -> bool:
    """Whether `super().__new__(…)` or `object.__new__(…)` ends there, with simple arguments."""
    if code[at].op != "CALL" or code[at].target:
        return False
    begin = _before_loads(code, at)
    method = code[begin]
    if method.op not in _METHODS or method.value != "__new__" or method.target:
        return False
    before = begin - 1
    if code[before].op == "CALL":  # super() or super(cls, …): its own arguments
        count, begin = code[before].arg, before
        before = _before_loads(code, begin)
        if begin - before - 1 != count:
            return False
    elif method.op == "LOAD_SUPER_ATTR":
        before = _before_loads(code, begin)
    return code[before].op == "LOAD_GLOBAL" and code[before].value in _MAKERS


def _before_loads(code: Instructions, at: int) -> int:
    """Where the last instruction before this one stands that is no simple load."""
    at -= 1
    while at and not code[at].target and _is_simple_load(code[at]):
        at -= 1
    return at


def _is_simple_load(each: Instruction) -> bool:
    return each.op in _LOADS or (each.op == "LOAD_GLOBAL" and each.value not in _MAKERS)
