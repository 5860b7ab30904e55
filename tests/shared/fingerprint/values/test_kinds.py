"""What each kind of Python's own objects is made of counts, and arrives."""

from __future__ import annotations

import collections
import contextvars
import functools
import logging
import sys
import threading
import types
import typing
import weakref
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.values.kinds import reduce_kind
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack, unpack_function
from tests.ids import stable_id
from tests.shared.fingerprint.defining import define, digest_of, walk_of
from tests.shared.pickling.processes import round_trip


def sent(value: Any) -> Any:
    """The value as it arrives."""
    return unpack(pack(value, "it"))


@pytest.mark.parametrize(
    "make", [threading.Lock, threading.RLock, threading.Condition], ids=["lock", "rlock", "cond"]
)
def test_a_lock_is_made_anew(make: Any) -> None:
    """Open, whatever the client's own is."""
    lock = make()
    with lock:
        found = sent(lock)
    assert type(found) is type(lock)
    assert found is not lock
    assert found.acquire(blocking=False)


def test_an_event_keeps_whether_it_is_set() -> None:
    """Code may look at it."""
    event = threading.Event()
    assert not sent(event).is_set()
    event.set()
    assert sent(event).is_set()


def test_what_a_thread_keeps_for_itself_comes_along() -> None:
    """In every thread of the server."""
    local = threading.local()
    local.x = 1
    found = sent(local)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(found.x))
    thread.start()
    thread.join()
    assert (found.x, seen) == (1, [1])


class Scales(threading.local):
    """Has something beside what each thread keeps."""

    scale = 2

    def __init__(self) -> None:
        self.own = 3

    def product(self) -> int:
        """What code would call."""
        return self.scale * self.own


SCALES = Scales()


def read_scales(x: int) -> int:
    return x * SCALES.product() + getattr(SCALES, "scale", 100)


def test_a_class_of_what_threads_keep_comes_along() -> None:
    """With attributes and methods; each thread of the server has what the one that calls has."""
    SCALES.own = 5
    found = unpack_function(pack_function(read_scales, "it", walk(read_scales, "it").reach))
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(found.function(1)))
    thread.start()
    thread.join()
    assert (found.function(1), seen) == (12, [12])


def test_a_context_variable_comes_with_its_value() -> None:
    """In every context of the server."""
    variable = contextvars.ContextVar[int]("mine")
    variable.set(3)
    assert contextvars.Context().run(sent(variable).get) == 3


def test_what_belongs_to_other_objects_is_made_anew() -> None:
    """Empty."""
    key = types.SimpleNamespace()
    for kind in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary):
        assert len(sent(kind())) == 0
    assert len(sent(weakref.WeakSet([KEPT]))) == 0
    variable = contextvars.ContextVar("mine", default=key)
    assert sent(variable).name == "mine"


class Kept:
    def method(self) -> None:
        """Does nothing."""


KEPT = Kept()


def test_a_logger_is_the_one_of_that_name() -> None:
    """The root among them."""
    logger = logging.getLogger("jaxd.test.of.mine")
    assert sent(logger) is logger
    assert sent(logging.getLogger()) is logging.getLogger()


def test_standard_streams_are_those_of_the_server() -> None:
    """Other files are refused."""
    assert sent(sys.stdout) is sys.stdout
    assert sent(sys.stderr) is sys.stderr
    assert reduce_kind(object(), None) is NotImplemented


@functools.lru_cache(maxsize=7, typed=True)
def cached(x: int) -> int:
    return x + 1


def test_a_cached_function_arrives_with_an_empty_cache() -> None:
    """And the same settings."""
    cached(1)

    def use() -> Any:
        return cached(2), cached.cache_parameters(), cached.cache_info().misses

    assert round_trip(use)() == (3, {"maxsize": 7, "typed": True}, 1)


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1}.keys(),
        {"a": 1}.items(),
        memoryview(b"abc"),
        types.MappingProxyType({"a": 1}),
        collections.Counter("aab"),
        collections.deque([1], maxlen=3),
        collections.OrderedDict(a=1),
        types.SimpleNamespace(a=1),
        list[int],
        int | str,
        typing.Optional[int],  # noqa: UP045  another kind of object
        range(3),
        slice(1, 2),
        1j,
        ...,
    ],
    ids=stable_id,
)
def test_values_of_pythons_own_types_arrive(value: Any) -> None:
    """Equal, and of the same type."""
    found = sent(value)
    assert type(found) is type(value)
    assert found == value


