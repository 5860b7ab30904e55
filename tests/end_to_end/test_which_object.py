"""Code that asks which object it has gets the answer that it gets under `jax.jit`.

Objects reach a server by several ways: with a function, with a class that another function has
brought before, in arguments. What code can only tell from others by identity is one object there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client
from jaxd.errors import PackingError

X = np.arange(3.0, dtype=np.float32)


class Tag:
    """Two of them differ, however equal what is in them."""

    def __init__(self, name: str) -> None:
        self.name = name


class Unset:
    """There is one."""

    _only: Self | None = None

    def __new__(cls) -> Self:
        cls._only = cls._only or super().__new__(cls)
        return cls._only


@dataclass(eq=False)
class Setting:
    """Nor do two of these count as one, which are compared by which they are."""

    rate: float = 1.0


class Named(ABC):
    """A constant of an abstract class, to which its own method refers."""

    @abstractmethod
    def is_it(self) -> bool: ...


class Only(Named):
    """The class of that constant."""

    def is_it(self) -> bool:
        return self is ONLY


FAST, SLOW = Tag("way"), Tag("way")
ONE, OTHER = Setting(), Setting()
ONLY, NOT_IT = Only(), Only()
UNSET = Unset()
TABLE = {FAST: 2.0, SLOW: 3.0}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Operator:
    """A node of jax with a static tag, which its own code compares as well."""

    data: Any
    tag: Any = field(default=UNSET, metadata={"static": True})

    def apply(self, x: Any) -> Any:
        return x * (2.0 if self.tag is FAST else 3.0 if self.tag is SLOW else 5.0) * self.data

    def is_unset(self) -> bool:
        return self.tag is UNSET


def by_identity(x: Any, tag: Any) -> Any:
    return x * (2.0 if tag is FAST else 3.0 if tag is SLOW else 5.0)


def by_membership(x: Any, tag: Any) -> Any:
    return x * (2.0 if tag in {FAST, "other"} else 3.0)


def by_table(x: Any, tag: Any) -> Any:
    return x * TABLE.get(tag, 5.0)


def by_predicate(x: Any, predicate: Any, tag: Any) -> Any:
    return x * (2.0 if predicate(tag) else 3.0)


def is_fast(tag: Any) -> bool:
    return tag is FAST


def checked(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize("tag", [FAST, SLOW, UNSET, Tag("way")], ids=["fast", "slow", "unset", "?"])
@pytest.mark.parametrize("function", [by_identity, by_membership, by_table])
def test_a_constant_as_a_static_argument(client: Client, function: Any, tag: Any) -> None:
    """Whatever else has the same content."""
    served = client.persistent_call(function, static_argnums=1, fallback="error")
    checked(served(X, tag), jax.jit(function, static_argnums=1)(X, tag))


@pytest.mark.parametrize("tag", [FAST, SLOW])
def test_a_constant_that_a_function_in_the_arguments_compares(client: Client, tag: Any) -> None:
    """That function arrives by itself."""
    served = client.persistent_call(by_predicate, static_argnums=(1, 2), fallback="error")
    expected = jax.jit(by_predicate, static_argnums=(1, 2))
    checked(served(X, is_fast, tag), expected(X, is_fast, tag))


def _applied(operator: Operator, x: Any) -> Any:
    return operator.apply(x) * (7.0 if operator.tag is FAST else 1.0)


@pytest.mark.parametrize("tag", [FAST, SLOW, UNSET])
def test_a_constant_in_a_node_of_jax(client: Client, tag: Any) -> None:
    """Compared by methods of its class, and by the function."""
    operator = Operator(jnp.float32(2.0), tag)
    served = client.persistent_call(_applied, fallback="error")
    checked(served(operator, X), jax.jit(_applied)(operator, X))


def test_a_class_that_another_function_has_brought(client: Client) -> None:
    """What its methods compare with is what later functions have."""

    def first(x: Any) -> Any:
        return Operator(1.0).apply(x)

    def second(x: Any) -> Any:
        unset = Operator(1.0).is_unset()
        return Operator(1.0, FAST).apply(x) + Operator(1.0, SLOW).apply(x) * 10 + unset

    for function in (first, second):
        checked(client.persistent_call(function, fallback="error")(X), jax.jit(function)(X))


def test_a_constant_comes_back_as_itself(client: Client) -> None:
    """In a result."""

    def made(x: Any) -> Any:
        return Operator(x, FAST), Operator(x)

    one, other = client.persistent_call(made, fallback="error")(X)
    assert one.tag is FAST
    assert other.tag is UNSET


def test_a_constant_that_changes_is_another_one(client: Client, monkeypatch: Any) -> None:
    """Its content counts."""

    def read(x: Any, tag: Any) -> Any:
        return x * len(tag.name) * (2.0 if tag is FAST else 3.0)

    served = client.persistent_call(read, static_argnums=1, fallback="error")
    checked(served(X, FAST), X * 6)
    monkeypatch.setattr(FAST, "name", "another way")
    checked(served(X, FAST), X * 22)


def test_a_trace_that_changes_a_constant_changes_none(client: Client) -> None:
    """It is refused, and the next function finds the constant as it was."""

    def changing(x: Any) -> Any:
        vars(FAST)["name"] = "changed"
        return x

    def length(x: Any) -> Any:
        return x * len(FAST.name), FAST in TABLE

    with pytest.raises(Exception, match="changes"):
        client.persistent_call(changing, fallback="error")(X)
    found, is_there = client.persistent_call(length, fallback="error")(X)
    checked(found, X * 3)
    assert is_there


def test_an_object_without_a_name_that_both_have_is_refused(client: Client) -> None:
    """There is nothing by which the two could be known to be one."""
    local, other = Tag("way"), Tag("way")

    def compared(x: Any, tag: Any) -> Any:
        return x * (2.0 if tag is local else 3.0)

    served = client.persistent_call(compared, static_argnums=1, fallback="error")
    checked(served(X, other), X * 3)
    with pytest.raises(PackingError, match="may ask which one it is"):
        served(X, local)
    here = client.persistent_call(compared, static_argnums=1, fallback="local")
    with pytest.warns(match="may ask which one it is"):
        checked(here(X, local), X * 2)


@dataclass(frozen=True)
class Settings:
    """Two of them may be equal."""

    rate: float = 2.0


DEFAULTS = Settings()


class Way(Enum):
    FAST = "fast"
    SLOW = "slow"


class Model:
    """Has a method that stands for it."""

    def call(self, x: Any) -> Any:
        return x


MODEL = Model()
MODEL_CALL, TWICE = MODEL.call, partial(jnp.multiply, 2)


def doubled(x: Any) -> Any:
    return x * 2


def by_function(x: Any, how: Any) -> Any:
    return x * (2.0 if how is doubled else 3.0)


def by_settings(x: Any, how: Any) -> Any:
    return x * (2.0 if how is DEFAULTS else 3.0)


def by_method(x: Any, how: Any) -> Any:
    return x * (2.0 if how == MODEL.call else 3.0)


def by_partial(x: Any, how: Any) -> Any:
    return x * (2.0 if how == TWICE else 3.0)


def by_equality(x: Any, how: Any) -> Any:
    return x * (2.0 if how == DEFAULTS else 3.0)


@pytest.mark.parametrize(
    ("function", "own", "other"),
    [
        (by_function, doubled, is_fast),
        (by_settings, DEFAULTS, Settings(3.0)),
        (by_method, MODEL_CALL, Model().call),
        (by_partial, TWICE, partial(jnp.multiply, 3)),
    ],
)
def test_an_object_that_arguments_are_compared_with_is_refused(
    client: Client, function: Any, own: Any, other: Any
) -> None:
    """The function has one of its own on the server, and the arguments have another one."""
    served = client.persistent_call(function, static_argnums=1, fallback="error")
    checked(served(X, other), X * 3)
    with pytest.raises(PackingError, match="may ask which one it is"):
        served(X, own)


def test_what_is_compared_by_its_content_may_be_both(client: Client) -> None:
    """An equal one is as good; a member of an enum, and a class, is one object anyway."""
    served = client.persistent_call(by_equality, static_argnums=1, fallback="error")
    for settings in (DEFAULTS, Settings()):
        checked(served(X, settings), X * 2)

    def by_member(x: Any, how: Any, cls: Any) -> Any:
        return x * (2.0 if how is Way.FAST else 3.0) * (5.0 if cls is Settings else 7.0)

    chosen = client.persistent_call(by_member, static_argnums=(1, 2), fallback="error")
    checked(chosen(X, Way.FAST, Settings), X * 10)
    checked(chosen(X, Way.SLOW, Model), X * 21)


PLACES = {id(FAST): 2.0}


def test_a_table_of_addresses_is_refused(client: Client) -> None:
    """On the server the same objects lie elsewhere."""

    def looked_up(x: Any) -> Any:
        return x * PLACES.get(id(FAST), 1.0)

    def counted(x: Any) -> Any:
        seen = {id(each) for each in (FAST, SLOW, FAST)}
        return x * len(seen)

    with pytest.raises(PackingError, match="it calls id, and reaches a dict"):
        client.persistent_call(looked_up, fallback="error")(X)
    checked(client.persistent_call(counted, fallback="error")(X), X * 2)


def _comparing(own: Any) -> Callable[[Any, Any], Any]:
    return lambda x, tag: x * (2.0 if tag is own else 3.0)


@pytest.mark.parametrize("tag", [FAST, SLOW])
@pytest.mark.parametrize("ignore", [(), ("something_else",)], ids=["all", "ignoring"])
def test_two_that_hold_the_same_are_told_apart(
    client: Client, tag: Any, ignore: tuple[str, ...]
) -> None:
    """By functions that differ in nothing else; also where something does not count."""
    for own in (FAST, SLOW):
        function = _comparing(own)
        served = client.persistent_call(function, static_argnums=1, fallback="error", ignore=ignore)
        checked(served(X, tag), X * (2.0 if tag is own else 3.0))


def test_dataclasses_that_are_not_compared_are_told_apart(client: Client) -> None:
    """Arguments that hold the same are not packed once."""
    served = client.persistent_call(_comparing(ONE), static_argnums=1, fallback="error")
    for tag, factor in ((ONE, 2.0), (OTHER, 3.0), (Setting(), 3.0), (ONE, 2.0)):
        checked(served(X, tag), X * factor)
    local, other = Setting(), Setting()
    served = client.persistent_call(_comparing(local), static_argnums=1, fallback="error")
    checked(served(X, other), X * 3)
    with pytest.raises(PackingError, match="may ask which one it is"):
        served(X, local)


def test_a_constant_to_which_its_class_refers(client: Client) -> None:
    """Which is not complete when the constant is made."""

    def asked(x: Any, tag: Any) -> Any:
        return x * (2.0 if tag.is_it() else 3.0) * (5.0 if tag is ONLY else 7.0)

    served = client.persistent_call(asked, static_argnums=1, fallback="error")
    for tag, factor in ((ONLY, 10.0), (NOT_IT, 21.0)):
        checked(served(X, tag), X * factor)


def test_what_is_installed_is_one_by_its_name(client: Client) -> None:
    """Constants and functions of libraries may be compared with arguments."""

    def compared(x: Any, how: Any, by: Any) -> Any:
        return by(x) * (2.0 if how is MISSING else 3.0) * (5.0 if by is jnp.max else 7.0)

    served = client.persistent_call(compared, static_argnums=(1, 2), fallback="error")
    checked(served(X, MISSING, jnp.max), 20.0)
    checked(served(X, None, jnp.sum), 63.0)


_WAYS = (is_fast, by_table)


@pytest.mark.parametrize(
    "among",
    [lambda x, how: x * (how in (is_fast, by_table)), lambda x, how: x * (how in _WAYS)],
    ids=["written", "global"],
)
def test_a_function_among_which_arguments_are_looked_for_is_refused(
    client: Client, among: Any
) -> None:
    """As it is where it is compared with one."""
    served = client.persistent_call(among, static_argnums=1, fallback="error")
    checked(served(X, "other"), X * 0)
    with pytest.raises(PackingError, match="may ask which one it is"):
        served(X, is_fast)


def test_a_constant_of_which_something_is_ignored_is_refused(client: Client) -> None:
    """It would be another one in the arguments as soon as that changes."""
    function = _comparing(COUNTED)
    options: Any = {"static_argnums": 1, "fallback": "error", "ignore": ("own.rate",)}
    served = client.persistent_call(function, **options)
    checked(served(X, FAST), X * 3)
    with pytest.raises(PackingError, match="may ask which one it is"):
        served(X, COUNTED)


COUNTED = Setting()


class _Slotted:
    """Without attributes."""

    __slots__ = ()


class _Called:
    """Does more than being there."""

    def __call__(self, x: Any) -> Any:
        return x * 2


class _ByName:
    """As sentinels are pickled."""

    def __reduce__(self) -> str:
        return "_BY_NAME"


_SLOTTED, _CALLED, _BY_NAME = _Slotted(), _Called(), _ByName()


@pytest.mark.parametrize("tag", [_SLOTTED, _CALLED, _BY_NAME], ids=["slots", "call", "reduce"])
def test_any_other_that_code_compares_is_refused(client: Client, tag: Any) -> None:
    """Those of the same classes, and with code that does not ask, are served."""

    def asking(x: Any, tag: Any) -> Any:
        return x * (2.0 if tag in (_SLOTTED, _CALLED, _BY_NAME) else 3.0)

    def having(x: Any, tag: Any) -> Any:
        return _CALLED(x) if callable(tag) else x * 3

    served = client.persistent_call(asking, static_argnums=1, fallback="error")
    checked(served(X, type(tag)()), X * 3)
    with pytest.raises(PackingError, match="may ask which one it is"):
        served(X, tag)
    served = client.persistent_call(having, static_argnums=1, fallback="error")
    checked(served(X, tag), X * (2.0 if tag is _CALLED else 3.0))


class Holder:
    """Has what is compared in its class."""

    default = DEFAULTS


HOLDER = Holder()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, how: x * (2.0 if how.tag is DEFAULTS else 3.0),
        lambda x, how: x * (2.0 if how.tag is Holder.default else 3.0),
        lambda x, how: x * (2.0 if how.tag is HOLDER.default else 3.0),
        lambda x, how: x * (2.0 if DEFAULTS is how.tag else 3.0),
        lambda x, how: x * (2.0 if DEFAULTS is (how.tag, how)[0] else 3.0),
    ],
)
def test_wherever_an_object_is_named_in_a_comparison(client: Client, function: Any) -> None:
    """On either side, as an attribute of a class or of an object."""
    served = client.persistent_call(function, static_argnums=1, fallback="error")
    checked(served(X, Operator(2.0, FAST)), X * 3)
    with pytest.raises(PackingError, match="may ask which one it is"):
        served(X, Operator(2.0, DEFAULTS))


class Rule:
    """With more in it than text and numbers."""

    def __init__(self) -> None:
        self.steps = [1, 2]


def by_both(x: Any, one: Any, other: Any) -> Any:
    return x * (2.0 if one is other else 3.0)


def by_neither(x: Any, one: Any, other: Any) -> Any:
    return x * (len(one.steps) + len(other.steps))


@pytest.mark.filterwarnings("ignore::jaxd.errors.FallbackWarning")
@pytest.mark.parametrize("kind", [partial(Tag, "way"), Rule])
def test_one_object_in_two_arguments_is_refused(client: Client, kind: Callable[[], Any]) -> None:
    """Before and after a call with two that hold the same; the function may ask whether it is."""
    one, other = kind(), kind()
    served = client.persistent_call(by_both, static_argnums=(1, 2), fallback="error")
    for _ in range(3):
        with pytest.raises(PackingError, match="another argument"):
            served(X, one, one)
        checked(served(X, one, other), X * 3)
    right = client.persistent_call(by_both, static_argnums=(1, 2), fallback="local")
    checked(right(X, other, other), X * 2)


@pytest.mark.own_server
@pytest.mark.parametrize("kind", [partial(Tag, "way"), Rule])
def test_one_object_in_two_arguments_here(client: Client, kind: Callable[[], Any]) -> None:
    """A call that is traced in this process has the objects themselves."""
    one, other = kind(), kind()
    for _ in range(2):
        here = client.persistent_call(by_both, static_argnums=(1, 2), place="here")
        for _ in range(3):
            checked(here(X, one, other), X * 3)
            checked(here(X, one, one), X * 2)


def test_one_object_in_two_arguments_that_nothing_is_asked_of(client: Client) -> None:
    """Is served; so is a constant with a name, which is one there."""
    rule, static = Rule(), (1, 2)
    asks_nothing = client.persistent_call(by_neither, static_argnums=static, fallback="error")
    checked(asks_nothing(X, rule, rule), X * 4)
    of_names = client.persistent_call(by_both, static_argnums=static, fallback="error")
    checked(of_names(X, FAST, FAST), X * 2)


MAKING: dict[int, Any] = {}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    """Is in a table while it is being made, as those of a library that freezes them afterwards."""

    weight: Any

    def __new__(cls, *args: Any, **more: Any) -> Self:
        made = super().__new__(cls)
        MAKING[id(made)] = made
        return made

    def __post_init__(self) -> None:
        del MAKING[id(self)]

    def __call__(self, x: Any) -> Any:
        assert id(self) not in MAKING
        return x * self.weight


SCALE = Layer(3.0)


def trained(layer: Layer, x: Any) -> Any:
    return Layer(layer.weight + layer(x).sum() + SCALE(1.0)), len(MAKING)


def test_objects_that_are_made_again_are_not_being_made(client: Client) -> None:
    """Neither here nor there: a second call finds the table as the first did, and as under jax."""
    step = client.persistent_call(trained)
    expected = layer = Layer(jnp.float32(2.0))
    for _ in range(2):
        layer, count = step(layer, X)
        expected, wanted = jax.jit(trained)(expected, X)
        assert (float(layer.weight), int(count)) == (float(expected.weight), int(wanted))
        assert type(layer) is Layer
        assert not MAKING
    assert step.why(layer, X).verdict == "hit"
