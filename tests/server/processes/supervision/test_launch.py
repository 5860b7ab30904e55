"""What a worker is told of its devices."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import Counter
from typing import Any

import pytest

from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.launch import launch, worker_environment
from jaxd_server.processes.supervision.tenant_settings import Tenant
from tests.server.staging import until

FRACTION, BEFORE = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


def test_by_default_the_environment_stays_as_it_is() -> None:
    """jax's own variables work for a server as for any process."""
    inherited = {"PATH": "/bin", PREALLOCATE: "false", BEFORE: "0.3", "CUDA_VISIBLE_DEVICES": "1"}
    assert worker_environment(ServerOptions(), inherited) == inherited


@pytest.mark.parametrize(
    ("auto", "inherited", "expected"),
    [(True, {}, "false"), (True, {PREALLOCATE: "true"}, "true"), (False, {}, None)],
)
def test_a_server_that_nobody_asked_for_does_not_preallocate(
    auto: bool, inherited: dict[str, str], expected: str | None
) -> None:
    """It would take most of a GPU; the user's own word counts more."""
    assert worker_environment(ServerOptions(auto=auto), inherited).get(PREALLOCATE) == expected


@pytest.mark.parametrize(("said", "expected"), [(True, "true"), (False, "false")])
def test_an_option_counts_more_than_the_environment(said: bool, expected: str) -> None:
    """Also for an auto-started server."""
    options = ServerOptions(preallocate=said, auto=True)
    inherited = {PREALLOCATE: "true" if expected == "false" else "false"}
    assert worker_environment(options, inherited)[PREALLOCATE] == expected


def test_the_fraction_is_said_under_one_name_only() -> None:
    """jax refuses to start when it finds the older name beside the newer one."""
    shared = ServerOptions(worker_per_principal=True)  # and several would not fit
    assert worker_environment(shared, {})["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    options = ServerOptions(device_memory_fraction=0.4)
    assert worker_environment(options, {BEFORE: "0.9", FRACTION: "0.8"}) == {FRACTION: "0.4"}


def test_devices_are_counted_as_nvidia_smi_counts_them() -> None:
    """CUDA's own order is by speed, and another one on another machine."""
    assert worker_environment(ServerOptions(devices="2,0"), {"CUDA_VISIBLE_DEVICES": "1"}) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,0",
    }


def test_jax_reads_these_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are jax's; this notices when they move."""
    from jaxlib import xla_client

    for name in (FRACTION, BEFORE, PREALLOCATE):
        monkeypatch.delenv(name, raising=False)
    options = ServerOptions(device_memory_fraction=0.4, preallocate=False)
    for name, value in worker_environment(options, {}).items():
        monkeypatch.setenv(name, value)
    said = xla_client.generate_pjrt_gpu_plugin_options()
    assert said["memory_fraction"] == 0.4
    assert said["preallocate"] is False


ALICE = Tenant("account:alice", "none")


def files() -> Counter[str]:
    """What this process has open."""
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return Counter(os.readlink(path) for path in paths if os.path.lexists(path))


@pytest.mark.parametrize(
    "what",
    [
        "jaxd_server.runtime.flight_recorder.map_file",
        "socket.socketpair",
        "os.pipe",
        "os.pipe 2",
        "os.memfd_create",
        "os.lseek",
        "threading.Thread.start",
        "subprocess.Popen",
    ],
)
def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Whatever there was not enough of, there is none the less of it afterwards."""
    name, _, later = what.partition(" ")
    module, _, attribute = name.rpartition(".")
    first = [getattr(sys.modules[module], attribute)] if later else []

    def fail(*args: Any, **kwargs: Any) -> Any:
        if first:
            return first.pop()(*args, **kwargs)
        if what == "threading.Thread.start":
            raise RuntimeError("can't start new thread")
        raise OSError(errno.EMFILE, "Too many open files")

    before, threads = files(), {*threading.enumerate()}
    with monkeypatch.context() as patch:
        patch.setattr(name, fail)
        with pytest.raises(OSError, match=r"Too many|no thread"):
            launch([sys.executable], ServerOptions(), [], tenant=ALICE)
    until(lambda: threads.issuperset(threading.enumerate()))  # some may be about to end
    assert not files() - before


def test_without_a_device_jax_takes_none() -> None:
    """Whatever the environment says: the devices are those of the processes that call."""
    inherited = {"JAX_PLATFORMS": "cuda", "JAX_PLATFORM_NAME": "gpu", "HOME": "/h"}
    found = worker_environment(ServerOptions(no_device=True), inherited)
    assert found == {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "HOME": "/h"}
