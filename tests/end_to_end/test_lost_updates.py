"""A function that changes what it captures: an error, and no other program for anybody."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from jaxd import Client
from jaxd.errors import LostUpdateError

ONES = np.ones(2, np.float32)


def test_a_captured_list_that_grows_is_an_error(client: Client) -> None:
    """It would stay empty here, where under `jax.jit` it would be filled."""
    seen: list[Any] = []

    def noting(x: Any) -> Any:
        seen.append(x.shape)
        return x

    with pytest.raises(LostUpdateError, match="changes a list, 'seen', while it is traced"):
        client.persistent_call(noting)(ONES)


def test_what_is_traced_afterwards_sees_nothing_of_it(client: Client) -> None:
    """The server has one copy of a function for all signatures, and for all of its clients."""
    scales = [2.0]

    def scaled(x: Any) -> Any:
        if x.ndim == 2:
            scales[0] = 100.0
        return x * scales[0]

    remote = client.persistent_call(scaled)
    with pytest.raises(LostUpdateError, match="scales"):
        remote(np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(remote(ONES), [2.0, 2.0])
    with pytest.raises(LostUpdateError, match="scales"):  # asked again, it is traced again
        remote(np.ones((1, 2), np.float32))


class Counter:
    """Counts in the class, in a list of it, and in a slot of an instance."""

    __slots__ = ("own",)
    count = 0
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.own = 0

    def in_class(self) -> int:
        """Counts in the class."""
        Counter.count += 1
        return Counter.count

    def in_list(self) -> int:
        """Counts in a list that the class holds."""
        Counter.seen.append(1)
        return len(Counter.seen)

    def in_slot(self) -> int:
        """Counts in the instance."""
        self.own += 1
        return self.own


def in_place(numbers: Any) -> int:
    """Counts in an array."""
    numbers[0] += 1
    return int(numbers[0])


COUNTING: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (lambda: enumerate("abcdefgh"), lambda held: next(held)[0]),
    (lambda: np.random.default_rng(0), lambda rng: int(rng.integers(100))),
    (lambda: np.zeros(2, int), in_place),
    (Counter, Counter.in_class),
    (Counter, Counter.in_list),
    (Counter, Counter.in_slot),
]


@pytest.mark.parametrize(
    ("make", "count"),
    COUNTING,
    ids=["iterator", "random", "array", "class", "list of a class", "slot"],
)
@pytest.mark.parametrize("ask", ["call", "jaxpr"])
def test_state_of_any_kind(
    client: Client, make: Callable[[], Any], count: Callable[[Any], Any], ask: str
) -> None:
    """What is traced next, for whomever, begins with the function as it was sent."""
    state = make()
    first = str(count(make()))
    Counter.count, Counter.seen[:] = 0, []

    def counted(x: Any) -> Any:
        if x.ndim == 1:
            raise ValueError(f"counted {count(state)}")
        count(state)
        return x

    remote = client.persistent_call(counted)
    asked = remote if ask == "call" else remote.jaxpr
    for _ in range(2):
        with pytest.raises(LostUpdateError, match="while it is traced"):
            asked(np.ones((1, 2), np.float32))
        with pytest.raises(ValueError, match=rf"counted {first}\b"):
            asked(ONES)


class Trainer:
    """Counts while it is traced: in itself, in an object of its own, in a list."""

    def __init__(self) -> None:
        self.rate = 2.0
        self.traces = 0
        self.inner = Counter()
        self.shapes: list[Any] = []

    def in_itself(self, x: Any) -> Any:
        """Changes an attribute that it reads."""
        self.traces += 1
        return x * self.rate

    def anew(self, x: Any) -> Any:
        """Sets an attribute that nothing reads."""
        self.last = x
        return x * self.rate

    def in_another(self, x: Any) -> Any:
        """Changes an attribute of an attribute."""
        self.inner.own += 1
        return x * self.rate

    def in_a_list(self, x: Any) -> Any:
        """Adds to a list that it holds."""
        self.shapes.append(x.shape)
        return x * self.rate


@pytest.mark.parametrize("name", ["in_itself", "anew", "in_another", "in_a_list"])
@pytest.mark.parametrize("how", ["bound", "argument", "static", "attribute of a global"])
def test_an_object_of_a_method(client: Client, name: str, how: str) -> None:
    """Whether its method is what is called, or it is an argument that jax does not trace."""
    trainer, method = Trainer(), getattr(Trainer, name)
    holder = SimpleNamespace(trainer=trainer)
    makers: dict[str, Callable[[], Callable[[Any], Any]]] = {
        "bound": lambda: client.persistent_call(getattr(trainer, name)),
        "argument": lambda: partial(client.persistent_call(method), trainer),
        "static": lambda: partial(client.persistent_call(method, static_argnums=0), trainer),
        "attribute of a global": lambda: client.persistent_call(
            lambda x: getattr(holder.trainer, name)(x * 1)
        ),
    }
    call = makers[how]()
    for _ in range(2):  # what is traced again begins with the object as it was
        with pytest.raises(LostUpdateError, match=r"changes a (Trainer|Counter|list)"):
            call(ONES)
    assert trainer.traces == trainer.inner.own == len(trainer.shapes) == 0


TRACES: list[Any] = []
TOTAL = 0


class Plain:
    """Changes a global, and a list that its module holds."""

    def in_global(self, x: Any) -> Any:
        """Assigns a global."""
        global TOTAL  # noqa: PLW0603
        TOTAL += 1
        return x * 2

    def in_a_list(self, x: Any) -> Any:
        """Adds to a list of the module."""
        TRACES.append(x.shape)
        return x * 2


@jax.tree_util.register_pytree_node_class
class Node(Plain):
    """The same of a node of jax, which keeps an object beside its array."""

    def __init__(self, weight: Any, about: Any) -> None:
        self.weight, self.about = weight, about

    def tree_flatten(self) -> Any:
        """Its array, and what it keeps."""
        return (self.weight,), self.about

    @classmethod
    def tree_unflatten(cls, about: Any, children: Any) -> Node:
        """As it was."""
        return cls(children[0], about)

    def in_its_object(self, x: Any) -> Any:
        """Changes what it keeps."""
        self.about.own += 1
        return x * 2


@pytest.mark.parametrize("name", ["in_global", "in_a_list", "in_its_object"])
def test_a_method_of_a_node_that_is_an_argument(client: Client, name: str) -> None:
    """Its class came with the argument, and so did what it keeps beside arrays."""
    node: Any = Node.tree_unflatten(Counter(), (ONES,))
    call = client.persistent_call(lambda node, x: getattr(type(node), name)(node, x))
    for _ in range(2):
        with pytest.raises(LostUpdateError, match=r"changes (the global 'TOTAL'|a (list|Counter))"):
            call(node, ONES)


def test_a_function_that_a_static_argument_leads_to(client: Client) -> None:
    """Through an object of jax: the structure of a tree, as in two `eqx.filter_jit`, or a rule."""
    about = SimpleNamespace(act=Plain().in_global)
    structure = jax.tree.structure(Node(1.0, about))
    call = client.persistent_call(lambda x, how: how[1].node_data()[1].act(x), static_argnums=1)
    for _ in range(2):
        with pytest.raises(LostUpdateError, match="changes the global 'TOTAL'"):
            call(ONES, ("tree", structure))
    rule = jax.custom_jvp(Plain().in_global)
    rule.defjvps(lambda tangent, _, x: tangent * 2)
    applied = client.persistent_call(lambda x, how: how(x), static_argnums=1)
    for _ in range(2):
        with pytest.raises(LostUpdateError, match="changes the global 'TOTAL'"):
            applied(ONES, rule)


@pytest.mark.parametrize("name", ["in_global", "in_a_list"])
def test_a_method_of_a_class_that_the_function_names(client: Client, name: str) -> None:
    """What only the class leads to is the function's, too."""
    call = client.persistent_call(lambda x: getattr(Plain(), name)(x * 1))
    for _ in range(2):
        with pytest.raises(LostUpdateError, match=r"changes (the global 'TOTAL'|a list)"):
            call(ONES)


def test_a_cache_of_a_node_may_be_left_out(client: Client) -> None:
    """As one of the function."""
    node: Any = Node.tree_unflatten(0, (ONES,))
    call = client.persistent_call(lambda node, x: node.in_a_list(x), ignore="TRACES")
    np.testing.assert_array_equal(call(node, ONES), 2 * ONES)


def test_a_cache_may_be_left_out(client: Client) -> None:
    """`ignore=` says that what is in it does not matter."""
    cache: dict[int, Any] = {}

    def caching(x: Any) -> Any:
        cache[x.ndim] = x.shape
        return x * len(cache)

    with pytest.raises(LostUpdateError, match="a dict, 'cache',"):
        client.persistent_call(caching)(ONES)
    ignoring = client.persistent_call(caching, ignore="cache")
    np.testing.assert_array_equal(ignoring(ONES), ONES)