def test_the_values_of_a_dict_arrive() -> None:
    """As a view."""
    assert list(sent({"a": 1, "b": 1}.values())) == [1, 1]


def test_descriptors_are_those_of_their_class() -> None:
    """They belong to it."""
    assert sent(type.__dict__["__dict__"]) is type.__dict__["__dict__"]
    assert sent(object.__init__) is object.__init__


class Logging(logging.Logger):
    """As absl has one."""


def memory_of(shape: tuple[int, ...], dtype: str) -> memoryview:
    """That of an array of zeros."""
    array: Any = np.zeros(shape, dtype)
    return memoryview(array)


PAIRS: dict[str, tuple[Any, Any]] = {
    "property": (property(abs), property(abs, len)),  # type: ignore[arg-type]
    "text of a property": (property(abs), property(abs, doc="its own")),
    "static method": (staticmethod(abs), staticmethod(len)),
    "class method": (classmethod(abs), classmethod(len)),  # type: ignore[arg-type]
    "cached property": (functools.cached_property(abs), functools.cached_property(len)),
    "cache": (functools.lru_cache(8)(abs), functools.lru_cache(9)(abs)),
    "types in a cache": (functools.lru_cache(abs), functools.lru_cache(typed=True)(abs)),
    "slice": (slice(1, 2), slice(1, 2, 3)),
    "keys": ({"a": 1}.keys(), {"b": 1}.keys()),
    "values": ({"a": 1}.values(), {"a": 2}.values()),
    "read-only view": (types.MappingProxyType({1: 2}), types.MappingProxyType({1: 3})),
    "kind of view": (
        types.MappingProxyType({1: 2}),
        types.MappingProxyType(collections.OrderedDict({1: 2})),
    ),
    "memory": (memoryview(b"abcd"), memoryview(b"abcd").cast("i")),
    "memory without items": (
        memory_of((0, 2), "i2"),
        memory_of((0, 2), "i4"),
    ),
    "shape of memory": (memoryview(b"abcd"), memoryview(b"abcd").cast("B", (2, 2))),
    "writable memory": (memoryview(b"ab"), memoryview(bytearray(b"ab"))),
    "descriptor": (vars(str)["upper"], vars(str)["lower"]),
    "class of a descriptor": (vars(str)["upper"], vars(bytes)["upper"]),
    "logger": (logging.getLogger("a"), logging.getLogger("b")),
    "stream": (sys.stdout, sys.stderr),
    "logger of a class of its own": (Logging("a"), Logging("b")),
    "type variable": (typing.TypeVar("T"), typing.TypeVar("T", bound=int)),
    "parameters": (typing.ParamSpec("P"), typing.ParamSpec("Q")),
    "any number of types": (typing.TypeVarTuple("Ts"), typing.TypeVarTuple("Us")),
    "new type": (typing.NewType("Meters", int), typing.NewType("Meters", float)),
    "name of a new type": (typing.NewType("Meters", int), typing.NewType("Feet", int)),
    "name of a type": (typing.ForwardRef("Tree"), typing.ForwardRef("Tree", module="os")),
    "name of another type": (typing.ForwardRef("Tree"), typing.ForwardRef("Tree", is_class=True)),
    "reference": (weakref.ref(KEPT), weakref.ref(Kept)),
    "dead reference": (weakref.ref(Kept()), weakref.ref(KEPT)),
    "dead method": (weakref.WeakMethod(Kept().method), weakref.ref(Kept())),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_what_counts_of_an_object_arrives(pair: str) -> None:
    """Two of a kind are told apart, also where they have arrived."""
    one, other = PAIRS[pair]
    assert digest_of([one]) == digest_of([one]) != digest_of([other])
    assert digest_of([sent(one)]) == digest_of([one])
    assert digest_of([sent(other)]) == digest_of([other])


def test_memory_in_a_format_that_python_cannot_make_is_like_no_other() -> None:
    """It arrives as what says so where it is used."""
    memory = memory_of((2,), ">i4")
    (found,) = walk_of([memory]).fingerprint.unshared
    assert found.reason == "its items have the format >i"
    with pytest.raises(PackingError, match="format >i"):
        pack(memory, "it")
    assert sent(memory_of((0, 2), "i2")).tolist() == []


def test_what_was_set_on_a_cached_function_arrives() -> None:
    """It may lead back to the function."""
    made = functools.lru_cache(abs)
    plain = digest_of([made])
    made.itself, made.rate = made, 3  # type: ignore[attr-defined]
    found = sent(made)
    assert found.itself is found
    assert found.rate == 3
    assert digest_of([found]) == digest_of([made]) != plain


def test_a_cached_function_that_shows_another_one_is_refused() -> None:
    """Which one it calls cannot be seen."""
    made = functools.lru_cache(abs)
    functools.update_wrapper(made, len)
    with pytest.raises(PackingError, match="__wrapped__"):
        digest_of([made])


def test_which_object_a_cache_is_counts() -> None:
    """Each remembers what it has been called with."""
    one, other = functools.lru_cache(abs), functools.lru_cache(abs)
    assert digest_of([one, one]) != digest_of([one, other])


T = typing.TypeVar("T", bound=int)


def test_a_type_variable_of_the_users_is_made_again() -> None:
    """One of an installed module is that module's."""
    found = sent(T)
    assert (found.__name__, found.__bound__, found.__module__) == ("T", int, __name__)
    assert sent(typing.AnyStr) is typing.AnyStr


def test_which_object_an_alias_is_does_not_count() -> None:
    """`typing` keeps some, and makes others anew, by what else was imported."""
    one = typing.Optional[Kept]  # noqa: UP045  that of `typing`
    for forget in typing._cleanups:  # type: ignore[attr-defined]
        forget()
    other = typing.Optional[Kept]  # noqa: UP045
    assert one is not other
    assert digest_of([one, one]) == digest_of([one, other])
    assert digest_of([one]) != digest_of([typing.Optional[int]])  # noqa: UP045


Meters = typing.NewType("Meters", int)


def test_a_new_type_of_the_users_is_made_again() -> None:
    """It can be called."""
    found = sent(Meters)
    assert (repr(found), found.__supertype__, found(3)) == (f"{__name__}.Meters", int, 3)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_classes_and_aliases_with_type_parameters_are_made_again() -> None:
    """An alias that leads to itself can be told apart, though not be sent."""
    mine = define("""
class Box[T: (int, float), *Us, **P]: pass
type Pair[T] = tuple[T, T]
type Names = int | str
type Tree = int | list[Tree]
type Bush = int | tuple[Bush]
""")
    for kind in (mine.Box, mine.Pair, mine.Names):
        found = sent(kind)
        assert digest_of([found]) == digest_of([kind])
        assert list(map(repr, found.__type_params__)) == list(map(repr, kind.__type_params__))
    assert sent(mine.Names).__value__ == int | str
    assert sent(mine.Box)[int, str, [int]].__args__ == mine.Box[int, str, [int]].__args__
    digests = {digest_of([alias]) for alias in (mine.Pair, mine.Names, mine.Tree, mine.Bush)}
    assert len(digests) == 4


Tree = typing.Union[int, typing.Iterable["Tree"]]  # noqa: UP007  another kind of object


def test_a_type_that_names_itself_is_made_again() -> None:
    """Also after somebody has looked at the types, when its name leads back to it."""

    def annotated() -> None:
        """Is annotated with the type itself, not with its name."""

    annotated.__annotations__ = {"tree": Tree}
    before = digest_of([Tree])
    typing.get_type_hints(annotated)
    assert typing.get_args(typing.get_args(Tree)[1])[0].__forward_value__ is Tree
    assert digest_of([Tree]) == before
    assert sent(Tree) == Tree
