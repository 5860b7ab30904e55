"""The way of a warm call through the layers of the product, and what a further leaf adds to it.

Counted and not timed, so that a run on a busy machine says the same. The limits are what was seen,
with a margin of a twentieth; work that pays for itself may raise them. What one call takes is in
`test_counted_work.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import house
from tests.another_server import own_server_needed
from tests.live_server import ROOT, LiveServer

MOST_CALLS_PER_LEAF = {"loop": 1.6, "trees": 3.5}
"""How many more there are for each further leaf."""

CALLS = {
    "small": """
def linear_transform(x, w, b):
    return x @ w + b
arguments = np.ones((4, 8), "f4"), np.ones((8, 2), "f4"), np.ones(2, "f4")
step = persistent_call(linear_transform)
def call():
    step(*arguments)
""",
    "loop": """
state = {f"w{i}": np.ones(50_000, "f4") for i in range(LEAVES)}
def advance(state):
    return {k: v + 1 for k, v in state.items()}, state["w0"].sum()
step = persistent_call(advance, donate_argnums=0)
def call():
    global state
    before = state
    state, total = step(before)
    float(total)  # else what of `before` is let go first depends on when the reply comes
""",
    "trees": """
tree = {f"w{i}": np.ones(4, "f4") for i in range(LEAVES)}
step = persistent_call(lambda tree: {k: v + 1 for k, v in tree.items()})
def call():
    step(tree)
""",
}

PROGRAM = """
import mmap, os, sys
import numpy as np
from jaxd import persistent_call

LEAVES, COUNT = map(int, sys.argv[1:])
{call}
for _ in range(20):
    call()
with open(os.environ["JAXD_TRACED_CALLS"] + "/on", "r+b") as file:
    on = mmap.mmap(file.fileno(), 1)
on[0] = 1
for _ in range(COUNT):  # the server has done all about the first when the second is answered
    call()
on[0] = 0
assert "jax" not in sys.modules
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Who called whom during two small warm calls of a client without jax."""
    return _calls_of("small", 0, 2, tmp_path_factory)


def _calls_of(
    kind: str, leaves: int, count: int, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, str]]:
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
        program, given = PROGRAM.format(call=CALLS[kind]), (str(leaves), str(count))
        live.run(program, *given, **traced, JAXD_TRACED_MAIN="1")
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", MOST_CALLS_PER_LEAF)
def test_a_further_leaf_runs_few_functions(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a state that stays on the server, and of a tree that goes there and comes back."""
    few, many = (len(_calls_of(kind, leaves, 20, tmp_path_factory)) for leaves in (20, 120))
    assert (many - few) / 20 / 100 <= MOST_CALLS_PER_LEAF[kind]


@pytest.mark.slow
def test_nothing_is_called_in_a_layer_above_its_caller(calls: list[tuple[str, str]]) -> None:
    """The way goes down: what is called lies in the layer of its caller or in one below."""
    upwards = {
        (caller, callee)
        for caller, callee in calls
        if caller != "-" and _is_above(_module(callee), _module(caller))
    }
    assert sorted(upwards) == []


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
