from __future__ import annotations

import importlib
import json
import os
import platform
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
    if sys.platform == "linux":
        lines = found.facts["cpu"].splitlines()
        assert any(line.startswith(("flags: ", "Features: ")) for line in lines)
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


Change = Callable[[pytest.MonkeyPatch, Path], object]


def patched(target: Any, name: str, value: Any) -> Change:
    """Puts something else in the place of an attribute."""
    return lambda patch, _: patch.setattr(target, name, value)


def installed(name: str, **files: str) -> Change:
    """Installs a distribution, and another one that is nothing to anybody."""

    def install(patch: pytest.MonkeyPatch, folder: Path) -> None:
        (folder / "jax_md-1.0.dist-info").mkdir()
        info = folder / f"{name}.dist-info"
        info.mkdir()
        for file, text in files.items():
            (info / file.replace("__", ".")).write_text(text)
        patch.syspath_prepend(str(folder))

    return install


def backend(**changed: Any) -> Change:
    """The first device, and its backend, say something else."""

    def change(patch: pytest.MonkeyPatch, _: Path) -> None:
        real = jax.devices()[0]
        facts: dict[str, Any] = {
            "id": real.id,
            "device_kind": real.device_kind,
            "platform": real.client.platform,
            "platform_version": real.client.platform_version,
            **changed,
        }
        device = SimpleNamespace(**facts, client=SimpleNamespace(**facts))
        patch.setattr("jax.devices", lambda: [device, *jax.local_devices()[1:]])

    return change


def other_driver(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """There is one, which compiles as well."""
    (folder / "version").write_text("NVRM version: 570.1\n")
    patch.setattr(module, "_DRIVER", str(folder / "version"))


def variable(name: str) -> Change:
    """Sets a variable of the environment, whether jax knows of it or not."""
    return lambda patch, _: patch.setenv(name, "--xla_something=7")


PLUGIN = {
    "METADATA": "Metadata-Version: 2.1\nName: some-chip\nVersion: 1.2\n",
    "entry_points__txt": "[jax_plugins]\nchip = some_chip.plugin\n",
}
OTHER_PYTHON = SimpleNamespace(
    **vars(sys) | {"implementation": SimpleNamespace(cache_tag="cpython-399")}
)
CHANGES: dict[str, tuple[Change, str]] = {
    "format of the store": (patched(module, "FORMAT", -1), "format"),
    "protocol": (patched(module, "PROTOCOL_VERSION", -1), "protocol"),
    "python": (patched(module, "sys", OTHER_PYTHON), "python"),
    "machine": (patched(platform, "machine", lambda: "riscv128"), "machine"),
    "driver": (other_driver, "driver"),
    "plugin": (installed("some_chip-1.2", **PLUGIN), "plugin chip"),
    "id": (backend(id=1), "devices"),
    "kind of device": (backend(device_kind="H200"), "devices"),
    "capability": (backend(compute_capability="9.0"), "devices"),
    "platform": (backend(platform="gpu"), "platform"),
    "version of the platform": (backend(platform_version="cuda 12090"), "platform_version"),
    **{
        name: (patched(importlib.import_module(name), "__version__", "99.9"), name)
        for name in ("jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "opt_einsum")
    },
    **{
        name: (installed(f"{name}-9.8.7"), f"distribution {name}")
        for name in ("jax_cuda12_plugin", "jax_cuda12_pjrt", "libtpu", "nvidia_cudnn_cu12")
    },
    **{
        name: (variable(name), name)
        for name in ("XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
    },
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_compiles_or_is_compiled_for_counts(
    others: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    """Each is told by its own fact."""
    change, fact = CHANGES[what]
    change(monkeypatch, tmp_path)
    assert others() == {fact}
    if what == "plugin":
        assert target().facts[fact] == "some_chip.plugin 1.2"


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


def test_without_proc_there_are_other_facts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever Python knows of the processor."""
    monkeypatch.setattr(module, "_CPU", str(tmp_path / "none"))
    monkeypatch.setattr("platform.processor", lambda: "arm")
    assert target().facts["cpu"] == "arm"


EFFECTIVE = sorted(set(jax.config.values) - module._WITHOUT_EFFECT)


def test_settings_that_may_change_a_program_count(
    others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every one that is not known to be without effect, also of a newer jax."""
    names = {*EFFECTIVE, "jax_quantum"}
    values = {**jax.config.values, **dict.fromkeys(names, "another value")}
    monkeypatch.setattr(
        module, "jax", SimpleNamespace(**vars(jax) | {"config": SimpleNamespace(values=values)})
    )
    assert others() == names


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

KEEP_FILES = """
from jaxd_server.jax_compat.compilation_cache import install
from jaxd_server.compilation.disk_cache.compile_target import target
before = target()
assert install(None, "/nowhere")
print(target() == before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "said"), [(KEEP_FILES, "True\n"), (OF_A_CLIENT, "True\nFalse\n")]
)
def test_what_acts_where_it_is_or_travels_does_not_count(program: str, said: str) -> None:
    """Where jax keeps files, and the settings of a client's process; others count."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == said
