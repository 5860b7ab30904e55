"""Locks, streams, views and other objects that pickle refuses."""

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

import pytest

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.pack.stdlib import reduce_per_process
from jaxd_protocol.pickling.unpack.unpickler import unpack, unpack_function
from tests.ids import stable_id
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
    pass


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
    assert reduce_per_process(object()) is NotImplemented


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


T = typing.TypeVar("T", bound=int)


def test_a_type_variable_of_the_users_is_made_again() -> None:
    """One of an installed module is that module's."""
    found = sent(T)
    assert (found.__name__, found.__bound__, found.__module__) == ("T", int, __name__)
    assert sent(typing.AnyStr) is typing.AnyStr
