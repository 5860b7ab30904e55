"""Classes made again without what a class statement sets in motion."""

from __future__ import annotations

import abc
import threading
import typing
from typing import Any

import pytest

from jaxd_protocol.jax_objects.registrations import build_class

T = typing.TypeVar("T")


class Base:
    seen: typing.ClassVar[list[str]] = []

    def __init_subclass__(cls, **more: Any) -> None:
        Base.seen.append(cls.__name__)


class Meta(type):
    def __new__(cls, name: str, bases: Any, namespace: Any) -> Any:
        return super().__new__(cls, name, bases, {**namespace, "by_meta": True})


class WithMeta(Base, metaclass=Meta):
    pass


class Abstract(abc.ABC):
    @abc.abstractmethod
    def method(self) -> None: ...


class Boxed(typing.Generic[T]):
    pass


def build(meta: type, *bases: type, **namespace: Any) -> Any:
    return build_class(meta, "New", bases, namespace)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    Base.seen.clear()


def test_the_hook_of_a_base_does_not_run_and_is_there_afterwards() -> None:
    """Its effects travel with the class; a subclass that is defined later has them."""
    new = build(type, Base)
    assert Base.seen == []
    type("Later", (new,), {})
    assert Base.seen == ["Later"]


def test_a_metaclass_is_the_metaclass_and_does_not_run() -> None:
    """What it did is in the namespace already."""
    new = build(Meta, WithMeta)
    assert type(new) is Meta
    assert "by_meta" not in vars(new)


def test_a_subclass_that_another_thread_defines_meanwhile_has_its_hook() -> None:
    """The hook is silent for one thread only."""

    class Slow(Meta):
        def mro(cls) -> Any:
            if cls.__name__ == "New":
                thread = threading.Thread(target=lambda: type("Other", (Base,), {}))
                thread.start()
                thread.join()
            return super().mro()

    build(Slow, Base)
    assert Base.seen == ["Other"]


@pytest.mark.parametrize("bases", [(), (dict,), (int, Base), (Exception, Base), (Abstract,)])
def test_bases_are_what_was_asked_for(bases: tuple[type, ...]) -> None:
    """Also those that are written in C."""
    meta = abc.ABCMeta if Abstract in bases else type
    assert build(meta, *bases).__bases__ == (bases or (object,))


def test_abstract_methods_of_a_base_are_known() -> None:
    """An abstract class cannot be instantiated before it is whole."""
    with pytest.raises(TypeError, match="abstract"):
        build(abc.ABCMeta, Abstract)()


def test_slots_are_made_with_the_class() -> None:
    """They cannot be added later."""
    new = build(type, __slots__=("a",))()
    new.a = 1
    with pytest.raises(AttributeError):
        new.b = 1


def test_a_generic_class_needs_no_parameters_to_be_made() -> None:
    """They come with the rest of the namespace."""
    assert build(type, typing.Generic).__bases__ == (typing.Generic,)
    assert "__orig_bases__" not in vars(build(type, Boxed))
