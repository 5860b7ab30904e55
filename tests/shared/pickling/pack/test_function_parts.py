"""Functions, taken apart and put together again."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.network.local_server import runtime_dir
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.pickling.processes import (
    call_in_subprocess,
    pack_in_subprocess,
    round_trip,
    write,
)

FACTOR = 2.0
UNREAD = object()


def factorial(n: int) -> int:
    return 1 if n == 0 else n * factorial(n - 1)


def is_even(n: int) -> bool:
    return True if n == 0 else is_odd(n - 1)


def is_odd(n: int) -> bool:
    return False if n == 0 else is_even(n - 1)


def test_a_function_that_calls_itself_calls_its_copy() -> None:
    """Not the one that was packed."""
    copy = round_trip(factorial)
    assert copy(5) == 120
    assert copy.__globals__["factorial"] is copy
    assert copy is not factorial


def test_functions_that_call_each_other() -> None:
    """They share one namespace, as in their module."""
    copy = round_trip(is_even)
    assert copy(11) is False
    assert copy.__globals__ is copy.__globals__["is_odd"].__globals__


def test_only_the_globals_that_code_names_travel() -> None:
    """Whatever else its module holds stays behind."""

    def scaled(x: float) -> float:
        return x * FACTOR

    names = set(round_trip(scaled).__globals__)
    assert "FACTOR" in names
    assert "UNREAD" not in names
    assert "Path" not in names


def test_names_that_only_a_class_body_reads_travel() -> None:
    """They are loaded in another way than those of a function."""

    def made() -> float:
        class Local:
            factor = FACTOR

        return Local.factor

    assert round_trip(made)() == FACTOR


def counter() -> tuple[Callable[[], int], Callable[[], int]]:
    count = 0

    def increase() -> int:
        nonlocal count
        count += 1
        return count

    return increase, lambda: count


increase, current = counter()


def test_closures_keep_sharing_a_variable() -> None:
    """One writes it, the other reads it."""

    def both() -> int:
        increase()
        increase()
        return current()

    assert round_trip(both)() == 2
    assert current() == 0


def test_a_cell_without_content_arrives_without() -> None:
    """The variable is not set yet."""

    def outer() -> Callable[[], Any]:
        def inner() -> Any:
            return later

        if FACTOR == 0:
            later = 1
        return inner

    with pytest.raises(NameError, match="later"):
        round_trip(outer())()


def test_defaults_attributes_and_names_travel() -> None:
    """All that a function is, apart from its annotations."""

    def named(a: int, b: int = 2, *, c: int = 3) -> tuple[int, ...]:
        """Its docstring."""
        return a, b, c

    named.note = "attached"  # type: ignore[attr-defined]
    named.__qualname__ = "Renamed.named"
    copy = round_trip(named)
    assert copy(1) == (1, 2, 3)
    assert (copy.note, copy.__qualname__, copy.__doc__) == (
        "attached",
        "Renamed.named",
        "Its docstring.",
    )
    assert copy.__module__ == __name__
    assert copy.__annotations__ == {}


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return "logged", function(*args)

    return wrapper


@logged
def decorated(x: int) -> int:
    return x + 1


def test_a_decorated_function_keeps_its_decorator() -> None:
    """And what `functools.wraps` has copied."""
    copy = round_trip(decorated)
    assert copy(1) == ("logged", 2)
    assert copy.__wrapped__(1) == 2


@pytest.mark.parametrize("value", [json.dumps, np.linalg.norm, np.ndarray, json, pack, len, int])
def test_installed_code_travels_by_name(value: Any) -> None:
    """Both ends have it."""
    packed = pack(value, "it")
    assert len(packed) < 100
    assert unpack(packed) is value


def test_a_function_of_our_own_packages_stays_ours() -> None:
    """The server has the same."""
    assert unpack(pack(runtime_dir, "it")) is runtime_dir


def test_packing_changes_nothing_here() -> None:
    """The function is the same before and after, and packs to the same bytes again."""

    def scaled(x: float) -> float:
        return x * FACTOR

    code, names = scaled.__code__, dict(vars(scaled))
    assert pack(scaled, "it") == pack(scaled, "it")
    assert scaled.__code__ is code
    assert vars(scaled) == names


CHAIN = """
text = "".join(f"def h{i}(x): return h{i + 1}(x) + 1\\n" for i in range(300))
exec(text + "def h300(x): return x")
def chain(): return h0(0)
text = "def c{}(x): return c{}(x - 1) + 1 if x else 0\\n"
exec("".join(text.format(i, (i + 1) % 300) for i in range(300)))
def circle(): return c0(450)
"""


def test_a_chain_of_helpers_may_be_of_any_length(tmp_path: Path) -> None:
    """Three hundred, in a line and in a circle."""
    author = write(tmp_path / "author", {"chains.py": CHAIN})
    packed = pack_in_subprocess(author, "chains", ["chain", "circle"])
    assert call_in_subprocess(tmp_path, packed) == {"chain": "300", "circle": "450"}
