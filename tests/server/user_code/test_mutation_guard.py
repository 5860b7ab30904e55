"""What a function changes while it is traced is noticed and undone."""

from __future__ import annotations

import array
import ctypes
import io
import itertools
import random
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxd_protocol.errors import Busy, LostUpdateError
from jaxd_server.user_code import mutation_guard
from jaxd_server.user_code.mutation_guard import NO_GUARD, InstalledGuard, MutationGuard
from tests.ids import row, stable_id
from tests.server.staging import PATIENCE_S

setting: Any = 1


@contextmanager
def noticed(words: str, guard: MutationGuard) -> Iterator[None]:
    """Traces with a guard, which notices a change and says it in these words."""
    with pytest.raises(LostUpdateError, match=words), guard.kept():
        yield


class Settings:
    """An object of the user's, with an attribute that is made when it is read."""

    def __init__(self) -> None:
        self.rate = 0.5

    @cached_property
    def half(self) -> float:
        """A value that is kept in the object's own dict."""
        return self.rate / 2


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, 2], lambda value: value.append(3)),
        ([1, 2], lambda value: value.reverse()),
        ({"a": 1}, lambda value: value.update(b=2)),
        ({"a": 1}, lambda value: value.update(a=2)),
        (OrderedDict(a=1, b=2), lambda value: value.move_to_end("a")),
        ({1, 2}, lambda value: value.add(3)),
        (deque([1]), lambda value: value.appendleft(0)),
        (bytearray(b"ab"), lambda value: value.append(1)),
        (Settings(), lambda value: setattr(value, "rate", 0.25)),
        (Settings(), lambda value: setattr(value, "more", 1)),
        (Settings(), lambda value: delattr(value, "rate")),
    ],
    ids=stable_id,
)
def test_a_container_or_object_that_changes(value: Any, change: Callable[[Any], Any]) -> None:
    """It is named, and as it was before."""

    def content() -> Any:
        return dict(vars(value)) if isinstance(value, Settings) else [*value, repr(value)]

    before = content()
    with noticed(f"changes a {type(value).__name__} while", MutationGuard([value])):
        change(value)
    assert content() == before


class Slotted:
    """An object of the user's without a dict."""

    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 0.5


class Counting:
    """A class of the user's that counts in itself."""

    count = 0
    seen: ClassVar[list[int]] = []


_MEMORY = bytearray(b"ab")


def holding(rate: Any) -> Slotted:
    """An object with something in its slot that nothing else holds."""
    made = Slotted()
    made.rate = rate
    return made


def reassign_twice(value: Slotted) -> None:
    """The second object is made where the first one was in memory."""
    for number in (1, 2):
        value.rate = (number, number + 1)  # type: ignore[assignment]


def test_state_that_no_attribute_shows() -> None:
    """It is named, and nothing is traced with the object again: it cannot be made what it was."""
    rows: list[tuple[Any, Callable[[Any], Any]]] = [
        (itertools.count(1), next),
        (iter([1, 2]), next),
        (iter({1: 2}.items()), next),
        (itertools.chain([1], [2]), next),
        (zip([1, 2], [3, 4], strict=True), next),
        (iter(range(3)), next),
        (iter(range(1 << 70)), next),
        (enumerate(range(3)), next),
        (map(abs, iter([1, 2])), next),
        (random.Random(0), lambda value: value.random()),
        (np.random.RandomState(0), lambda value: value.rand()),
        (np.random.default_rng(0), lambda value: value.random()),
        (np.random.SeedSequence(0), lambda value: value.spawn(1)),
        (io.StringIO("ab"), lambda value: value.read(1)),
        (io.BytesIO(b"ab"), lambda value: value.close()),
        (array.array("d", [1.0]), lambda value: value.append(2.0)),
        (memoryview(_MEMORY), lambda value: value.__setitem__(0, 0)),
        (ctypes.c_double(1.0), lambda value: setattr(value, "value", 2.0)),
        (np.zeros((2, 2)).T, lambda value: value.__setitem__((0, 1), 1)),
        (np.zeros(2, ml_dtypes.bfloat16), lambda value: value.fill(1)),
        (Slotted(), lambda value: setattr(value, "rate", 0.25)),
        (holding(tuple(range(2))), reassign_twice),
    ]
    for value, change in rows:
        with row((value, change)):
            guard = MutationGuard([value])
            with guard.kept():
                repr(value)
            assert not guard.is_spoiled
            with noticed(f"changes a {type(value).__name__} while", guard):
                change(value)
            assert guard.is_spoiled


