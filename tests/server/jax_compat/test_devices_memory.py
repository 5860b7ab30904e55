from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxd_protocol.pytree import Leaf
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.jax_compat.devices import all_devices_bytes, device_bytes_limit, in_words
from jaxd_server.processes.worker.status import memory_in_use
from jaxd_server.runtime.system_memory import machine_bytes
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import SessionValues, Value
from tests.server.builds import executable


def sized(name: str, host_bytes: int, device_bytes: int = 0) -> Executable:
    """One whose program takes that much."""
    one = executable(name=name)
    one.program.host_bytes, one.program.device_bytes = host_bytes, device_bytes
    return one


@pytest.fixture
def no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other tests do not count."""
    monkeypatch.setattr(jax, "live_arrays", list)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (64 << 40, "64.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_sizes_are_said_as_people_say_them(size: int, words: str) -> None:
    """In the largest unit that fits."""
    assert in_words(size) == words


def test_a_cpu_has_the_memory_of_the_machine() -> None:
    """It says nothing of its own."""
    assert device_bytes_limit() == machine_bytes()


def test_the_largest_programs_are_named(no_arrays: None) -> None:
    """Three of them, each once, also when functions share it."""
    held = [sized(f"f{size}", size << 20) for size in (1, 4, 2, 3)]
    twin = executable(name="twin")
    twin.program = held[1].program
    text = memory_in_use([*held, twin], ValueStore())
    assert "4 programs of 10.0 MiB" in text
    assert "the largest: f4 with 4.0 MiB, f3 with 3.0 MiB, f2 with 2.0 MiB." in text


def test_what_is_somebody_elses_is_not_named(no_arrays: None) -> None:
    """Where programs are of several, whoever reads this may not know the others' functions."""
    held = [sized("alices", 4 << 20), sized("bobs", 2 << 20)]
    held[0].principal, held[1].principal = "account:alice", "account:bob"
    text = memory_in_use(held, ValueStore())
    assert "2 programs of 6.0 MiB" in text
    assert "alices" not in text
    assert "the largest: bobs" in memory_in_use(held[1:], ValueStore())


def test_arrays_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that jax has, whoever made them."""
    array = jnp.zeros(1 << 18, jnp.float32)
    monkeypatch.setattr(jax, "live_arrays", lambda: [array])
    text = memory_in_use([], ValueStore())
    assert text.startswith("Now 1 array of 1.0 MiB and 0 programs of 0 B are in memory. ")


def test_what_clients_hold_is_counted(no_arrays: None) -> None:
    """And where it is listed is said."""
    values = ValueStore()
    values.add(SessionValues("uid:1"), {1: Value(object(), Leaf("A", "uint8", (3072,)), 3072, "f")})
    text = memory_in_use([], values)
    assert text.endswith("Values that clients hold take 3.0 KiB in 1; `jaxd values` lists them.")
    assert "Values" not in memory_in_use([], ValueStore())


def test_what_the_device_says_of_itself_is_passed_on(
    no_arrays: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much it has and how much is in use; a program counts with what it takes there."""

    class Device:
        def memory_stats(self) -> dict[str, Any]:
            """As an accelerator's."""
            return {"bytes_in_use": 3 << 30, "bytes_limit": 4 << 30}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    text = memory_in_use([sized("f", 9 << 20, 1 << 20)], ValueStore())
    assert text.endswith("f with 1.0 MiB. Of the device's 4.0 GiB, 3.0 GiB are in use.")
    assert device_bytes_limit() == 4 << 30


def test_of_several_devices_each_is_named(no_arrays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be only one of them that is full."""

    class Device:
        def __init__(self, used: int) -> None:
            self.used = used

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 1 << 30, "bytes_in_use": self.used}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device(1 << 29), Device(0)])
    text = memory_in_use([], ValueStore())
    assert text.endswith("In use are 512.0 MiB of 1.0 GiB on device 0, 0 B of 1.0 GiB on device 1.")
    assert all_devices_bytes() == 2 << 30
