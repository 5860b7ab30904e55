from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxd_server.compilation.disk_cache import compile_target as module
from jaxd_server.compilation.disk_cache.compile_target import target
from jaxd_server.jax_compat.config import DEFAULTS
from tests.xla_flags import devices

PROGRAM = """
import json
from jaxd_server.compilation.disk_cache.compile_target import target
found = target()
print(json.dumps([found.digest, found.facts]))
"""


@cache
def in_a_process(**environment: str) -> tuple[str, dict[str, str]]:
    """Digest and facts of a process of its own."""
    output = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    digest, facts = json.loads(output)
    return digest, facts


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """The names of the facts that differ from those at the start of the test."""
    before = target()

    def differ() -> set[str]:
        now = target()
        names = before.facts.keys() | now.facts.keys()
        found = {name for name in names if before.facts.get(name) != now.facts.get(name)}
        assert (now.digest == before.digest) is (not found)
        return found

    assert differ() == set()
    return differ


def test_a_target_is_sixteen_hex_digits_and_what_they_stand_for() -> None:
    """The facts are words for people, and values for a JSON file."""
    found = target()
    assert len(bytes.fromhex(found.digest)) == 8
    assert found.facts["jax"] == jax.__version__
    assert found.facts["platform"] == jax.devices()[0].platform
    assert all(type(value) is str for value in found.facts.values())
    json.dumps(found.facts)


@pytest.mark.slow
def test_it_is_the_same_in_the_next_process() -> None:
    """Whatever its hash seed, its working directory, and what it tells people are."""
    quiet = in_a_process(PYTHONHASHSEED="1")
    loud = in_a_process(PYTHONHASHSEED="2", JAX_TRACEBACK_FILTERING="off", JAX_LOGGING_LEVEL="INFO")
    assert quiet == loud


@pytest.mark.slow
def test_the_number_of_devices_counts() -> None:
    """As a real process with two has it."""
    alone, facts = in_a_process(PYTHONHASHSEED="1")
    two, more = in_a_process(PYTHONHASHSEED="1", **devices(2))
    assert alone != two
    assert (facts["devices"], more["devices"]) == ("0 cpu", "0 cpu, 1 cpu")


@pytest.mark.slow
def test_jaxs_environment_counts() -> None:
    """Every variable that is a setting."""
    plain, _ = in_a_process(PYTHONHASHSEED="1")
    other, facts = in_a_process(PYTHONHASHSEED="1", JAX_DISABLE_MOST_OPTIMIZATIONS="true")
    assert plain != other
    assert facts["jax_disable_most_optimizations"] == "True"


