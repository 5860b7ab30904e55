"""Functions and arguments to bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import ConfigurationError, PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from tests.shared.pickling.processes import PLAIN, call_in_subprocess, pack_in_subprocess, write

MODULE = '''
"""A module that only its author has."""

import json
import helper
from helper import twice

LIMITS = {"low": 1, "high": (2.5, b"bytes", "low")}


def outer(n=5, *, kind="high", scale=-0.0):
    """Reaches everything."""
    local = n

    def inner(x):
        nonlocal local
        local += 1 if x in {"low", "high", "a", "b", "c"} else 2
        return [local, LIMITS["high"][1] == b"bytes", f"{kind}{x}", 1j, 10**30, ..., scale]

    return inner("low") + inner(kind) + [helper.twice(n), twice(n), json.dumps("low")]
'''
HELPER = "def twice(n):\n    return n * FACTOR\n\n\nFACTOR = 2\n"


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the author's modules."""
    return write(tmp_path_factory.mktemp("author"), {"mine.py": MODULE, "helper.py": HELPER})


def test_local_code_runs_where_its_modules_are_not(author: Path, tmp_path: Path) -> None:
    """Functions, globals and helper modules travel by value."""
    called = eval(
        call_in_subprocess(tmp_path, pack_in_subprocess(author, "mine", ["outer"]))["outer"]
    )
    inner = [True, "highlow", 1j, 10**30, ..., -0.0]
    assert called == [6, *inner, 7, True, "highhigh", *inner[2:], 10, 10, '"low"']


def test_equal_code_is_equal_bytes_in_every_process(author: Path) -> None:
    """Just compiled or from a .pyc, and whatever the order of its sets."""
    compiled = [
        pack_in_subprocess(
            author, "mine", ["outer"], PYTHONHASHSEED=seed, PYTHONDONTWRITEBYTECODE="1"
        )
        for seed in ("1", "2")
    ]
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(author)], env=PLAIN, check=True)
    assert list(author.glob("__pycache__/mine.*.pyc"))
    cached = [
        pack_in_subprocess(author, "mine", ["outer"], PYTHONHASHSEED=seed) for seed in ("3", "4")
    ]
    assert len({each["outer"] for each in (*compiled, *cached)}) == 1


class Unpackable:
    def __reduce__(self) -> Any:
        raise ValueError("not today")


NOT_TODAY = {"inner": [Unpackable()]}


def test_what_cannot_travel_is_named() -> None:
    """The object, how it is reached, the reason and the way out."""

    def use() -> Any:
        return NOT_TODAY

    reach = walk(use, "use").reach
    reach.unpicklable.clear()  # as for an object that only pickle finds fault with
    with pytest.raises(PackingError) as caught:
        pack_function(use, "function 'use'", reach)
    text = str(caught.value)
    assert text.startswith("function 'use' cannot travel to the server: ")
    assert "→ NOT_TODAY['inner'][0] is a Unpackable: not today" in text
    assert "make it inside the function" in text


class Refuses:
    """Says by itself why it does not travel."""

    def __reduce__(self) -> Any:
        raise ConfigurationError("in my own words")


def test_an_error_of_our_own_is_passed_on() -> None:
    """It knows better what is wrong."""
    with pytest.raises(ConfigurationError, match="in my own words"):
        pack(Refuses(), "it")


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_a_chain_that_is_too_deep_says_so(depth: int) -> None:
    """Instead of a RecursionError from the depths of pickle, or a crash."""
    chain: list[Any] = []
    for _ in range(depth):
        chain = [chain]
    answer = said_of(chain)
    assert "function 'f' reaches a chain" in answer or (depth == 5_000 and not answer)


def said_of(value: Any) -> str:
    """The error of packing it; empty when this Python allows that depth."""
    try:
        pack(value, "function 'f'")
    except PackingError as error:
        return str(error)
    return ""
