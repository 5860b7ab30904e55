"""Functions and plain objects to bytes and back, and how an object is reached, for messages."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.errors import ConfigurationError, PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.network.local_server import runtime_dir
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import object_path, pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.ids import row
from tests.shared.fingerprint.defining import define
from tests.shared.pickling.processes import (
    PLAIN,
    call_in_subprocess,
    pack_in_subprocess,
    round_trip,
    write,
)

MODULE = '''
"""A module that only its author has."""

import dataclasses, enum
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


@dataclasses.dataclass
class Pair:
    left: int
    right: int = 3

    def sum(self):
        return self.left + self.right


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


NAMES = {"a", "b", "c", "d", "e", "f"}
PAIRS = frozenset([(1, "a"), (2, "b"), (3, frozenset({"x", "y"}))])
MEMBERS = {Color.RED, Color.BLUE, int, twice}


def classes():
    pair = Pair(5)
    return pair.sum(), Color.RED.value, isinstance(pair, Pair), Pair.__qualname__


def sets():
    return sorted(NAMES), len(PAIRS), "a" in {"a", "b", "c", "d"}, twice in MEMBERS
'''
HELPER = "def twice(n):\n    return n * FACTOR\n\n\nFACTOR = 2\n"
FUNCTIONS = ("outer", "classes", "sets")


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the author's modules."""
    return write(tmp_path_factory.mktemp("author"), {"mine.py": MODULE, "helper.py": HELPER})


def test_local_code_runs_where_its_modules_are_not(author: Path, tmp_path: Path) -> None:
    """Functions, classes, sets, globals and helper modules travel by value."""
    called = call_in_subprocess(tmp_path, pack_in_subprocess(author, "mine", FUNCTIONS))
    inner = [True, "highlow", 1j, 10**30, ..., -0.0]
    outer = [6, *inner, 7, True, "highhigh", *inner[2:], 10, 10, '"low"']
    assert eval(called["outer"]) == outer
    assert called["classes"] == "(8, 'red', True, 'Pair')"
    assert called["sets"] == "(['a', 'b', 'c', 'd', 'e', 'f'], 3, True, True)"


def test_equal_code_is_equal_bytes_in_every_process(author: Path) -> None:
    """Just compiled or from a .pyc, and whatever the order of its sets."""
    packed = [
        pack_in_subprocess(
            author, "mine", FUNCTIONS, PYTHONHASHSEED=seed, PYTHONDONTWRITEBYTECODE="1"
        )
        for seed in "12"
    ]
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(author)], env=PLAIN, check=True)
    assert list(author.glob("__pycache__/mine.*.pyc"))
    packed += [pack_in_subprocess(author, "mine", FUNCTIONS, PYTHONHASHSEED=seed) for seed in "34"]
    assert packed[1:] == packed[:-1]


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


MINE = define("""
import dataclasses, functools, types
FACTOR, UNREAD, STREAM = 2.0, object(), (number for number in [1])
def factorial(n): return 1 if n == 0 else n * factorial(n - 1)
def is_even(n): return True if n == 0 else is_odd(n - 1)
def is_odd(n): return False if n == 0 else is_even(n - 1)
def scaled(x): return x * FACTOR
def counter():
    count = 0
    def increase():
        nonlocal count
        count += 1
        return count
    return increase, lambda: count
increase, current = counter()
def together(): return increase(), increase(), current()
CELL = current.__closure__[0]
def of_cell(): return CELL.cell_contents
def outer():
    def inner(): return later
    if FACTOR == 0: later = 1
    return inner
def named(a: int, b: int = 2, *, c: int = 3):
    'Its docstring.'
    return a, b, c
named.note, named.__qualname__ = "attached", "Renamed.named"
def logged(function):
    @functools.wraps(function)
    def wrapper(*args): return "logged", function(*args)
    return wrapper
@logged
def decorated(x): return x + 1
class Holder: pass
SETTINGS = Holder()
SETTINGS.rate, SETTINGS.stream, SETTINGS.inner = 0.5, STREAM, Holder()
SETTINGS.inner.width, SETTINGS.inner.other = [3], STREAM
TABLE = {"rate": 3, "stream": STREAM, "inner": {"x": 1, "y": STREAM}}
SPACE = types.SimpleNamespace(rate=0.25, stream=STREAM)
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    stream: object
FROZEN = Frozen(1, STREAM)
def attributes(): return [SETTINGS.rate, SETTINGS.inner.width, FROZEN.a, SPACE.rate]
def keys(): return [TABLE["rate"], TABLE["inner"]["x"]]
class Reader:
    def __init__(self): self.value, self.stream = 4, STREAM
    def read(self): return self.value
read = Reader().read
class Cyclic:
    def itself(self): return CYCLIC is self
CYCLIC = Cyclic()
CYCLIC.me = CYCLIC
def circle(): return CYCLIC.itself() and CYCLIC.me is CYCLIC
""")


