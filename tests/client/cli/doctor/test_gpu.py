from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.commands.doctor import all_checks
from jaxd.cli.doctor import gpu
from jaxd.cli.doctor.context import Check
from jaxd.connection.settings import Settings
from jaxd_protocol.network.addresses import Address
from jaxd_server.config.options import parse_arguments
from tests.client.cli.doctor.contexts import FakeContext, gpu_machine

CPU_JAX = {"jax": "0.11.2", "jaxlib": "0.11.2"}
CUDA13 = CPU_JAX | {"jax-cuda13-plugin": "0.11.2"}
CUDA12 = CPU_JAX | {"jax-cuda12-plugin": "0.11.2"}


def machine(root: str, installed: dict[str, str] = CUDA13, **more: Any) -> FakeContext:
    """One that would serve itself, with nothing in its environment."""
    return FakeContext(Settings(), root=root, installed=installed, **{"environment": {}, **more})


@pytest.fixture(autouse=True)
def _no_server(runtime: Path) -> None:
    """No server runs."""


def test_without_a_gpu_there_is_nothing_to_say(tmp_path: Path) -> None:
    """Nor where the server is another machine's."""
    assert not gpu.has_gpu(machine(str(tmp_path)))
    away = FakeContext(
        Settings(server=Address.tls("h")), root=gpu_machine(tmp_path), installed=CUDA13
    )
    assert not gpu.has_gpu(away)
    assert gpu.driver not in all_checks(away)


def test_a_missing_driver(tmp_path: Path) -> None:
    """The hardware is there, and the kernel does not know it."""
    found = gpu.driver(machine(gpu_machine(tmp_path, driver="")))
    assert found.state == "bad"
    assert "apt-get install nvidia-driver" in found.advice


def test_a_container_without_the_device(tmp_path: Path) -> None:
    """The kernel has the driver, and /dev is empty."""
    found = gpu.driver(machine(gpu_machine(tmp_path, given=False)))
    assert found.state == "bad"
    assert "docker run --gpus all" in found.advice


def test_a_driver(tmp_path: Path) -> None:
    """Also as the open kernel modules name it."""
    root = gpu_machine(tmp_path)
    assert gpu.driver(machine(root)) == Check("gpu driver", "ok", "580.65.06")
    version = tmp_path / "proc/driver/nvidia/version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1.2  Release\n"
    )
    assert gpu.driver(machine(root)) == Check("gpu driver", "ok", "570.1.2")


@pytest.mark.parametrize(
    ("driver", "installed", "state", "hint"),
    [
        ("580.65.06", CUDA13, "ok", ""),
        ("570.1.2", CUDA12, "ok", ""),
        ("580.65.06", CPU_JAX, "bad", "pip install 'jaxd[server,cuda13]'"),
        ("570.1.2", CPU_JAX, "bad", "pip install 'jaxd[server,cuda12]'"),
        ("570.1.2", CUDA13, "bad", "pip install 'jaxd[server,cuda12]'"),
        ("470.1", CUDA12, "bad", "Update the driver."),
        ("580.65.06", CUDA12 | CUDA13, "bad", "pip uninstall jax-cuda12-plugin"),
        ("580.65.06", CUDA13 | {"jaxlib": "0.10.2"}, "bad", "--upgrade"),
    ],
)
def test_the_wrong_cuda(
    tmp_path: Path, driver: str, installed: dict[str, str], state: str, hint: str
) -> None:
    """None, too new for the driver, two at once, or of another jax; with what to install."""
    found = gpu.plugin(machine(gpu_machine(tmp_path, driver=driver), installed))
    assert found is not None
    assert found.state == state
    assert hint in found.advice


def test_without_jax_no_plugin_is_missing(tmp_path: Path) -> None:
    """Another check says that jax is."""
    assert gpu.plugin(machine(gpu_machine(tmp_path), {})) is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [("JAX_PLATFORMS", "cpu"), ("CUDA_VISIBLE_DEVICES", ""), ("CUDA_VISIBLE_DEVICES", "-1")],
)
def test_a_gpu_that_a_variable_hides(tmp_path: Path, variable: str, value: str) -> None:
    """With the command that ends it."""
    found = gpu.jax_sees_gpu(machine(gpu_machine(tmp_path), environment={variable: value}))
    assert found == Check(
        "gpu for jax", "bad", f"hidden by {variable}={value!r}", f"Run: unset {variable}"
    )


@pytest.mark.parametrize(
    ("said", "state"), [('["gpu", "gpu"]', "ok"), ('warnings\n["cpu"]', "bad"), (None, "bad")]
)
def test_whether_jax_finds_it(tmp_path: Path, said: str | None, state: str) -> None:
    """Asked in a process of its own, as a server would be; one that fails has found none."""
    says = {} if said is None else {"import jax": said}
    harmless = {"JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": "1"}
    found = gpu.jax_sees_gpu(machine(gpu_machine(tmp_path), environment=harmless, says=says))
    assert found is not None
    assert found.state == state
    assert ("jax.devices" in found.advice) is (state == "bad")


def test_another_process_on_the_gpu(tmp_path: Path) -> None:
    """Is named with what it holds, and how to live beside it."""
    root = gpu_machine(tmp_path)
    alone = gpu.other_processes(machine(root, says={"compute-apps": ""}))
    assert alone == Check("gpu users", "ok", "no other process")
    found = gpu.other_processes(machine(root, says={"compute-apps": "4242, python, 61234\n"}))
    assert found.state == "note"
    assert found.found == "process 4242 (python, 61234 MiB)"
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in found.advice


def test_how_much_memory_a_server_takes(tmp_path: Path) -> None:
    """Three quarters, unless told otherwise."""
    root = gpu_machine(tmp_path)
    by_itself = gpu.preallocation(machine(root))
    assert by_itself is not None
    assert by_itself.state == "note"
    assert "0.75" in by_itself.found
    for option in ("--no-preallocate", "--device-memory-fraction"):
        assert option in by_itself.advice
    parse_arguments(["--no-preallocate", "--device-memory-fraction", "0.3"])  # it knows these
    half = gpu.preallocation(machine(root, environment={"XLA_CLIENT_MEM_FRACTION": "0.5"}))
    assert half is not None
    assert "0.5" in half.found
    told = machine(root, environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    assert gpu.preallocation(told) == Check("gpu memory", "ok", "taken as it is needed")


def test_little_shared_memory(tmp_path: Path) -> None:
    """Matters where several GPUs work together."""
    root = gpu_machine(tmp_path)
    (tmp_path / "dev/shm").mkdir()
    assert gpu.shared_memory(machine(root, says={"--query-gpu": "H200\n"})) is None
    two = machine(root, says={"--query-gpu": "H200\nH200\n"})
    enough = gpu.shared_memory(two)
    assert enough is not None
    assert enough.state == "ok"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "_MIN_SHM_BYTES", 1 << 60)
        little = gpu.shared_memory(two)
    assert little is not None
    assert "--shm-size" in little.advice