def test_the_format_of_the_store_counts(others: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of another one are not even looked at."""
    monkeypatch.setattr(module, "FORMAT", -1)
    assert others() == {"format"}


def test_the_protocol_counts(others: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was packed for another one is not even looked at."""
    monkeypatch.setattr(module, "PROTOCOL_VERSION", -1)
    assert others() == {"protocol"}


def test_the_python_version_counts(others: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed functions hold bytecode."""
    other = SimpleNamespace(cache_tag="cpython-399")
    monkeypatch.setattr(module, "sys", SimpleNamespace(**vars(sys) | {"implementation": other}))
    assert others() == {"python"}


def test_the_machine_counts(others: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory may be shared between architectures."""
    monkeypatch.setattr("platform.machine", lambda: "riscv128")
    assert others() == {"machine"}


@pytest.mark.parametrize("name", ["jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "opt_einsum"])
def test_versions_count(others: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of whatever traces, compiles, or is called by programs: those that are loaded."""
    monkeypatch.setattr(f"{name}.__version__", "99.9")
    assert others() == {name}


def test_plugins_count(others: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that say that they are one, with their version."""
    folder = tmp_path / "some_chip-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-chip\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text("[jax_plugins]\nchip = some_chip.plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert others() == {"plugin chip"}
    assert target().facts["plugin chip"] == "some_chip.plugin 1.2"


@pytest.mark.parametrize(
    "name", ["jax_cuda12_plugin", "jax_cuda12_pjrt", "libtpu", "nvidia_cudnn_cu12"]
)
def test_native_libraries_count(
    others: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Those that compile for devices or run on them; others do not."""
    (tmp_path / f"{name}-9.8.7.dist-info").mkdir()
    (tmp_path / "jax_md-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert others() == {f"distribution {name}"}


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"id": 1}, "devices"),
        ({"device_kind": "H200"}, "devices"),
        ({"compute_capability": "9.0"}, "devices"),
        ({"platform": "gpu"}, "platform"),
        ({"platform_version": "cuda 12090"}, "platform_version"),
    ],
)
def test_what_the_backend_says_counts(
    others: Any, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], fact: str
) -> None:
    """Of itself, and of each device."""
    real = jax.devices()[0]
    facts: dict[str, Any] = {
        "id": real.id,
        "device_kind": real.device_kind,
        "platform": real.client.platform,
        "platform_version": real.client.platform_version,
        **changed,
    }
    device = SimpleNamespace(**facts, client=SimpleNamespace(**facts))
    monkeypatch.setattr("jax.devices", lambda: [device, *jax.local_devices()[1:]])
    assert others() == {fact}


def test_the_driver_counts(others: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It compiles as well."""
    (tmp_path / "version").write_text("NVRM version: 570.1\n")
    monkeypatch.setattr(module, "_DRIVER", str(tmp_path / "version"))
    assert others() == {"driver"}


CPU = """processor\t: 0
model name\t: {model}
cpu MHz\t\t: {mhz}
flags\t\t: sse {flag}

processor\t: 1
model name\t: {model}
"""


def test_model_and_features_of_the_processor_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its present frequency does not."""
    monkeypatch.setattr(module, "_CPU", str(tmp_path / "cpuinfo"))

    def digest(model: str = "EPYC", mhz: str = "2596.1", flag: str = "avx2") -> str:
        (tmp_path / "cpuinfo").write_text(CPU.format(model=model, mhz=mhz, flag=flag))
        return target().digest

    assert digest() == digest(mhz="3100.0")
    assert len({digest(), digest(model="Xeon"), digest(flag="avx512f")}) == 3


def test_the_processor_is_known_here() -> None:
    """On Linux, by its features."""
    if sys.platform != "linux":
        pytest.skip("there is no /proc")
    assert any(line.startswith(("flags: ", "Features: ")) for line in _cpu_lines())


def _cpu_lines() -> list[str]:
    return target().facts["cpu"].splitlines()


def test_without_proc_there_are_other_facts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever Python knows of the processor."""
    monkeypatch.setattr(module, "_CPU", str(tmp_path / "none"))
    monkeypatch.setattr("platform.processor", lambda: "arm")
    assert _cpu_lines() == ["arm"]


@pytest.mark.parametrize(
    "name", ["XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE"]
)
def test_variables_that_libraries_read_count(
    others: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whether jax knows of them or not."""
    monkeypatch.setenv(name, "--xla_something=7")
    assert others() == {name}


EFFECTIVE = sorted(set(jax.config.values) - module._WITHOUT_EFFECT)


@pytest.mark.parametrize("name", EFFECTIVE)
def test_settings_that_may_change_a_program_count(
    others: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Every one that is not known to be without effect."""
    values = {**jax.config.values, name: "another value"}
    monkeypatch.setattr(
        module, "jax", SimpleNamespace(**vars(jax) | {"config": SimpleNamespace(values=values)})
    )
    assert others() == {name}


def test_a_setting_of_a_newer_jax_counts(others: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has looked at what it does."""
    values = {**jax.config.values, "jax_quantum": True}
    monkeypatch.setattr(
        module, "jax", SimpleNamespace(**vars(jax) | {"config": SimpleNamespace(values=values)})
    )
    assert others() == {"jax_quantum"}


def test_the_settings_of_calls_are_among_those_that_count() -> None:
    """A server in which one of them is not at its default is another target."""
    assert set(DEFAULTS) <= set(EFFECTIVE)


def test_a_setting_that_is_really_changed_counts(others: Any) -> None:
    """Through jax's own interface."""
    before = jax.config.values["jax_threefry_gpu_kernel_lowering"]
    jax.config.update("jax_threefry_gpu_kernel_lowering", not before)
    try:
        assert others() == {"jax_threefry_gpu_kernel_lowering"}
    finally:
        jax.config.update("jax_threefry_gpu_kernel_lowering", before)


KEEP_FILES = """
from jaxd_server.jax_compat.compilation_cache import install
from jaxd_server.compilation.disk_cache.compile_target import target
before = target()
assert install(None, "/nowhere")
print(target() == before)
"""


@pytest.mark.slow
def test_where_jax_keeps_files_does_not_count() -> None:
    """The target is known before jax is told about the store, and the same after."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", KEEP_FILES],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


OF_A_CLIENT = """
import jax
from jaxd_server.compilation.disk_cache.compile_target import target
from jaxd_server.jax_compat.config import set_default_settings
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_log_compiles", True)
jax.config.update("jax_default_device", jax.devices()[0])
found = target(is_of_client=True)
jax.config.update("jax_log_compiles", False)
jax.config.update("jax_default_device", None)
set_default_settings()
print(found == target())
jax.config.update("jax_cpu_collectives_implementation", "mpi")
print(found == target(is_of_client=True))
"""


@pytest.mark.slow
def test_that_of_a_clients_process_is_that_of_a_server() -> None:
    """Whatever its settings are that travel, or act where it is; others count."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", OF_A_CLIENT],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\nFalse\n"
