"""A hundred lives of workers: killed and replaced, ten to a server, and nothing stays behind."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from jaxd import connect
from jaxd_protocol.base.process import lock_or_close
from tests import chosen_platform
from tests.end_to_end.steps import kill
from tests.gpu.nvidia import Gpu, falls_to, gpus
from tests.levels import Levels
from tests.live_server import LiveServer
from tests.server.staging import until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LIVES = 2 if chosen_platform.is_cpu() else 10
SERVERS = 1 if chosen_platform.is_cpu() else 10
CONTEXT_MIB, NOISE_MIB = 3000, 200
X = np.linspace(0, 1, 1 << 20, dtype=np.float32)


def _restart(server: LiveServer) -> None:
    done = server.run(
        "import sys; from jaxd.cli.__main__ import main; sys.exit(main(sys.argv[1:]))",
        *("restart", "--server", server.unix),
    )
    assert done.returncode == 0, done.stderr


def _left_in_memory() -> set[str]:
    """Folders there whose servers have ended; other servers on this machine lock their own."""
    found = {os.path.join("/dev/shm", name) for name in os.listdir("/dev/shm") if "jaxd" in name}
    return {path for path in found if not _is_locked(path)}


def _is_locked(path: str) -> bool:
    try:
        file = lock_or_close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return True  # until just now
    if file is not None:
        os.close(file)
    return file is None


@pytest.mark.parametrize("number", range(SERVERS))
def test_nothing_is_left_of_workers(number: int, start_live: Callable[..., LiveServer]) -> None:
    """Every second one is killed with an array on the device, the others are replaced in order.

    Each loads what it needs. The host has as many files and threads after the last as after the
    first, and the device is as empty at the end as before.
    """
    before: list[Gpu] = gpus()
    idle_mib = sum(each.used_mib for each in before)
    left = _left_in_memory()
    server = start_live("--no-preallocate")
    host: list[Levels] = []
    with connect(server.unix) as client:
        step = client.persistent_call(lambda x: (x * 2).sum())
        scale = client.persistent_call(lambda x: x * 3)
        client.persistent_call(lambda x: x).warm(X)
        for life in range(LIVES):
            assert float(step(X)) == pytest.approx(X.size, rel=1e-3)
            held = scale.remote(X)
            assert float(held[-1]) == 3.0
            if life % 2:
                kill(server)
            else:
                del held
                client.persistent_call(lambda x: x).warm(X)
                until(lambda: client.statistics().values == 0)
                _restart(server)
            assert client.statistics().compiles == 0 or life == 0
            host.append(Levels.of(server.process.pid))
            if before:
                assert falls_to(idle_mib + CONTEXT_MIB)
    assert host[-1].files <= host[0].files + 1
    assert host[-1].threads <= host[0].threads + 1
    assert server.close() == 0
    assert _left_in_memory() <= left
    assert not before or falls_to(idle_mib + NOISE_MIB)
