"""Whatever happens to the files: right results, made anew where needed, and one warning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest

from jaxd import connect
from jaxd_server.cache.record_file import read_header
from tests.end_to_end.counting import BUILT, LOADED, WARM, costs, records, warnings_of
from tests.end_to_end.damage import DAMAGE, cut, flip, gone, zeros
from tests.end_to_end.steps import SHARED, Steps, X, kill
from tests.live_server import LiveServer

StartLive = Callable[..., LiveServer]

# Many programs of one function are what is wanted here.
pytestmark = pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice")

SOME: Final = {"functions": DAMAGE[::3], "code": (cut, zeros, gone)}
COSTS: Final[Mapping[str, Mapping[str, int]]] = {
    "functions": LOADED,  # its client is asked what it is
    "code": LOADED,  # nobody needs it
    "calls": SHARED,
    "programs": BUILT,
}
"""What damage to a record costs the next worker, by the record's kind."""

NUMBERS: Final = {
    (kind, damage): number
    for number, (kind, damage) in enumerate(
        ((kind, damage) for kind in COSTS for damage in SOME.get(kind, DAMAGE)), start=2
    )
}
"""The function that each damage is done to."""


def is_asked(kind: str, damage: Callable[[Path], None]) -> bool:
    """Whether the client is asked what its function is: not for what nobody looked at."""
    return kind == "functions" or (kind, damage) == ("code", gone)


def files_of(directory: Path) -> dict[tuple[str, str], Path]:
    """The records of each function, by its name and their kind."""
    found = {}
    for path in records(directory, "calls"):
        content = dict(read_header(str(path)).content)
        for kind, name in (
            ("functions", content["key"]),
            ("code", content["fingerprint"]),
            ("programs", content["program"]),
        ):
            found[content["name"], kind] = path.parent.parent / kind / name.hex()
        found[content["name"], "calls"] = path
    return found


@pytest.mark.soak
def test_damaged_records(start_live: StartLive, runtime: Path) -> None:
    """Of each kind, in each way: right results, one warning, made anew once and then kept."""
    steps = Steps()
    first = start_live()
    with connect(first.unix) as client:
        for number in NUMBERS.values():
            assert steps.cost(client, number) == (BUILT, True)
    assert first.close() == 0
    files = files_of(runtime)
    for (kind, damage), number in NUMBERS.items():
        damage(files[f"step_{number}", kind])

    server = start_live(name="t")
    with connect(server.unix) as client:
        found = {
            (kind, damage.__name__): steps.cost(client, number)
            for (kind, damage), number in NUMBERS.items()
        }
        assert found == {
            (kind, damage.__name__): (COSTS[kind], is_asked(kind, damage))
            for kind, damage in NUMBERS
        }
        steps.settle(client)
        assert warnings_of(server) == ["cache_broken"]
        kill(server)
        for number in NUMBERS.values():
            assert steps.cost(client, number) == (LOADED, False)

        for path in records(runtime):  # under a server that runs
            zeros(path)
        for number in NUMBERS.values():
            assert steps.cost(client, number) == (WARM, False)
        kill(server)
        for number in NUMBERS.values():
            assert steps.cost(client, number) == (BUILT, True)
    assert server.close() == 0
    assert warnings_of(server).count("cache_broken") == 2  # of two workers


def printing(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return x + 1


@pytest.mark.soak
def test_damaged_environments_and_entries_of_jax(start_live: StartLive, runtime: Path) -> None:
    """The first: all is traced again, and compiled no more. The second: compiled again."""
    steps = Steps()
    for cost in (BUILT, SHARED, LOADED):
        server = start_live(name=f"s{len(cost)}-{cost is BUILT}")
        with connect(server.unix) as client:
            assert steps.cost(client, 3)[0] == cost
            with costs(client) as spent:
                np.testing.assert_array_equal(client.persistent_call(printing)(X), X + 1)
            is_found = cost is LOADED and jax.__version_info__ >= (0, 11)
            assert spent == {
                "traces": 1,
                "lowers": 1,
                "xla_cache_hits" if is_found else "compiles": 1,
            }
            steps.settle(client)
        assert server.close() == 0
        if cost is BUILT:
            for path in (*records(runtime, "environments"), *records(runtime, "xla")):
                flip(path)
    assert warnings_of(server) == []