def test_what_changes_between_two_traces_is_no_change_of_either() -> None:
    """A program may change it, in what it calls back; large arrays are not compared at all."""
    generator = np.random.default_rng(0)
    guard = MutationGuard([generator])
    for _ in range(2):
        with guard.kept():
            repr(generator)
        generator.random()
    assert not guard.is_spoiled
    large = np.zeros((1 << 24) + 1, np.int8)
    with MutationGuard([large]).kept():
        large[0] = 1


def test_a_failed_trace_spoils_as_well() -> None:
    """What it has taken is gone; what can be made what it was is, for the next trace."""
    numbers = itertools.count()
    guard = MutationGuard([numbers])
    with pytest.raises(ZeroDivisionError), guard.kept():
        divmod(next(numbers), 0)
    assert guard.is_spoiled
    scales = [1.0]

    def fail() -> float:
        scales[0] = 2.0
        return 1 / 0

    with pytest.raises(ZeroDivisionError), MutationGuard([scales]).kept():
        fail()
    assert scales == [1.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda: setattr(Counting, "count", 1),
        lambda: setattr(Counting, "fresh", 1),
        lambda: delattr(Counting, "count"),
    ],
    ids=["set", "added", "deleted"],
)
def test_a_class_that_changes(change: Callable[[], Any]) -> None:
    """It is as it was before: other functions may have it as well."""
    before = dict(vars(Counting))
    with noticed("changes the class Counting while", MutationGuard([Counting])):
        change()
    assert dict(vars(Counting)) == before


def test_what_a_class_holds() -> None:
    """A list in it is one of the function's as well; so are the attributes of a namespace."""
    with noticed("a list", MutationGuard([Counting])):
        Counting.seen.append(1)
    assert Counting.seen == []
    namespace = types.SimpleNamespace(count=0)
    with noticed("a SimpleNamespace", MutationGuard([namespace])):
        namespace.count += 1
    assert namespace.count == 0


def test_a_global_and_a_variable_of_a_closure() -> None:
    """Their names are said; what a function holds counts as well, as the function names it."""
    count = 0

    def closure() -> None:
        nonlocal count
        count += 1

    def module() -> None:
        global setting, fresh  # noqa: PLW0603  as users do
        setting = fresh = 2  # type: ignore[name-defined]

    with noticed("changes the variable 'count'", MutationGuard([closure])):
        closure()
    with noticed("changes the global 'fresh'", MutationGuard([module])):
        module()
    assert (count, setting, "fresh" in globals()) == (0, 1, False)
    seen: list[int] = []

    def note() -> None:
        seen.append(1)

    with noticed("changes a list, 'seen',", MutationGuard([note])):
        note()
    assert seen == []


def test_what_only_looks_is_left_alone() -> None:
    """Also an attribute that is made when it is read, and an equal value in the place of one."""
    settings = Settings()
    numbers = {"large": 10**6}
    with MutationGuard([settings, numbers]).kept():
        assert settings.half == 0.25
        numbers["large"] = int("1000000")
    assert vars(settings)["half"] == 0.25
    with NO_GUARD.kept():
        settings.rate = 1.0


def module_of(text: str) -> types.ModuleType:
    """A module of the user's with this code."""
    module = types.ModuleType("made_module")
    exec(text, vars(module))
    return module


def functions_in(module: types.ModuleType) -> list[types.FunctionType]:
    return [each for each in vars(module).values() if isinstance(each, types.FunctionType)]


