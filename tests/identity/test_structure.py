"""Shapes that are hard to walk, and things that have no content."""

from __future__ import annotations

import pytest

from tests.identity.probing import Job, ProbeResult, probe
from tests.identity.projects import write

SHAPES = """
import sys, functools, weakref, types
def recursive(n): return recursive(n - 1) if n else 0
def ping(n): return pong(n - 1) if n else 0
def pong(n): return ping(n - 1) if n else 1
def in_its_set(x): return x in MEMBERS
MEMBERS = {in_its_set, len, "text"}
def in_its_list(x): return CYCLE[0]
CYCLE = [1]
CYCLE.append(CYCLE)
TABLE = {"a": 1}
TABLE["self"] = TABLE
def in_its_dict(x): return dict(TABLE)
class Node:
    def __init__(self): self.me = self; self.others = [self]
node = Node()
def in_its_object(x): return [node]
class Tree:
    def child(self): return Tree()
def in_its_class(x): return Tree().child()
def attribute(x): return attribute.me
attribute.me = attribute
def deep_list(x): return NEST
NEST = []
for _ in range(40): NEST = [NEST]
def weak(x): return WEAK()
WEAK = weakref.ref(Tree)
for n in range(300):
    exec(f"def chain{n}(x): return chain{n + 1}(x)")
def chain300(x): return x * LAST
LAST = 1
def make(inner):
    def outer(x): return inner(x)
    return outer
wrapped = chain300
for n in range(300): wrapped = make(wrapped)
def set_of_functions(x): return FUNCTIONS
FUNCTIONS = frozenset({ping, pong, recursive, Tree})
def set_of_objects(x): return OBJECTS
OBJECTS = {types.MappingProxyType, (ping, 1), (pong, 2), Tree}
module = types.ModuleType("made_by_hand")
exec("K = 3\\ndef times(x): return x * K", vars(module))
def made_by_hand(x): return module.times(x)

"""
NAMES = [
    "recursive",
    "ping",
    "pong",
    "in_its_set",
    "in_its_list",
    "in_its_dict",
    "in_its_object",
    "in_its_class",
    "attribute",
    "deep_list",
    "weak",
    "chain0",
    "wrapped",
    "set_of_functions",
    "set_of_objects",
    "made_by_hand",
]
EDITS = [
    ("else 1", "else 2", "ping pong set_of_functions set_of_objects"),
    ("[1]\n", "[2]\n", "in_its_list"),
    ('"text"', '"test"', "in_its_set"),
    ('{"a": 1}', '{"a": 2}', "in_its_dict"),
    ("LAST = 1", "LAST = 2", "chain0 wrapped"),
    ("range(40)", "range(41)", "deep_list"),
    ("return Tree()", "return Tree", "in_its_class weak set_of_functions set_of_objects"),
    ("self.me = self;", "self.me = None;", "in_its_object"),
    ("K = 3", "K = 4", "made_by_hand"),
]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> list[ProbeResult]:
    """As they are, in another process, and after each edit."""
    folder = tmp_path_factory.mktemp("shapes")
    sources = [SHAPES, *(SHAPES.replace(old, new) for old, new, _ in EDITS)]
    jobs = [Job(str(write(folder / str(n), text)), NAMES) for n, text in enumerate(sources)]
    return [*probe(jobs, PYTHONHASHSEED="1"), *probe(jobs[:1], PYTHONHASHSEED="2")]


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_has_the_same_key_everywhere(name: str, shapes: list[ProbeResult]) -> None:
    """Whatever leads back to itself."""
    assert shapes[0].digest(name) == shapes[-1].digest(name)


@pytest.mark.parametrize("index", range(len(EDITS)), ids=lambda n: EDITS[n][0].strip())
def test_an_edit_is_seen_around_a_circle(index: int, shapes: list[ProbeResult]) -> None:
    """And only where it can be reached."""
    before, after = shapes[0].digests(), shapes[index + 1].digests()
    assert {n for n in NAMES if before[n] != after[n]} == set(EDITS[index][2].split())


def test_members_of_a_circle_have_keys_of_their_own(shapes: list[ProbeResult]) -> None:
    """A key says where the walk began."""
    keys = shapes[0].digests()
    assert keys["ping"] != keys["pong"]


