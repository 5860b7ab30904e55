from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.errors import ConfigurationError, PackingError
from jaxd_protocol.packing import pack, pack_out_of_band, unpack
from jaxd_protocol.paths import runtime_dir

# Where Python keeps its .pyc files is a matter of this test.
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
SHARED = Path(__file__).resolve().parent.parent.parent / "shared"

MODULE = '''
"""A module that only its author has."""

import dataclasses
import enum
import json
import helper
from helper import twice

LIMITS = {"low": 1, "high": (2.5, b"bytes", "low")}


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Pair:
    """Two things."""

    left: int
    right: int = 3

    def sum(self) -> int:
        return self.left + self.right


def outer(n, *, kind="high", scale=-0.0):
    """Reaches everything."""
    local = n

    def inner(x):
        nonlocal local
        local += 1 if x in {"low", "high", "a", "b", "c"} else 2
        return [local, LIMITS["high"][1] == b"bytes", f"{kind}{x}", 1j, 10**30, ..., scale]

    return inner("low") + inner(kind) + [helper.twice(n), twice(n), json.dumps("low")]


def with_classes(n):
    pair = Pair(n)
    return [pair.sum(), Color.RED.value, isinstance(pair, Pair), Pair.__qualname__]
'''
HELPER = "def twice(n):\n    return n * FACTOR\n\n\nFACTOR = 2\n"

PACK = "import sys, mine; from jaxd_protocol.packing import pack; \
sys.stdout.buffer.write(pack(getattr(mine, sys.argv[1]), 'it'))"
CALL = "import sys, json; from jaxd_protocol.packing import unpack; \
value = unpack(sys.stdin.buffer.read())(5); assert 'mine' not in sys.modules; print(repr(value))"


def run(program: str, *args: str, cwd: Path, data: bytes = b"", **env: str) -> bytes:
    """What a fresh process writes that has the protocol, and `cwd` on its path."""
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        input=data,
        cwd=cwd,
        env=PLAIN | {"PYTHONPATH": str(SHARED)} | env,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the author's modules."""
    folder = tmp_path_factory.mktemp("author")
    (folder / "mine.py").write_text(MODULE)
    (folder / "helper.py").write_text(HELPER)
    return folder


def test_local_code_runs_where_its_modules_are_not(mine: Path, tmp_path: Path) -> None:
    """Functions, globals and helper modules travel by value."""
    packed = run(PACK, "outer", cwd=mine)
    called = eval(run(CALL, cwd=tmp_path, data=packed))
    inner = [True, "highlow", 1j, 10**30, ..., -0.0]
    assert called == [6, *inner, 7, True, "highhigh", *inner[2:], 10, 10, '"low"']


def test_local_classes_run_where_their_modules_are_not(mine: Path, tmp_path: Path) -> None:
    """With methods, bases and qualified names."""
    packed = run(PACK, "with_classes", cwd=mine)
    assert eval(run(CALL, cwd=tmp_path, data=packed)) == [8, "red", True, "Pair"]


def test_equal_code_has_equal_bytes_in_every_process(mine: Path) -> None:
    """Just compiled or from a .pyc, and whatever the order of its sets: the bytes are hashed."""
    compiled = [
        run(PACK, "outer", cwd=mine, PYTHONHASHSEED=seed, PYTHONDONTWRITEBYTECODE="1")
        for seed in ("1", "2")
    ]
    command = [sys.executable, "-m", "compileall", "-q", str(mine)]
    subprocess.run(command, env=PLAIN, check=True)
    assert list(mine.glob("__pycache__/mine.*.pyc"))
    cached = [run(PACK, "outer", cwd=mine, PYTHONHASHSEED=seed) for seed in ("3", "4")]
    assert len({*compiled, *cached}) == 1


@pytest.mark.parametrize("value", [json.dumps, np.linalg.norm, np.ndarray, json, pack, len, int])
def test_installed_code_travels_by_name(value: Any) -> None:
    """Both ends have it."""
    packed = pack(value, "it")
    assert len(packed) < 100
    assert unpack(packed) is value


