"""Packed bytes name one module of ours, which never moves."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import enum
import functools
import pickle
import pickletools
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import jaxd
from jaxd.interop.lazy_array import LazyArray
from jaxd.results.local_objects import RemoteObject
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.client_object import ClientObject
from jaxd_protocol.jit.nnx_updates import Updating
from jaxd_protocol.jit.transforms import apply_transformations, encode_transformation
from jaxd_protocol.jit.transforms.transformed_function import Batched
from jaxd_protocol.pickling import names
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.rebuild import make_placeholder
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.ids import row

OURS = re.compile(r"(jaxd|jaxd_protocol|jaxd_server)(\.\w+)+")


def strings(data: bytes) -> Iterator[str]:
    """All text in a pickle, and in the pickles in it."""
    for _, argument, _ in pickletools.genops(data):
        if isinstance(argument, str):
            yield argument
        elif isinstance(argument, bytes) and argument[:2] == b"\x80\x05":
            yield from strings(argument)


def modules_in(data: bytes) -> set[str]:
    """Our modules that packed bytes name."""
    return {text for text in strings(data) if OURS.fullmatch(text)}


class Color(enum.Enum):
    """An enum of the user's own."""

    RED = 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Params:
    """A class that jax knows."""

    w: Any
    n: int = 0


class Slotted:
    __slots__ = ("a",)


LOCAL = threading.local()
LOCAL.a = 1
SETTINGS = types.SimpleNamespace(rate=2, other=3)
VARIABLE = contextvars.ContextVar("VARIABLE", default=1)
T = typing.TypeVar("T", bound=int)


def helper(x: Any) -> Any:
    """Reads some globals of several kinds, and asserts."""
    assert x is not None
    return x * SETTINGS.rate, Color.RED, Params(x), {1, "a"}, LOCAL.a, sys.stdout, T


@functools.lru_cache(maxsize=3)
def cached(x: int) -> int:
    return x


@contextlib.contextmanager
def within() -> Iterator[None]:
    """A function of a library's code."""
    yield


@jax.custom_jvp
def smooth(x: Any) -> Any:
    return helper(x)


def closing(inner: Callable[..., Any]) -> Callable[..., Any]:
    def outer(x: Any) -> Any:
        return inner(x)

    return outer


@jaxd.persistent_call
def persistent(x: Any) -> Any:
    """Calls the server when it is called."""
    return x


JITTED: Any = jax.jit(helper)
JITTED.mark = 1

FUNCTIONS = {
    "cached": closing(cached),
    "helper": helper,
    "jitted": closing(JITTED),
    "names of ours": closing(jaxd.persistent_call),
    "errors of ours": closing(jaxd.errors.JaxdError),
    "persistent": closing(persistent),
    "smooth": closing(smooth),
    "within": closing(within),
    "descriptor": closing(vars(Slotted)["a"]),
    "chain": functools.reduce(lambda inner, _: closing(inner), range(100), helper),
}

VALUES: dict[str, Any] = {
    "arrays": [np.ones(3), np.array([None]), np.float32(1), jax.numpy.ones(3), jax.random.key(0)],
    "batched": Batched(helper, 3),
    "cell": helper.__code__,
    "containers": ({1: 2}.keys(), {1: 2}.items(), {"a"}, frozenset({1})),
    "device": jax.devices()[0],
    "enum": Color.RED,
    "event": (threading.Event(), threading.Lock(), LOCAL, VARIABLE),
    "instance": Params(1),
    "installed": [np.add, jax.jit, jax.numpy.float32, np],
    "lazy": LazyArray("float32", (), memoryview(b"abcd")),
    "live": ClientObject(3),
    "module": types.ModuleType("some"),
    "placeholder": make_placeholder,
    "remote object": RemoteObject(b"token", "an object", "f"),
    "streams": [sys.stdout, sys.stderr],
    "transformed": apply_transformations(helper, [encode_transformation("grad", {})]),
    "updating": Updating(helper),
    "weak": weakref.WeakKeyDictionary(),
}


@pytest.mark.parametrize("which", FUNCTIONS)
def test_packed_functions_name_no_other_module_of_ours(which: str) -> None:
    """Whatever they refer to; errors and what is public have names that everybody may use."""
    function = FUNCTIONS[which]
    found = modules_in(pack_function(function, "it", walk(function, "it").reach))
    assert found <= {names.HERE, "jaxd_protocol.errors"}, found


@pytest.mark.parametrize("which", VALUES)
def test_packed_values_name_no_other_module_of_ours(which: str) -> None:
    """Arguments, and parts of them."""
    found = modules_in(pack(VALUES[which], "it"))
    assert found <= {names.HERE}, found


def test_what_keys_name_is_where_they_say() -> None:
    """The modules of these classes may move, and keys stay."""
    for value in (Updating(helper), Batched(helper, 3)):
        cls = type(value)
        assert cls.__module__ == names.HERE
        assert getattr(names, cls.__name__) is cls
        assert type(unpack(pack(value, "it"))) is cls


def test_every_name_leads_to_something() -> None:
    """It is there, and is the only one of that name."""
    for name, place in names.PLACES.items():
        with row(name):
            found = names.find(name)
            assert isinstance(found, types.ModuleType) or callable(found)
            assert getattr(names, name) is found
            assert names.name_of(*place) == name


def test_a_name_of_another_version_is_an_error() -> None:
    """Which says what to do."""
    with pytest.raises(PackingError, match="Install the same version of jaxd"):
        names.find("no_such")
    with pytest.raises(AttributeError):
        _ = names.no_such


def test_arrays_that_were_not_touched_come_back() -> None:
    """From a pickle of anybody's."""
    copy = pickle.loads(pickle.dumps(VALUES["lazy"]))
    assert type(copy) is LazyArray
    assert copy.raw == VALUES["lazy"].raw
