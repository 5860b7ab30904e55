"""What a server holds does not grow with what it has seen: counted, and measured from outside."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import OutOfMemory
from tests.end_to_end.counting import BUILT, LOADED, WARM, costs, records
from tests.live_server import LiveServer
from tests.server.staging import until

StartLive = Callable[..., LiveServer]

pytestmark = pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice")

MIB = 1 << 20


class Size(NamedTuple):
    """What a process takes, as the system sees it."""

    maps: int
    resident: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> Size:
        """That of a process, now."""
        folder = Path(f"/proc/{pid}")
        return cls(
            (folder / "maps").read_bytes().count(b"\n"),
            int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            len(os.listdir(folder / "fd")),
        )


def scaled(client: Client, factor: int) -> Any:
    """A function with a signature, and a program, for each number."""
    return client.persistent_call(lambda x, n: x * factor + n, static_argnums=1)


def call(function: Any, number: int) -> None:
    """A call with the signature of that number."""
    assert function(np.float32(0), number) == number


def spent(client: Client, function: Any, number: int) -> dict[str, int]:
    """What the server did for it."""
    with costs(client) as counted:
        call(function, number)
    return counted


def churn(server: LiveServer, signatures: int, budget: int) -> None:
    """Many more signatures than there is room for; asserts what holds meanwhile and after."""
    pid, samples = server.worker_pid(), []
    with connect(server.unix) as client:
        function = scaled(client, 3)
        with costs(client) as counted:
            for number in range(1, signatures + 1):
                call(function, number)
                if number % (budget // 4) == 0:
                    call(function, 1)  # in use all the time, so it never is the oldest
                    samples.append(Size.of(pid))
        assert counted["traces"] == counted["compiles"] == signatures
        assert client.statistics().executables == budget

        full = samples[5:]  # from here on, one goes for each that comes
        third = len(full) // 3
        assert max(one.maps for one in full) - full[0].maps < 3 * budget // 2 + 40
        assert max(one.maps for one in full[-third:]) - max(one.maps for one in full[:third]) < 40
        assert full[-1].resident - full[third].resident < 40 * MIB
        assert max(one.descriptors for one in full) - full[0].descriptors < 8

        # Nothing has gone but the oldest: what is left are the last ones, and the one in use. One
        # that took more than a second to make, on a busy machine, is kept in place of a later one.
        newest = range(signatures, signatures - budget + 1, -1)
        found = [spent(client, function, number) for number in newest]
        assert found.count(WARM) >= (budget - 1) * 0.9
        assert spent(client, function, 1) == WARM
        oldest = range(2, 2 + budget // 4)
        assert [spent(client, function, number) for number in oldest].count(BUILT) > budget // 8


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(120)
def test_many_signatures_under_a_budget_level_off(start_live: StartLive) -> None:
    """240 of them where 24 have room: memory, maps and descriptors, and only the oldest go."""
    churn(start_live("--max-executables", "24", "--cache-dir", "none"), 240, 24)


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(1800)
def test_many_more_signatures_under_a_budget_of_two_hundred(start_live: StartLive) -> None:
    """The same at the size of a real server."""
    churn(start_live("--max-executables", "200", "--cache-dir", "none"), 1200, 200)


@pytest.mark.slow
def test_what_was_dropped_comes_back_from_disk(start_live: StartLive) -> None:
    """By a load: nothing is traced, lowered or compiled a second time."""
    server = start_live("--max-executables", "4")
    with connect(server.unix) as client:
        function = scaled(client, 5)
        for number in range(1, 13):
            call(function, number)
        until(lambda: len(records(server.directory, "calls")) == 12)
        assert client.statistics().executables == 4
        for number in (1, 2, 3):
            assert spent(client, function, number) == LOADED
            assert spent(client, function, number) == WARM
        assert client.statistics().executables == 4


@pytest.mark.soak
def test_the_bytes_of_programs_are_a_budget_too(start_live: StartLive) -> None:
    """A server that may keep next to nothing still answers, and keeps next to nothing."""
    server = start_live("--program-bytes", "1M", "--cache-dir", "none")
    with connect(server.unix) as client:
        function = scaled(client, 7)
        for number in range(1, 11):
            call(function, number)
        # four of the least size; more, as far as the process has not even grown by that
        assert 1 <= client.statistics().executables <= 7


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="maps are a limit of Linux")
def test_a_server_that_may_fill_few_maps_keeps_few_programs(start_live: StartLive) -> None:
    """Its share is used up by what it has loaded at its start."""
    server = start_live("--map-share", "0.001", "--cache-dir", "none")
    with connect(server.unix) as client:
        function = scaled(client, 9)
        for number in range(1, 6):
            call(function, number)
        assert client.statistics().executables == 1


@pytest.mark.soak
def test_a_call_that_no_machine_has_room_for_says_what_uses_the_memory(
    start_live: StartLive,
) -> None:
    """With a typed error at the client; the next call is answered."""

    def enormous(x: Any) -> Any:
        import jax.numpy as jnp

        return jnp.zeros(1 << 44, jnp.float32) + x

    server = start_live("--cache-dir", "none")
    with connect(server.unix) as client:
        modest = scaled(client, 2)
        call(modest, 3)
        with pytest.raises(OutOfMemory) as caught:
            client.persistent_call(enormous, results="numpy")(np.float32(1))
        text = str(caught.value)
        assert "Out of memory allocating 70368744177664 bytes" in text
        assert re.search(r"2 programs of .* the largest: .*enormous with", text)
        assert "The machine has" in text
        assert text.endswith("or free what other clients hold.")
        call(modest, 3)