def test_a_module_of_ones_own_travels_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what stands in it, and without Python's own names."""
    module = types.ModuleType("made_by_hand", "its docstring")
    exec("FACTOR = 3\ndef times(x): return x * FACTOR", vars(module))
    monkeypatch.setitem(sys.modules, "made_by_hand", module)
    packed = pack(module, "it")
    monkeypatch.delitem(sys.modules, "made_by_hand")
    found = unpack(packed)
    assert found is not module
    assert found.times(5) == 15
    assert found.__doc__ == "its docstring"


@dataclasses.dataclass
class Mine:
    """A class of the user's own."""

    value: int


def test_classes_that_were_met_are_listed() -> None:
    """So that results come back as instances of this process's own."""

    def make() -> Mine:
        return Mine(1)

    packed = pack(make, "it")
    assert packed.classes[__name__, "Mine"] is Mine
    made = unpack(packed)()
    assert made.value == 1
    assert type(made).__qualname__ == "Mine"


def test_packing_changes_nothing_here() -> None:
    """The function is the same before and after, and packs to the same bytes again."""

    def scaled(x: float) -> float:
        return x * FACTOR

    code, names = scaled.__code__, dict(vars(scaled))
    assert pack(scaled, "it") == pack(scaled, "it")
    assert scaled.__code__ is code
    assert vars(scaled) == names


FACTOR = 2.0
LOCK = threading.Lock()


def test_what_cannot_travel_is_named() -> None:
    """The function, the reason and what to look for."""

    def locked() -> None:
        with LOCK:
            pass

    with pytest.raises(PackingError) as caught:
        pack(locked, "function 'locked'")
    text = str(caught.value)
    assert text.startswith("function 'locked' cannot travel to the server: ")
    assert "lock" in text
    assert "make it inside the function" in text


class Refuses:
    """Says by itself why it does not travel."""

    def __reduce__(self) -> Any:
        raise ConfigurationError("in my own words")


def test_an_error_of_our_own_is_passed_on() -> None:
    """It knows better what is wrong."""
    with pytest.raises(ConfigurationError, match="in my own words"):
        pack(Refuses(), "it")


def test_a_chain_that_is_too_deep_says_so() -> None:
    """Instead of a RecursionError from the depths of pickle."""
    chain: list[Any] = []
    for _ in range(100_000):
        chain = [chain]
    with pytest.raises(PackingError, match=r"function 'f' reaches a chain.*too deep"):
        pack(chain, "function 'f'")


def test_arrays_beside_the_bytes_are_not_copied() -> None:
    """Neither when packed nor when unpacked."""
    array = np.arange(10_000.0)
    packed, buffers = pack_out_of_band({"a": array, "b": 1}, "it")
    assert len(packed) < 300
    assert [np.shares_memory(np.frombuffer(buffer), array) for buffer in buffers] == [True]
    found = unpack(packed, buffers)
    assert np.shares_memory(found["a"], array)


@pytest.mark.parametrize(
    "view", [lambda a: a[::2], lambda a: a.T, lambda a: a[:, 1], lambda a: a[:0]]
)
def test_an_array_arrives_whatever_its_layout(view: Callable[[Any], Any]) -> None:
    """Contiguous or not."""
    array = view(np.arange(12.0).reshape(3, 4))
    packed, buffers = pack_out_of_band(array, "it")
    np.testing.assert_array_equal(unpack(packed, [bytes(buffer) for buffer in buffers]), array)


def test_what_is_not_contiguous_travels_in_the_bytes() -> None:
    """There is no one piece of memory to point at."""

    class Strided:
        def __reduce_ex__(self, protocol: Any) -> Any:
            import pickle

            return bytearray, (pickle.PickleBuffer(memoryview(b"abcdef")[::2]),)

    with pytest.raises(PackingError):
        pack_out_of_band(Strided(), "it")


def test_without_buffers_arrays_are_in_the_bytes() -> None:
    """As part of a function, where they are constants."""
    array = np.arange(100.0)
    np.testing.assert_array_equal(unpack(pack(array, "it")), array)


def test_a_function_of_our_own_stays_ours() -> None:
    """The server has the same."""
    assert unpack(pack(runtime_dir, "it")) is runtime_dir