WITHOUT = """
import contextvars, io, logging, os, socket, threading, types
GENERATOR = (n for n in range(3))
TABLE = {"stream": GENERATOR}
SOCKET = socket.socketpair()[0]
async def waits(): pass
COROUTINE = waits()
ITERATOR = iter([1, 2])
HANDLE = open(os.devnull)
NEST = []
for _ in range(5000): NEST = [NEST]
DEEP = ()
for _ in range(5000): DEEP = (DEEP,)
class Refuses:
    def __reduce_ex__(self, protocol): raise TypeError("not me")
REFUSES = Refuses()
LOCK, RLOCK, LOCAL = threading.Lock(), threading.RLock(), threading.local()
LOG, EVENT, VARIABLE = logging.getLogger("a"), threading.Event(), contextvars.ContextVar("v")
def generator(x): return GENERATOR
def in_a_table(x): return TABLE["stream"]
def helper(x): return SOCKET
def by_helper(x): return helper(x)
def make(stream):
    def closed(x): return stream
    return closed
closed = make(GENERATOR)
def coroutine(x): return COROUTINE
def frame(x): return FRAME
def refuses(x): return REFUSES
def default(x, stream=SOCKET): return stream
def nested(x): return NEST
def deep_tuple(x): return DEEP
def locks(x):
    with LOCK, RLOCK: return LOCAL
def logs(x): LOG.info(x)
def events(x): return EVENT.is_set(), VARIABLE.get()
def plain(x): return x
"""
UNSHARED = {
    "generator": ("GENERATOR", "generator"),
    "in_a_table": ("stream", "generator"),
    "by_helper": ("helper", "socket"),
    "closed": ("stream", "generator"),
    "coroutine": ("COROUTINE", "coroutine"),
    "refuses": ("REFUSES", "Refuses"),
    "default": ("stream", "socket"),
}
OPAQUE = ["locks", "logs", "events", "plain"]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProbeResult, ProbeResult]:
    """What has no content, in two processes."""
    place = write(tmp_path_factory.mktemp("without") / "project", WITHOUT)
    names = [*UNSHARED, *OPAQUE, "nested", "deep_tuple"]
    one, other = (probe([Job(str(place), names)])[0] for _ in range(2))
    return one, other


@pytest.mark.parametrize("name", UNSHARED)
def test_what_has_no_content_is_named(name: str, without: tuple[ProbeResult, ProbeResult]) -> None:
    """The path to it, and what it is."""
    step, kind = UNSHARED[name]
    ((path, type_name, reason),) = without[0][name]["unshared"]
    assert path.startswith(name)
    assert step in path
    assert kind in type_name
    assert reason


@pytest.mark.parametrize("name", UNSHARED)
def test_what_has_no_content_is_never_shared(
    name: str, without: tuple[ProbeResult, ProbeResult]
) -> None:
    """Its key is like no other: in another process, and in another walk."""
    one, other = (found[name] for found in without)
    keys = {one["digest"], one["again"], other["digest"], other["again"]}
    assert len(keys) == 4


@pytest.mark.parametrize("name", OPAQUE)
def test_what_cannot_matter_is_opaque(name: str, without: tuple[ProbeResult, ProbeResult]) -> None:
    """A lock has no content, and needs none."""
    assert without[0].digest(name) == without[1].digest(name)


@pytest.mark.parametrize("name", ["nested", "deep_tuple"])
def test_a_nest_that_is_too_deep_is_no_crash(
    name: str, without: tuple[ProbeResult, ProbeResult]
) -> None:
    """It is walked, or refused, or shared with nobody; and in each process alike."""
    one, other = (found[name] for found in without)
    if "refused" in one:
        assert "deep" in one["refused"]
    elif one["unshared"]:
        assert one["digest"] != other["digest"]
    else:
        assert one["digest"] == other["digest"]


NOTES = """import datetime, random, time, uuid
from time import perf_counter
import numpy as np
from pathlib import Path
def helper(x):
    return time.time()  # in a helper
def clock(x): return time.time()
def other_clock(x): return perf_counter()
def today(x): return datetime.datetime.now()
def numpy_state(x): return np.random.rand(3)
def random_state(x): return random.random()
def by_helper(x): return helper(x)
def inside(x):
    import time
    return time.time()  # inside
def quiet(x): return time.strftime
"""
NOTED = {
    "clock": ("time", "def clock"),
    "other_clock": ("perf_counter", "perf_counter()"),
    "today": ("now", "datetime.now"),
    "numpy_state": ("rand", "np.random.rand"),
    "random_state": ("random", "random.random"),
    "by_helper": ("time", "    return time.time()  # in a helper"),
    "inside": ("time", "    return time.time()  # inside"),
}


def _line_of(text: str) -> int:
    return next(n for n, line in enumerate(NOTES.splitlines(), 1) if text in line)


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> ProbeResult:
    """What is noted of each function."""
    place = write(tmp_path_factory.mktemp("notes") / "project", NOTES)
    return probe([Job(str(place), [*NOTED, "bystander"])])[0]


@pytest.mark.parametrize("name", NOTED)
def test_what_no_key_can_hold_is_noted(name: str, noted: ProbeResult) -> None:
    """What is read, and where; the key itself can be shared."""
    what, text = NOTED[name]
    place = f"main.py:{_line_of(text)}"
    noted.digest(name)
    notes = noted[name]["notes"]
    assert [(what in text, where) for _, text, where in notes] == [(True, place)]


def test_nothing_is_noted_of_other_functions(noted: ProbeResult) -> None:
    """A note is for a person to read."""
    assert noted["bystander"]["notes"] == []
