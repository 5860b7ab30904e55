"""Whether a thread is in a context of a library on jax, which a server's thread is not in."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxd.interop.library_state import LibraryContexts
from jaxd_protocol.errors import PackingError
from tests.fake_packages import FakeSite

LIBRARY = """
import collections, contextlib, contextvars, threading

class Stack(threading.local):
    def __init__(self):
        self.items, self.depth, self.options = collections.deque(), 1, {"level": [1, None]}

stack = Stack()
stack.__orig_class__ = list
plain = threading.local()
mode = contextvars.ContextVar("mode")

handlers: list = []
registered = {}
by_default = [0]
warned = False

class Handler:
    def __enter__(self):
        handlers.append(self)
        by_default.append(self)
        registered["last"] = self

    def __exit__(self, *_):
        by_default.pop()
        handlers.pop()

def warn():
    global warned
    warned = True

@contextlib.contextmanager
def compact(value=False):
    global is_compact
    before, is_compact = is_compact, value
    try:
        yield
    finally:
        is_compact = before

is_compact = True
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """One that requires jax, and one that does not."""
    site = FakeSite(tmp_path)
    names = "zz_on_jax", "zz_on_nothing"
    for name, needs in zip(names, (["jax"], []), strict=True):
        site.install(name, "1.0", {f"{name}/__init__.py": LIBRARY}, requires=needs)
    monkeypatch.syspath_prepend(site.path)
    yield [importlib.import_module(name) for name in names]
    for name in names:
        del sys.modules[name]


def is_found(contexts: LibraryContexts) -> bool:
    try:
        contexts.check()
    except PackingError as error:
        return "context of a library: zz_on_jax." in str(error)
    return False


def test_what_a_thread_holds_and_a_new_one_does_not(libraries: list[Any]) -> None:
    """As long as it holds it, and in no other thread or trace; what is empty is as nothing."""
    on_jax, on_nothing = libraries
    contexts = LibraryContexts()
    assert not is_found(contexts)
    on_nothing.stack.items.append(1)
    on_nothing.mode.set(1)
    on_jax.plain.anything = {}
    on_jax.plain.cache = {"key": 1}
    on_jax.stack.options = {"level": [1, None], "other": None}
    assert not is_found(contexts)
    assert not contexts.were_found
    on_jax.stack.items.append(len)
    for each in (contexts, LibraryContexts()):
        assert is_found(each)
        assert each.were_found
    others: list[bool] = []
    thread = threading.Thread(target=lambda: others.append(is_found(contexts)))
    thread.start()
    thread.join()
    assert others == [False]
    jax.make_jaxpr(lambda x: others.append(is_found(contexts)))(1.0)
    assert others == [False, False]
    on_jax.stack.items.clear()
    assert not is_found(contexts)


@pytest.mark.parametrize(
    ("holder", "name", "value"),
    [
        ("stack", "depth", 2),
        ("stack", "options", {"level": [1, 2]}),
        ("stack", "options", {"level": (1, None)}),
        ("plain", "anything", object()),
    ],
)
def test_any_part_counts(libraries: list[Any], holder: str, name: str, value: Any) -> None:
    """Numbers and what is inside of containers."""
    contexts = LibraryContexts()
    contexts.check()
    setattr(getattr(libraries[0], holder), name, value)
    assert is_found(contexts)


def test_context_variables_count(libraries: list[Any]) -> None:
    """Whose value is another one in an empty context."""
    contexts = LibraryContexts()
    token = libraries[0].mode.set("fast")
    assert is_found(contexts)
    libraries[0].mode.reset(token)
    assert not is_found(contexts)


def test_globals_that_context_managers_change_count(libraries: list[Any]) -> None:
    """Of classes and generators, also where the first look is made in one of them; no others."""
    on_jax, on_nothing = libraries
    contexts = LibraryContexts()
    with on_jax.Handler():
        assert is_found(contexts)
        assert is_found(LibraryContexts())
    with on_jax.compact(), on_nothing.Handler():
        assert is_found(contexts)
    with on_jax.compact(True), on_nothing.Handler(), on_nothing.compact():
        on_jax.warn()
        assert not is_found(contexts)
        assert not is_found(LibraryContexts())
    assert on_jax.registered
    assert on_jax.by_default