def test_a_function_arrives_with_what_it_reads() -> None:
    """Itself, others, variables that closures share, parts of objects that could not be packed."""
    rows: list[tuple[str, Any, Any]] = [
        ("factorial", (5,), 120),
        ("is_even", (11,), False),
        ("together", (), (1, 2, 2)),
        ("of_cell", (), 0),
        ("named", (1,), (1, 2, 3)),
        ("decorated", (1,), ("logged", 2)),
        ("attributes", (), [0.5, [3], 1, 0.25]),
        ("keys", (), [3, 1]),
        ("read", (), 4),
        ("circle", (), True),
    ]
    for name, args, expected in rows:
        with row((name, args, expected)):
            copy = round_trip(getattr(MINE, name))
            assert copy(*args) == expected
            assert copy is not getattr(MINE, name)


def test_a_copy_has_a_namespace_of_its_own_with_what_is_read() -> None:
    """Shared as in the module; whatever else the module or an object holds stays behind."""
    copy = round_trip(MINE.factorial)
    assert copy.__globals__["factorial"] is copy
    copy = round_trip(MINE.is_even)
    assert copy.__globals__ is copy.__globals__["is_odd"].__globals__
    names = round_trip(MINE.scaled).__globals__.keys()
    assert "FACTOR" in names
    assert not names & {"UNREAD", "SETTINGS", "functools"}
    assert vars(round_trip(MINE.attributes).__globals__["SETTINGS"]).keys() == {"rate", "inner"}
    assert not hasattr(round_trip(MINE.read).__self__, "stream")
    table = round_trip(MINE.keys).__globals__["TABLE"]
    assert list(table.items()) == [("rate", 3), ("inner", {"x": 1})]


def test_packing_changes_nothing_here() -> None:
    """A function packs to the same bytes again, and a counter stays where it was."""
    code, attributes = MINE.named.__code__, dict(vars(MINE.named))
    assert pack(MINE.named, "it") == pack(MINE.named, "it")
    assert (MINE.named.__code__, vars(MINE.named)) == (code, attributes)
    round_trip(MINE.together)()
    assert MINE.current() == 0


def test_a_cell_without_content_arrives_without() -> None:
    """The variable is not set yet."""
    with pytest.raises(NameError, match="later"):
        round_trip(MINE.outer())()


def test_defaults_attributes_and_names_travel() -> None:
    """All that a function is, apart from its annotations; and what `functools.wraps` has copied."""
    copy = round_trip(MINE.named)
    assert (copy.note, copy.__qualname__) == ("attached", "Renamed.named")
    assert (copy.__doc__, copy.__module__) == ("Its docstring.", "made_up")
    assert copy.__annotations__ == {}
    assert round_trip(MINE.decorated).__wrapped__(1) == 2


def test_installed_code_travels_by_name() -> None:
    """Both ends have it."""
    rows: list[Any] = [json.dumps, np.linalg.norm, np.ndarray, json, pack, len, int, runtime_dir]
    for value in rows:
        with row(value):
            packed = pack(value, "it")
            assert len(packed) < 100
            assert unpack(packed) is value


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


CULPRIT = object()
CONFIG = {"stream": [1, CULPRIT]}


class WithSlot:
    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = CULPRIT

    def method(self) -> None:
        pass


WITH_SLOT = WithSlot()
OF_MINE = types.ModuleType("of_mine")
OF_MINE.inner = {"a": CULPRIT}  # type: ignore[attr-defined]


def by_config() -> Any:
    return CONFIG


def by_helper() -> Any:
    return by_config()


def by_slot() -> Any:
    return WITH_SLOT


def by_module() -> Any:
    return OF_MINE.inner


def by_default(x: Any = (CULPRIT,)) -> Any:
    return x


def by_closure() -> Any:
    value = CULPRIT
    return lambda: value


def test_the_path_names_each_step() -> None:
    """Globals, closures, defaults, attributes, keys and positions."""
    rows: list[tuple[Any, str]] = [
        (by_config, "by_config → CONFIG['stream'][1]"),
        (by_helper, "by_helper → by_config → CONFIG['stream'][1]"),
        (by_slot, "by_slot → WITH_SLOT.slot"),
        (by_module, "by_module → OF_MINE.inner['a']"),
        (by_default, "by_default → its defaults[0][0]"),
        (by_closure(), "by_closure.<locals>.<lambda> → value"),
        (functools.partial(print, CULPRIT), "partial[0]"),
        (WITH_SLOT.method, "WithSlot.method.__self__.slot"),
        ([{"k": CULPRIT}], "list[0]['k']"),
        (CULPRIT, "object"),
    ]
    for root, path in rows:
        with row((root, path)):
            assert object_path(root, CULPRIT) == path


def test_a_path_that_is_not_found_says_so() -> None:
    """Something that a `__reduce__` has made is nowhere."""
    assert object_path(by_config, object()) == "something that by_config reaches"


def test_an_empty_cell_is_passed_over() -> None:
    """It leads nowhere."""

    def outer(is_set: bool) -> Any:
        if is_set:
            later = 1
        return lambda: (later, CONFIG)

    assert object_path(outer(False), CULPRIT).endswith("<lambda> → CONFIG['stream'][1]")
