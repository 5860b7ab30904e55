"""Registrations of classes as nodes of trees: read, and repeated for a copy of the class."""

from __future__ import annotations

import dataclasses
import threading
import typing
from typing import Any

import jax
import pytest

from jaxd_protocol.jax_objects.registrations import (
    Registration,
    build_class,
    class_registration,
    finish_class,
)
from tests.shared.jax_objects import samples_trees as samples


@pytest.mark.parametrize(
    ("cls", "style"),
    [
        (samples.Node, "node"),
        (samples.Box, "node"),
        (samples.Keyed, "keyed"),
        (samples.KeyedClass, "keyed"),
        (samples.Data, "dataclass"),
        (samples.Static, "static"),
    ],
)
def test_a_registration_is_read_in_the_style_in_which_it_was_made(cls: type, style: str) -> None:
    """This fails when jax stores registrations in another way."""
    found = class_registration(cls)
    assert found is not None
    assert found.style == style
    assert found.state_dict is None


@pytest.mark.parametrize("cls", [samples.Hooked, samples.Pair, int])
def test_a_class_that_was_never_registered_has_none(cls: type) -> None:
    """Named tuples are known to jax by what they are."""
    assert class_registration(cls) is None


def test_fields_of_a_dataclass_are_read_by_name() -> None:
    """Which of them are static decides about programs."""
    assert class_registration(samples.Data) == Registration("dataclass", (("a",), ("m",)))
    assert class_registration(samples.Dropped) == Registration("dataclass", (("a",), ()))


def test_a_copy_of_a_class_is_registered_once() -> None:
    """jax knows no way back, and a second blob may bring the class again."""
    copy = dataclasses.make_dataclass("Copy", [("a", Any), ("m", str, "q")])
    for _ in range(2):
        finish_class(copy, class_registration(samples.Data))
    paths = jax.tree_util.tree_leaves_with_path(copy(3))
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [".a"]


def test_names_of_keys_survive() -> None:
    """Programs choose parameters by path."""

    class Copy(samples.Keyed):
        pass

    original = class_registration(samples.Keyed)
    assert original is not None
    finish_class(Copy, original)
    (path, _), *others = jax.tree_util.tree_leaves_with_path(Copy(1))
    assert jax.tree_util.keystr(path) == ".named"
    assert others == []


class WithHook:
    seen: typing.ClassVar[list[str]] = []

    def __init_subclass__(cls, **more: Any) -> None:
        WithHook.seen.append(cls.__name__)


class Meta(type):
    def __new__(cls, name: str, bases: Any, namespace: Any) -> Any:
        return super().__new__(cls, name, bases, {**namespace, "by_meta": True})


def build(meta: type, *bases: type, **namespace: Any) -> Any:
    return build_class(meta, "New", bases, namespace)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    WithHook.seen.clear()


def test_the_hook_of_a_base_does_not_run_and_is_there_afterwards() -> None:
    """Its effects travel with the class; a subclass that is defined later has them."""
    new = build(type, WithHook)
    assert WithHook.seen == []
    type("Later", (new,), {})
    assert WithHook.seen == ["Later"]


def test_a_subclass_that_another_thread_defines_meanwhile_has_its_hook() -> None:
    """The hook is silent for one thread only."""

    class Slow(Meta):
        def mro(cls) -> Any:
            if cls.__name__ == "New":
                thread = threading.Thread(target=lambda: type("Other", (WithHook,), {}))
                thread.start()
                thread.join()
            return super().mro()

    build(Slow, WithHook)
    assert WithHook.seen == ["Other"]
