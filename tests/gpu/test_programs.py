"""What a GPU's programs are: kept with their bits, and called in all ways that there are."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import ValueDeleted
from tests import chosen_platform
from tests.end_to_end.steps import kill
from tests.gpu.programs import PROGRAMS
from tests.live_server import ROOT, LiveServer, live_server

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

NAMES = [
    name for name, each in PROGRAMS.items() if not (each.needs_gpu and chosen_platform.is_cpu())
]
NOT_BUILT = {"traces": 0, "lowers": 0, "compiles": 0}
X = np.linspace(0, 1, 64, dtype=np.float32)


class Called(NamedTuple):
    """What one process got and was told."""

    results: dict[str, Any]
    told: dict[str, Any]
    light: bool

    def of(self, name: str) -> Any:
        """The result of a program, which has one."""
        assert "error" not in self.told[name], self.told[name]["error"]
        return self.results[name]

    def built(self, name: str) -> dict[str, int]:
        """What was made for it."""
        return {each: self.told[name][each] for each in NOT_BUILT}


def _call_all(how: str, server: LiveServer, name: str) -> Called:
    file = server.directory / f"{name}.npz"
    environment = dict(server.environment)
    environment["PYTHONPATH"] += f":{ROOT}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.calling", how, str(file), *NAMES],
        env=environment,
        cwd=server.directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    with np.load(file) as results:
        return Called(dict(results), said["programs"], said["light"])


class Calls(NamedTuple):
    """Of the same programs: by jax alone, and by jaxd before and after its worker died."""

    plain: Called
    first: Called
    second: Called
    restarted: Called


@pytest.fixture(scope="module")
def calls() -> Iterator[Calls]:
    """One process each."""
    with live_server() as server:
        plain = _call_all("jax", server, "plain")
        first, second = (_call_all("jaxd", server, name) for name in ("first", "second"))
        with connect(server.unix) as client:  # what was built is on disk when this one is
            client.persistent_call(lambda x: x).warm(X)
        kill(server)
        yield Calls(plain, first, second, _call_all("jaxd", server, "restarted"))


@pytest.mark.parametrize("name", NAMES)
def test_the_next_process_finds_a_program_with_its_bits(name: str, calls: Calls) -> None:
    """It has no jax, nothing is traced or compiled, and the result is the same to the last bit."""
    if "error" in calls.plain.told[name]:
        pytest.skip(f"jax itself: {calls.plain.told[name]['error']}")
    assert calls.second.light
    expected = calls.first.of(name)
    assert calls.second.of(name).tobytes() == expected.tobytes()
    assert calls.second.built(name) == NOT_BUILT


@pytest.mark.parametrize("name", NAMES)
def test_the_next_worker_loads_a_program_with_its_bits(name: str, calls: Calls) -> None:
    """From disk, with the kernels that were chosen when it was compiled."""
    if "error" in calls.plain.told[name]:
        pytest.skip(f"jax itself: {calls.plain.told[name]['error']}")
    assert calls.restarted.of(name).tobytes() == calls.first.of(name).tobytes()
    assert calls.restarted.built(name) == NOT_BUILT
    assert calls.restarted.told[name]["executable_loads"] >= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_program_computes_what_jax_alone_computes(name: str, calls: Calls) -> None:
    """Nearly: each of them has chosen its kernels by itself."""
    if "error" in calls.plain.told[name]:
        pytest.skip(f"jax itself: {calls.plain.told[name]['error']}")
    np.testing.assert_allclose(
        calls.first.of(name), calls.plain.of(name), atol=PROGRAMS[name].tolerance, rtol=1e-2
    )


# ways of calling ----------------------------------------------------------------------------------


def test_a_profile_of_the_client_holds_its_calls(client: Client, tmp_path: Path) -> None:
    """A trace of jax's profiler around a call neither disturbs it nor stays empty."""
    with jax.profiler.trace(str(tmp_path)):
        assert client.persistent_call(lambda x: (x * 2).sum())(X) == pytest.approx(64.0)
    assert [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_cost_of_a_program_is_known(client: Client) -> None:
    """By the stages of `jax.jit`, from the server's compiler."""
    compiled = client.persistent_call(lambda x, y: x @ y).lower(*[np.ones((64, 64), "f4")] * 2)
    cost: Any = compiled.compile().cost_analysis()
    assert (cost if isinstance(cost, dict) else cost[0])["flops"] >= 64**3


def test_many_calls_of_map_keep_their_order(client: Client) -> None:
    """A thousand small ones."""
    double = client.persistent_call(lambda x: x * 2)
    numbers = np.arange(100 if chosen_platform.is_cpu() else 1000, dtype="f4")
    assert [float(each) for each in double.map(numbers)] == [2.0 * each for each in numbers]


def test_streams_of_calls_do_not_mix(live: LiveServer) -> None:
    """Four clients submit calls on values of their own; each sees its own, in its own order."""
    count = 20 if chosen_platform.is_cpu() else 200
    found: dict[int, list[float]] = {}

    def stream(number: int) -> None:
        with connect(live.unix) as client:
            step = client.persistent_call(lambda s, x: (s + x, s[0]), donate_argnums=0)
            state: Any = np.full(1 << 16, number, "f4")
            seen = []
            for _ in range(count):
                state, first = step(state, np.float32(1))
                seen.append(first)
            found[number] = [float(each) for each in seen]

    threads = [threading.Thread(target=stream, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1000 * n: [1000.0 * n + i for i in range(count)] for n in range(4)}


def test_a_donated_state_is_updated_in_its_place(client: Client) -> None:
    """After twenty steps there is as much in use as after one; what was given away is gone."""
    size = 1 << (22 if chosen_platform.is_cpu() else 26)
    begin = client.persistent_call(_filled, static_argnames="count", results="remote")
    step = client.persistent_call(lambda s: s + 1, donate_argnums=0, results="remote")
    first = begin(1.0, count=size)
    state = step(first)
    state.block_until_ready()
    before = client.devices()[0].bytes_in_use
    for _ in range(20):
        state = step(state)
    state.block_until_ready()
    assert client.devices()[0].bytes_in_use - before < size  # a quarter of a state
    assert float(state[-1]) == 22.0
    with pytest.raises(ValueDeleted):
        np.asarray(first)


def _filled(x: Any, count: int) -> Any:
    import jax.numpy as jnp

    return jnp.full(count, x, "f4")


@pytest.mark.parametrize("ordered", [False, True])
def test_programs_call_back(client: Client, ordered: bool) -> None:
    """In this process, from the device, with and without an order."""
    seen: list[float] = []

    def told(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum(), ordered=ordered)
        return jax.pure_callback(lambda v: np.asarray(v) + 1, jax.typeof(x), x)

    np.testing.assert_allclose(client.persistent_call(told)(X), X + 1)
    assert seen == [pytest.approx(32.0)]


def test_each_kind_of_program_is_in_the_table(calls: Calls) -> None:
    """Nothing is compared that was not called."""
    for called in calls:
        assert list(called.told) == NAMES
        assert set(called.results) == {n for n in NAMES if "error" not in called.told[n]}
