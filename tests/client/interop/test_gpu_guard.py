"""A client keeps off the accelerator of a server on its machine. There is none here: it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import jaxd
from jaxd.connection import connect
from jaxd.errors import SharedDeviceWarning
from jaxd.interop import gpu_guard, jax_runtime
from jaxd.interop.gpu_guard import keep_jax_off_gpu
from jaxd_protocol.base.process import machine_id
from tests.client.fresh_process import in_a_fresh_process
from tests.live_server import LiveServer

GPU_HERE: dict[str, Any] = {"platform": "gpu", "machine": machine_id(), "visible_devices": None}

UNTOLD = {"JAX_PLATFORMS": "", "JAX_PLATFORM_NAME": ""}

PRELUDE = f"""
import json, os, sys
from jaxd.interop.gpu_guard import keep_jax_off_gpu
GPU_HERE = {GPU_HERE!r}
"""


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has said what jax is to use."""
    for name in (*UNTOLD, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to jax, instead of doing it to the one of all tests."""
    done: list[str] = []
    monkeypatch.setattr(gpu_guard, "prefer_cpu", lambda: done.append("cpu"))
    monkeypatch.setattr(gpu_guard, "started_platform", lambda: None)
    return done


def test_before_jax_has_started_it_is_told_to_use_the_cpu(chosen: list[str]) -> None:
    """And nobody has to be warned."""
    assert keep_jax_off_gpu(GPU_HERE) is None
    assert chosen == ["cpu"]


@pytest.mark.parametrize(
    "difference",
    [{"platform": "cpu"}, {"machine": "another"}, {"machine": None}, {"visible_devices": "0"}],
)
def test_nothing_is_done_where_there_is_nothing_to_keep_off(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch, difference: dict[str, Any]
) -> None:
    """A server on CPU, on another machine, or on other GPUs than this process."""
    if "visible_devices" in difference:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(gpu_guard, "started_platform", lambda: "gpu")
    assert keep_jax_off_gpu(GPU_HERE | difference) is None
    assert chosen == []


def test_the_same_visible_devices_are_nobodys_choice(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system gives both processes the same."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert keep_jax_off_gpu(GPU_HERE | {"visible_devices": "0"}) is None
    assert chosen == ["cpu"]


def test_who_says_what_jax_is_to_use_is_obeyed(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that is the server's GPU."""
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(gpu_guard, "started_platform", lambda: "gpu")
    assert keep_jax_off_gpu(GPU_HERE) is None
    assert chosen == []


def test_when_it_is_too_late_that_is_said(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do about it; jax that runs on the CPU is in nobody's way."""
    monkeypatch.setattr(gpu_guard, "started_platform", lambda: "gpu")
    said = keep_jax_off_gpu(GPU_HERE)
    assert said is not None
    assert "JAX_PLATFORMS=cpu" in said
    assert chosen == []
    monkeypatch.setattr(gpu_guard, "started_platform", lambda: "cpu")
    assert keep_jax_off_gpu(GPU_HERE) is None


@pytest.mark.slow
def test_jax_that_is_imported_later_uses_the_cpu_too() -> None:
    """Once, however often a client connects; its module looks as it always does."""
    program = (
        PRELUDE
        + """
keep_jax_off_gpu(GPU_HERE), keep_jax_off_gpu(GPU_HERE)
assert "jax" not in sys.modules
finders = [one for one in sys.meta_path if type(one).__name__ == "_SelectsCpu"]
import importlib.util
assert importlib.util.find_spec("jax").name == "jax"
assert importlib.util.find_spec("no_such_module") is None
import jax
print(json.dumps([
    len(finders), jax.config.jax_platforms, jax.__spec__.loader is jax.__loader__,
    type(jax.__loader__).__name__, os.environ.get("JAX_PLATFORMS"), jax.default_backend(),
]))
"""
    )
    assert in_a_fresh_process(program, **UNTOLD) == [
        *(1, "cpu", True, "SourceFileLoader", "", "cpu")
    ]


@pytest.mark.slow
def test_jax_that_is_imported_already_uses_the_cpu_unless_it_was_told() -> None:
    """In the program itself, as well as in the environment."""
    program = (
        PRELUDE
        + """
import jax
from jaxd.interop.jax_runtime import started_platform
before = started_platform()
keep_jax_off_gpu(GPU_HERE)
first = jax.config.jax_platforms
jax.config.update("jax_platforms", "tpu,cpu")
keep_jax_off_gpu(GPU_HERE)
print(json.dumps([before, first, jax.config.jax_platforms]))
"""
    )
    assert in_a_fresh_process(program, **UNTOLD) == [None, "cpu", "tpu,cpu"]


def test_jax_says_what_it_has_started() -> None:
    """A private name of jax, which may move."""
    import jax

    jax.devices()
    assert jax_runtime.started_platform() == "cpu"


def test_a_connection_looks(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The welcome says all that counts, and a warning appears in the line that calls."""
    welcomes: list[Mapping[str, Any]] = []
    really = connect.open_connection

    def open_connection(*args: Any) -> Any:
        connection, welcome = really(*args)
        return connection, welcome | {"platform": "gpu"}

    def look(welcome: Mapping[str, Any]) -> str:
        welcomes.append(welcome)
        return "it is taken"

    monkeypatch.setattr(connect, "open_connection", open_connection)
    monkeypatch.setattr(gpu_guard, "keep_jax_off_gpu", look)
    with jaxd.connect(live.unix) as client:
        add = client.persistent_call(lambda x: x + 1)
        with pytest.warns(SharedDeviceWarning, match="it is taken") as seen:
            add(1.0)
    assert [one.filename for one in seen] == [__file__]
    assert [(one["machine"], one["visible_devices"]) for one in welcomes] == [(machine_id(), None)]


def test_a_server_on_a_cpu_is_in_nobodys_way(live: LiveServer) -> None:
    """Its clients do not even load what would look."""
    program = """
import sys, jaxd
with jaxd.connect(sys.argv[1]) as client:
    client.statistics()
print("jaxd.interop.gpu_guard" in sys.modules)
"""
    assert live.run(program, live.unix).stdout == "False\n"
