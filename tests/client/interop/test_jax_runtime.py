"""The client's only access to jax."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxd.interop.jax_runtime import (
    array_library,
    current_config,
    loaded_jax,
    map_leaves,
    to_jax,
    to_jax_keys,
)
from tests.client.fresh_process import in_a_fresh_process


def test_jax_is_found_when_it_is_there_and_not_imported() -> None:
    """A half-imported one, as another thread sees it, does not count."""
    assert loaded_jax() is jax
    program = (
        "import json, sys, types; from jaxd.interop.jax_runtime import loaded_jax, current_config\n"
        "found = [loaded_jax() is None, current_config(), 'jax' in sys.modules]\n"
        "sys.modules['jax'] = types.ModuleType('jax')\n"
        "print(json.dumps(found + [loaded_jax() is None]))"
    )
    assert in_a_fresh_process(program) == [True, [], False, True]


def test_settings_of_this_thread_travel() -> None:
    """As they are at the moment of the call."""
    assert current_config() == ()
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        assert current_config() == (("jax_enable_x64", True), ("jax_numpy_rank_promotion", "raise"))
    assert current_config() == ()


def test_without_jax_the_settings_of_the_environment_travel() -> None:
    """Those that jax would have read from it."""
    program = (
        "import json; from jaxd.interop.jax_runtime import current_config as c; "
        "print(json.dumps(c()))"
    )
    assert in_a_fresh_process(program, JAX_ENABLE_X64="1") == [["jax_enable_x64", True]]
    assert in_a_fresh_process(program, JAX_ENABLE_X64="0") == []
    assert in_a_fresh_process(program, JAX_NUMPY_RANK_PROMOTION="raise") == [
        ["jax_numpy_rank_promotion", "raise"]
    ]
    assert in_a_fresh_process(program, JAX_RANDOM_SEED_OFFSET="3") == [
        ["jax_random_seed_offset", 3]
    ]
    assert in_a_fresh_process(program, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="2") == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: to_jax(np.ones(3, np.float32), weak=False),
        lambda: to_jax(np.ones(3), weak=False),
        lambda: to_jax(np.ones((), np.float32), weak=True),
        lambda: to_jax_keys(np.zeros(2, np.uint32), "threefry2x32"),
    ],
    ids=["strong", "of 64 bits", "weak", "keys"],
)
def test_what_comes_home_is_there_although_jax_traces_whoever_calls(make: Any) -> None:
    """A tracer in its place would be kept, and be of no use later."""
    made = []

    def traced(x: Any) -> Any:
        made.append(make())
        return x

    jax.jit(traced)(1.0)
    assert not isinstance(made[0], jax.core.Tracer)
    assert made[0].dtype == make().dtype


def test_the_heaviest_library_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are imported."""
    assert array_library() == "jax"
    monkeypatch.delitem(sys.modules, "jax")
    assert array_library() == "numpy"
    monkeypatch.delitem(sys.modules, "numpy")
    assert array_library() == "lazy"


class Pair(NamedTuple):
    a: Any
    b: Any


TREES: list[tuple[Any, Any]] = [
    (1, 2),
    (None, None),
    ([1, (2, None)], [2, (3, None)]),
    ({"b": 1, "a": [2]}, {"b": 2, "a": [3]}),
    (OrderedDict(b=1, a=2), OrderedDict(b=2, a=3)),
    (Pair(1, {"x": 2}), Pair(2, {"x": 3})),
]


@pytest.mark.parametrize(("tree", "expected"), TREES)
def test_each_leaf_is_replaced(tree: Any, expected: Any) -> None:
    """And nothing else: containers keep their types."""
    mapped = map_leaves(lambda leaf: leaf + 1, tree)
    assert (mapped, type(mapped)) == (expected, type(expected))


def test_it_is_the_same_without_jax() -> None:
    """In a process that has not imported it, and does not."""
    code = (
        "import sys; from collections import OrderedDict; from typing import NamedTuple\n"
        "from jaxd.interop.jax_runtime import leaves_of, map_leaves\n"
        "Pair = NamedTuple('Pair', [('a', object), ('b', object)])\n"
        f"for tree, expected in {TREES!r}:\n"
        "    mapped = map_leaves(lambda leaf: leaf + 1, tree)\n"
        "    assert (mapped, type(mapped)) == (expected, type(expected)), tree\n"
        "assert leaves_of({'b': 1, 'a': (2, None, [3])}) == [1, 2, 3]\n"
        "assert 'jax' not in sys.modules"
    )
    in_a_fresh_process(code)