def test_what_a_module_gets_by_itself_is_no_change() -> None:
    """What its `__getattr__` keeps, or an import puts there; a function's own assignment is one."""
    module = module_of(
        "def __getattr__(name):\n    globals()['made'] = 1\n    return 1\n"
        "def use():\n    return made\n"
        "def assigns():\n    global other\n    other = 1\n"
    )
    guard = MutationGuard(functions_in(module))
    with guard.kept():
        assert module.made == 1
    with noticed("the global 'other'", guard):
        module.assigns()
    module = module_of("def use():\n    return inner, other\n")
    guard = MutationGuard(functions_in(module))
    with guard.kept():
        module.inner = types.ModuleType("made_module.inner")  # type: ignore[attr-defined]
    with noticed("the global 'other'", guard):
        module.other = types.ModuleType("inner")  # type: ignore[attr-defined]


class Base:
    """Its methods change a global."""

    @property
    def as_property(self) -> None:
        """Assigns it."""
        global setting  # noqa: PLW0603
        setting = 2

    @classmethod
    def as_class_method(cls) -> None:
        """The same."""
        global setting  # noqa: PLW0603
        setting = 3


@jax.tree_util.register_pytree_node_class
class Derived(Base):
    """A node of jax."""

    def tree_flatten(self) -> Any:
        """Nothing is in it."""
        return (), None

    @classmethod
    def tree_unflatten(cls, *_: Any) -> Derived:
        """As it was."""
        return cls()


@pytest.mark.parametrize("name", ["as_property", "as_class_method"])
def test_methods_of_a_node_that_cannot_be_walked_over(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its bases, too, however they are wrapped."""

    def walk(*_: Any, **_more: Any) -> Any:
        raise KeyError("a module")

    monkeypatch.setattr(mutation_guard, "walk", walk)
    guard = MutationGuard.of_statics(((Derived(),), {}))
    with noticed("the global 'setting'", guard):
        found = getattr(Derived(), name)
        if found is not None:
            found()
    assert setting == 1


@pytest.mark.parametrize("first", ["culprit", "innocent"])
def test_what_functions_share_that_are_traced_at_once_stays_what_it_was(first: str) -> None:
    """Also where one begins when the other has changed it: neither is blamed, both come again."""
    shapes: list[Any] = []
    begun, changed = threading.Event(), threading.Event()
    ended = {"culprit": threading.Event(), "innocent": threading.Event()}

    def trace(name: str, waits_for: str | None) -> str:
        if name == "innocent":
            changed.wait(PATIENCE_S)
        try:
            with MutationGuard([shapes]).kept():
                if name == "culprit":
                    shapes.append(1)
                    changed.set()
                    begun.wait(PATIENCE_S)
                else:
                    begun.set()
                if waits_for is not None:
                    ended[waits_for].wait(PATIENCE_S)
        except Busy:
            return "busy"
        finally:
            ended[name].set()
        return "fine"

    second = "innocent" if first == "culprit" else "culprit"
    with ThreadPoolExecutor(2) as pool:
        traces = pool.submit(trace, first, None), pool.submit(trace, second, first)
        assert [each.result() for each in traces] == ["busy", "busy"]
    assert shapes == []
    with pytest.raises(LostUpdateError, match="a list"), MutationGuard([shapes]).kept():
        shapes.append(1)


def test_of_functions_that_are_traced_at_once_none_is_blamed() -> None:
    """Each is traced once more; alone, the one that changes jax is found."""
    from jax import lax
    from jax.interpreters import ad

    guard, own = InstalledGuard(), ad.primitive_jvps[lax.sin_p]
    innocent, culprit = MutationGuard(), MutationGuard()
    both = guard.kept(innocent), guard.kept(culprit)
    for each in both:
        each.__enter__()
    ad.primitive_jvps[lax.sin_p] = ad.primitive_jvps[lax.cos_p]
    for each in both:
        with pytest.raises(Busy, match="at the same time"):
            each.__exit__(None, None, None)
        assert ad.primitive_jvps[lax.sin_p] is own
    assert innocent.is_spoiled
    assert culprit.is_spoiled
    with guard.kept(MutationGuard()):
        pass
    with pytest.raises(LostUpdateError, match="while it is traced"), guard.kept(culprit):
        ad.primitive_jvps[lax.sin_p] = ad.primitive_jvps[lax.cos_p]
    assert ad.primitive_jvps[lax.sin_p] is own
