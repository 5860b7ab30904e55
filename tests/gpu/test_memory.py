"""The memory of a GPU: who has it, how much of it, and that it is free again afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect, errors
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.gpu.nvidia import MIB, Gpu, falls_to, used_mib
from tests.live_server import ROOT, LiveServer
from tests.server.host_process import ask

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]

StartLive = Callable[..., LiveServer]

X = np.linspace(0, 1, 64, dtype=np.float32)
CONTEXT_MIB = 3000
"""More than CUDA, its libraries and a few small programs take, and much less than any GPU has."""
NOISE_MIB = 200
"""By which two looks at an idle GPU may differ."""


def _filled(x: Any, count: int) -> Any:
    import jax.numpy as jnp

    return jnp.full(count, x, "f4")


def _held(client: Client, mib: int) -> Any:
    """An array of that size on the device."""
    make = client.persistent_call(_filled, static_argnames="count", results="remote")
    return make(1.0, count=mib * MIB // 4).block_until_ready()


def _answers(client: Client) -> bool:
    return bool(client.persistent_call(lambda x: x * 2)(X)[-1] == 2.0)


def test_out_of_memory_is_an_error_of_one_call(start_live: StartLive, gpu: Gpu) -> None:
    """It says so, the worker lives, what was held is there, and so is the rest of the memory."""
    server = start_live("--no-preallocate", "--value-bytes", str(gpu.total_mib * MIB))
    with connect(server.unix) as client:
        kept = _held(client, 64)
        epoch = client.statistics().epoch
        for _ in range(3):
            with pytest.raises((errors.OutOfMemory, errors.ValuesFull)):
                _held(client, 2 * gpu.total_mib)
        assert _answers(client)
        half = _held(client, gpu.total_mib // 2)
        assert float(half[-1]) == float(kept[-1]) == 1.0
        assert client.statistics().epoch == epoch


def test_a_killed_worker_frees_the_device(start_live: StartLive, gpu: Gpu) -> None:
    """With five eighths of it in use: the next worker has room for as much."""
    server = start_live("--no-preallocate", "--value-bytes", str(gpu.total_mib * MIB))
    much = gpu.total_mib * 5 // 8
    with connect(server.unix) as client:
        for _ in range(2):
            held = _held(client, much)
            assert used_mib() >= gpu.used_mib + much
            os.kill(server.worker_pid(), signal.SIGKILL)
            with pytest.raises(errors.ValuesLost):
                float(held[0])
            assert _answers(client)
            assert falls_to(gpu.used_mib + CONTEXT_MIB)
    assert server.close() == 0
    assert falls_to(gpu.used_mib + NOISE_MIB)


def test_what_is_let_go_is_free_on_the_device(start_live: StartLive, gpu: Gpu) -> None:
    """For the next array: twenty of a fifth of the device, one after the other."""
    server = start_live("--no-preallocate", "--value-bytes", str(gpu.total_mib * MIB))
    with connect(server.unix) as client:
        for _ in range(20):
            held = _held(client, gpu.total_mib // 5)
            assert float(held[-1]) == 1.0
            del held
        assert _answers(client)


def test_a_resting_worker_gives_the_device_back(start_live: StartLive, gpu: Gpu) -> None:
    """All of it, what the driver takes for a process included; the next call has it again."""
    server = start_live("--rest-after-s", "0.5")
    control = control_path(Address.parse(server.unix))
    for _ in range(2):
        with connect(server.unix) as client:
            assert _answers(client)
            epoch = client.statistics().epoch
        server.wait_for("worker_exited", epoch=epoch)
        assert ask(control, ask="status")["worker_state"] == "resting"
        assert falls_to(gpu.used_mib + NOISE_MIB)


def test_a_recycled_worker_frees_the_device(start_live: StartLive) -> None:
    """It hands over while a client calls on, none of whose calls fails; then there is one again."""
    idle_mib = used_mib()
    server = start_live("--no-preallocate", "--recycle-after-calls", "20")
    with connect(server.unix) as client:
        first = client.statistics().epoch
        while client.statistics().epoch == first:
            assert _answers(client)
        server.wait_for("worker_exited", epoch=first)
        assert _answers(client)
        assert falls_to(idle_mib + CONTEXT_MIB)


def test_a_server_takes_its_share_at_the_start(start_live: StartLive, gpu: Gpu) -> None:
    """A quarter, with `--device-memory-fraction 0.25`, and never more."""
    server = start_live("--preallocate", "--device-memory-fraction", "0.25")
    with connect(server.unix) as client:
        assert _answers(client)
        limit = client.devices()[0].bytes_limit / MIB
        assert limit == pytest.approx(gpu.total_mib / 4, rel=0.05)
        assert limit <= used_mib() - gpu.used_mib <= limit + CONTEXT_MIB
        with pytest.raises((errors.OutOfMemory, errors.ValuesFull)):
            _held(client, gpu.total_mib // 3)


def test_a_server_takes_memory_as_it_needs_it(start_live: StartLive, gpu: Gpu) -> None:
    """With `--no-preallocate` an idle one has little, and one that holds much has that."""
    server = start_live("--no-preallocate")
    with connect(server.unix) as client:
        assert _answers(client)
        assert used_mib() - gpu.used_mib < CONTEXT_MIB
        held = _held(client, gpu.total_mib // 4)
        assert used_mib() - gpu.used_mib >= gpu.total_mib // 4
        assert client.devices()[0].bytes_in_use >= gpu.total_mib // 4 * MIB
        assert float(held[0]) == 1.0


BESIDE = """
import sys
sys.path.insert(0, sys.argv[1])
import jaxd
from tests.gpu.nvidia import used_mib
double = jaxd.persistent_call(lambda x: x * 2)
assert double(4.0) == 8
before = used_mib()
import jax
import jax.numpy as jnp
assert float(jnp.ones(1 << 20).sum()) == 1 << 20
assert double(jnp.float32(4)) == 8
print(jax.default_backend(), used_mib() - before)
"""


def test_a_client_beside_the_server_leaves_it_the_device(start_live: StartLive, gpu: Gpu) -> None:
    """Its jax computes on the CPU and takes nothing of the GPU, unless it is told otherwise."""
    server = start_live("--no-preallocate")
    told = ("JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE")
    environment = {name: value for name, value in server.environment.items() if name not in told}
    done = subprocess.run(
        [sys.executable, "-c", BESIDE, str(ROOT)],
        env=environment,
        cwd=Path(server.directory),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    backend, taken = done.stdout.split()
    assert backend == "cpu"
    assert int(taken) < NOISE_MIB
