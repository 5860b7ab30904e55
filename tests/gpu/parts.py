"""The parts of `make gpu`: what each runs, with what environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent.parent
SOURCES: Final = tuple(str(ROOT / name) for name in ("client", "server", "shared"))


class Part(NamedTuple):
    """One of them.

    Attributes:
        name: which the command line takes.
        command: what it runs.
        writes: the file that it writes its results into, in the folder of all of them.
        variables: of its environment, beside those of all parts.
    """

    name: str
    command: tuple[str, ...]
    writes: str
    variables: dict[str, str]


_PYTEST: Final = (
    *(sys.executable, "-m", "pytest", "-q", "--color=no", "--tb=short"),
    *("-p", "no:benchmark", "-p", "no:cacheprovider", "-p", "tests.gpu.recorded_results"),
)

_OF_THE_DEVICE: Final = tuple(
    f"tests/gpu/test_{name}.py" for name in ("programs", "memory", "lives")
)
"""What takes longest comes last."""
_OF_CALLS: Final = "tests/end_to_end/test_calls.py"
_OF_TUTORIALS: Final = "tests/examples/test_seeds.py"


def _tests(name: str, *words: str, **variables: str) -> Part:
    return Part(name, (*_PYTEST, *words), f"{name}.jsonl", variables)


def parts(is_rehearsal: bool, output: Path) -> list[Part]:
    """All of them, in their order; for a rehearsal on the CPU, a small piece of each."""
    processes = ("-n", "0" if is_rehearsal else str(_processes()), "--dist", "loadfile")
    variables = {"TEST_PLATFORM": "cpu" if is_rehearsal else "cuda,cpu"}
    if is_rehearsal:  # compiled fast, as the tests do (tests/xla_flags.py)
        from tests.xla_flags import fast_flags

        variables["XLA_FLAGS"] = fast_flags()
    benchmark = (sys.executable, "-m", "benchmarks", "--accelerator", "--output", str(output))
    clients, galleries = ("tests/end_to_end",), ("tests/examples", "-m", "soak or not soak")
    if is_rehearsal:
        clients, galleries = (_OF_CALLS,), (_OF_TUTORIALS, "-k", "one_of_them or there_is_a_file")
    return [
        # One after the other: they look at how much of the device is taken.
        _tests("device", "-n", "0", "-m", "gpu", *_OF_THE_DEVICE, **variables),
        Part(
            "figures",
            (*benchmark, *(["--quick"] if is_rehearsal else [])),
            "accelerator.json",
            {name: value for name, value in variables.items() if name == "XLA_FLAGS"},
        ),
        _tests("clients", *processes, *clients, **variables),
        _tests("galleries", *processes, *galleries, **variables),
    ]


def _processes() -> int:
    """Each has a server on the device, and clients."""
    return max(1, min(6, len(os.sched_getaffinity(0)) // 2))
