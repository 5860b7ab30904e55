from __future__ import annotations

import enum
import functools
import threading
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.results.local_objects import LocalObjects, RemoteObject
from jaxd.results.reader import ResultReader
from jaxd_protocol.errors import ResultError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.unpack.content_table import content_table
from jaxd_protocol.pytree.references import function_mark
from jaxd_server.codec.object_references import object_numbers
from tests.ids import stable_id
from tests.server.codec.test_results import arrived, packed

optax = pytest.importorskip("optax")


class Color(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Config:
    width: int
    act: Any


class Model:
    def apply(self, x: Any) -> Any:
        return x

    @classmethod
    def build(cls) -> Any:
        return cls()


MODEL = Model()


def helper(x: Any) -> Any:
    return x


def reaches(x: Any) -> Any:
    own = MODEL, helper, Color, Config, Model, MODEL.apply, Model.build
    return own, jax.nn.relu, jnp.float32, np.float32, int, optax, optax.sgd, getattr(MODEL, x)


@jax.tree_util.register_pytree_node_class
class Carrier:
    """One array, and something static."""

    def __init__(self, data: Any, static: Any) -> None:
        self.data = data
        self.static = static

    def tree_flatten(self) -> Any:
        return (self.data,), self.static

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> Any:
        return cls(children[0], static)


MET = {(Carrier.__module__, "Carrier"): Carrier}


def carrying(static: Any) -> Any:
    """A tree with something static in its structure, as the server has it."""
    arrived(Carrier)
    return Carrier(jnp.ones(2), static)


def home(static: Any, packages: Any = ("optax",)) -> Any:
    """What becomes of something static on a client that has called `reaches`."""
    for cls in (Color, Config, Model):
        arrived(cls)
    walked = walk(reaches, "reaches")
    fingerprint = walked.fingerprint.digest
    object_numbers.add(fingerprint, walked.reach.numbered)
    reach = walked.reach
    own = LocalObjects(
        "reaches",
        function_mark(fingerprint),
        reach.numbered,
        packages,
        reach.objects,
        reach.installed,
    )
    form, blob, _ = packed(carrying(static))
    return ResultReader(MET, own).read(form.skeleton, blob, (), "numpy").static


SGD = optax.sgd(0.1)


@pytest.mark.parametrize(
    "static",
    [
        helper,
        MODEL,
        MODEL.apply,
        Model.build,
        Model,
        Color,
        Color.RED,
        {"f": [helper, (MODEL, 3)]},
        Config(3, helper),
        jax.nn.relu,
        jnp.float32,
        np.float32,
        np.dtype("bfloat16"),
        int,
        optax,
        optax.EmptyState(),
        frozenset({1, "a"}),
        {1, 2},
        jax.tree.structure({"a": [1, None]}),
    ],
    ids=stable_id,
)
def test_what_is_no_data_comes_home_as_the_clients_own(static: Any) -> None:
    """Functions, classes, methods, modules, enum members, dtypes, and containers of these."""
    found = home(static)
    assert found == static
    assert type(found) is type(static)


def test_the_same_object_not_a_copy() -> None:
    """Where the client has it."""
    for static in (helper, MODEL, Model, Color.RED, jax.nn.relu):
        assert home(static) is static
    update = SGD.update
    content_table.callable_of(b"u" * 16, lambda: update)
    form, blob, _ = packed(carrying(update))
    mine, later = (lambda: 1), (lambda: 2)
    reader = ResultReader({**MET, b"u" * 16: mine})
    assert reader.read(form.skeleton, blob, (), "numpy").static is mine
    reader.learn({b"u" * 16: later})
    assert reader.read(form.skeleton, blob, (), "numpy").static is later


@pytest.mark.parametrize(
    "static",
    [
        lambda: 1,
        functools.partial(len),
        optax.adam(0.1).init,
        threading.Lock(),
        jax.make_jaxpr(lambda x: x + 1)(1.0).jaxpr,  # of a class that no client makes
    ],
    ids=stable_id,
)
def test_what_the_client_cannot_have_is_a_token(static: Any) -> None:
    """That says what it is; equal for the same object."""
    first, again = home(static), home(static)
    assert type(first) is RemoteObject
    assert first == again
    assert "from a result of reaches" in repr(first)


def test_an_installed_callable_that_the_function_does_not_name() -> None:
    """Is a token too, as is what holds itself: a structure is written to its end."""
    assert home(optax.sgd) is optax.sgd
    assert type(home(optax.adam)) is RemoteObject
    assert type(home(threading.Thread)) is RemoteObject
    model = Model()
    model.me = model  # type: ignore[attr-defined]
    assert type(home(model).me) is RemoteObject


def test_a_structure_without_end_is_refused() -> None:
    """With what to return instead."""
    deep: Any = ()
    for _ in range(5000):
        deep = (deep, 1)
    with pytest.raises(ResultError, match="nested too deeply"):
        packed(carrying(deep))
