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


INHERITED = {"PATH": "/bin", PREALLOCATE: "false", BEFORE: "0.3", "CUDA_VISIBLE_DEVICES": "1"}
OTHER_JAX = {"JAX_PLATFORMS": "cuda", "JAX_PLATFORM_NAME": "gpu", "HOME": "/h"}
ENVIRONMENTS: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, str]]] = {
    "as it is by default: jax's own variables work": ({}, INHERITED, INHERITED),
    "no memory ahead where nobody asked for the server": (
        {"auto": True},
        {},
        {PREALLOCATE: "false"},
    ),
    "the user's word counts more": ({"auto": True}, {PREALLOCATE: "true"}, {PREALLOCATE: "true"}),
    "an option counts most": (
        {"auto": True, "preallocate": True},
        {PREALLOCATE: "false"},
        {PREALLOCATE: "true"},
    ),
    "also against it": ({"preallocate": False}, {PREALLOCATE: "true"}, {PREALLOCATE: "false"}),
    "several workers would not fit": ({"worker_per_principal": True}, {}, {PREALLOCATE: "false"}),
    "the fraction under one name, as jax refuses two": (
        {"device_memory_fraction": 0.4},
        {BEFORE: "0.9", FRACTION: "0.8"},
        {FRACTION: "0.4"},
    ),
    "devices as nvidia-smi counts them": (
        {"devices": "2,0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "2,0"},
    ),
    "no settings of libraries: clients have their own": (
        {},
        {"EQX_ON_ERROR": "nan", "FLAX_PROFILE": "1", "JAXTYPING_DISABLE": "1", "HOME": "/h"},
        {"HOME": "/h"},
    ),
    "no device, whatever the environment says": (
        {"no_device": True},
        OTHER_JAX,
        {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "HOME": "/h"},
    ),
}


@pytest.mark.parametrize("what", ENVIRONMENTS)
def test_what_a_worker_is_told(what: str) -> None:
    """In its environment."""
    options, inherited, expected = ENVIRONMENTS[what]
    assert worker_environment(ServerOptions(**options), inherited) == expected


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
