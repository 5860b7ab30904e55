"""What is left to do after a restart: counted, and compared byte by byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.jit.options import Options
from tests.server.costs import COUNTERS, LOADED, counts, double
from tests.server.in_process import PipelineHarness, Source
from tests.server.restarted import CASES, NOT_KEPT

Open = Callable[..., PipelineHarness]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What all the calls cost in a process, and in a later one that has the same folder."""
    folder = str(tmp_path_factory.mktemp("kept") / "cache")
    return _run(folder, 0), _run(folder, 1)


def _run(folder: str, turn: int) -> Any:
    command = [sys.executable, "-m", "tests.server.restarted", folder, str(turn)]
    path = os.pathsep.join([*sys.path, str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(turn + 1)}
    output = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_second_process_makes_nothing(two_processes: tuple[Any, Any], name: str) -> None:
    """It neither traces, lowers nor compiles, asks its client nothing, and replies the same bytes.

    One program is loaded.
    """
    first, second = (costs[name] for costs in two_processes)
    assert first["failure"] is second["failure"] is None
    assert {counter: second[counter] for counter in COUNTERS} == LOADED
    assert second["asked"] == []
    assert second["reply"] == first["reply"]
    assert (first["traces"], first["lowers"]) == (1, 1)
    assert first["compiles"] + first["programs_shared"] == 1


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_cannot_be_kept_is_made_again(two_processes: tuple[Any, Any], name: str) -> None:
    """And works as in the first process."""
    first, second = (costs[name] for costs in two_processes)
    assert first["failure"] is second["failure"] is None
    for costs in (first, second):
        assert (costs["traces"], costs["lowers"], costs["executable_loads"]) == (1, 1, 0)
        assert costs["compiles"] + costs["programs_shared"] == 1


def test_another_option_is_another_program(open_harness: Open) -> None:
    """Nothing of one key answers another, in memory or on disk."""
    options = [Options(), Options(config=(("jax_enable_x64", True),)), Options(keep_unused=True)]
    x = np.ones(3)
    dtypes = []
    for _ in range(2):
        harness = open_harness()
        dtypes += [harness.value(Source(double, one), x).dtype.name for one in options]
        assert len(harness.executables) == 3
    assert dtypes == ["float32", "float64", "float32"] * 2
    assert counts(harness) == {**LOADED, "executable_loads": 3}


def test_nothing_is_left_of_settings_that_were_in_force(open_harness: Open) -> None:
    """A load runs under those of its own key, and leaves none behind."""
    options = Options(config=(("jax_enable_x64", True),))
    for _ in range(2):
        harness = open_harness()
        assert harness.value(Source(double, options), np.ones(3)).dtype == np.float64
        assert jax.numpy.ones(1, float).dtype == np.float32
