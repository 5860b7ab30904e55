"""The way of one warm call through the files of the product, as it is taken."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import house
from tests.another_server import own_server_needed
from tests.live_server import ROOT, LiveServer

MOST_FILES = 32

PROGRAM = """
import mmap, os, sys
import numpy as np
from jaxd import persistent_call

@persistent_call
def linear_transform(x, w, b):
    return x @ w + b

x, w, b = np.ones((4, 8), "f4"), np.ones((8, 2), "f4"), np.ones(2, "f4")
for _ in range(20):
    linear_transform(x, w, b)
with open(os.environ["JAXD_TRACED_CALLS"] + "/on", "r+b") as file:
    on = mmap.mmap(file.fileno(), 1)
on[0] = 1
linear_transform(x, w, b)  # two of them: the server has done all about the first
linear_transform(x, w, b)  # when the second is answered
on[0] = 0
assert "jax" not in sys.modules
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Who called whom during warm calls of a client without jax: in it, then in the worker."""
    own_server_needed()
    folder = tmp_path_factory.mktemp("calls")
    (folder / "on").write_bytes(b"\0")
    sources = ("tests/traced_calls", "client", "server", "shared")
    traced = {
        "JAXD_TRACED_CALLS": str(folder),
        "PYTHONPATH": ":".join(str(ROOT / name) for name in sources),
    }
    live = LiveServer(tmp_path_factory.mktemp("server"), **traced)
    try:
        live.run(PROGRAM, **traced)
    finally:
        live.close()
    lines = [file.read_text().splitlines() for file in folder.glob("*.calls")]
    both = sorted((each for each in lines if each), key=lambda each: "client/" not in each[0])
    return [call for each in both for call in _calls_of_busiest_thread(each)]


def _calls_of_busiest_thread(lines: list[str]) -> list[tuple[str, str]]:
    """The others are those of timers, which may be due just then."""
    found = [line.split() for line in lines]
    ((busiest, _),) = Counter(thread for thread, _, _ in found).most_common(1)
    return [(caller, callee) for thread, caller, callee in found if thread == busiest]


def _files(calls: list[tuple[str, str]]) -> list[str]:
    """The files of a call, in the order in which it reaches them."""
    return list(dict.fromkeys(callee.partition(":")[0] for _, callee in calls))


def test_a_warm_call_passes_few_files(calls: list[tuple[str, str]]) -> None:
    """Client and server together; the list is printed (`pytest -s`)."""
    files = _files(calls)
    print(f"\n{len(files)} files:", *files, sep="\n")
    assert len(files) <= MOST_FILES


def test_nothing_is_called_in_a_layer_above_its_caller(calls: list[tuple[str, str]]) -> None:
    """The way goes down: what is called lies in the layer of its caller or in one below."""
    upwards = {
        (caller, callee)
        for caller, callee in calls
        if caller != "-" and _is_above(_module(callee), _module(caller))
    }
    assert sorted(upwards) == []


def test_architecture_shows_the_files_of_a_warm_call(calls: list[tuple[str, str]]) -> None:
    """The list in ARCHITECTURE.md is the list."""
    page = (ROOT / "ARCHITECTURE.md").read_text().partition("## The way of one call\n")[2]
    block = page.partition("\n## ")[0].rpartition("```text\n")[2]
    shown = re.findall(r"(?:client|server|shared)/[\w/]+\.py", block)
    assert sorted(shown) == sorted(_files(calls))


def _module(called: str) -> str:
    path = Path(called.partition(":")[0]).with_suffix("")
    return ".".join(part for part in path.parts[1:] if part != "__init__")


def _is_above(module: str, other: str) -> bool:
    """Whether a contract puts the module into a layer above that of the other."""
    return any(
        0 <= rank < other_rank
        for rank, other_rank in (
            (_rank(module, container, layers), _rank(other, container, layers))
            for container, layers in _layers()
        )
    )


def _layers() -> Iterator[tuple[str, list[str]]]:
    for contract in house.contracts():
        if contract["type"] == "layers":
            containers, layers = contract.get("containers", [""]), contract["layers"]
            assert isinstance(containers, list)
            assert isinstance(layers, list)
            yield from ((container, layers) for container in containers)


def _rank(module: str, container: str, layers: list[str]) -> int:
    prefix = f"{container}." if container else ""
    name = module.removeprefix(prefix).partition(".")[0] if module.startswith(prefix) else ""
    ranks = (i for i, layer in enumerate(layers) if name in re.split(r"\W+", layer))
    return next(ranks, -1)
