"""Which device a call runs on, with devices that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.pytree import Leaf
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.jax_compat.devices import Devices, all_devices_bytes, device_bytes_limit, in_words
from jaxd_server.processes.worker.status import memory_in_use
from jaxd_server.rpc.sessions import Session
from jaxd_server.runtime.system_memory import machine_bytes
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import SessionValues, Value
from tests.server.builds import executable


def device(number: int, kind: str = "H200", in_use: int = 0) -> Any:
    """A GPU that says what of its memory is in use."""
    stats = {"bytes_in_use": in_use, "bytes_limit": 100}
    return SimpleNamespace(
        id=number + 10, platform="gpu", device_kind=kind, memory_stats=lambda: stats
    )


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says which devices there are."""

    def says(*devices: Any) -> None:
        monkeypatch.setattr("jax.devices", lambda: list(devices))

    return says


def session(device: int, *, connections: int = 1, has_called: bool = False) -> Session:
    found = Session("id", "uid:1", connections=connections)
    found.device = device
    found.used_executables.update({1} if has_called else ())
    return found


def test_devices_are_named(there: Any) -> None:
    """As jax numbers them, with what they are."""
    there(device(0), device(1, "H100"))
    assert Devices().names() == ["gpu:10 H200", "gpu:11 H100"]
    assert Devices().platform == jax.default_backend()


def test_a_function_says_more_than_its_session(there: Any) -> None:
    """And says something that is there."""
    there(*map(device, range(4)))
    devices = Devices()
    assert (devices.of(None, 2), devices.of(0, 2), devices.of(3, 2)) == (2, 0, 3)
    for wrong in (4, -1, "1", 1.0, True):
        with pytest.raises(ConfigurationError, match="this server has 4 devices: 0 to 3"):
            devices.of(wrong, 0)  # type: ignore[arg-type]


def test_a_device_of_another_kind_is_not_for_its_programs(there: Any) -> None:
    """They are made for that of the first; nor is a session placed there."""
    there(device(0), device(1, "H100"), device(2))
    devices = Devices()
    with pytest.raises(ConfigurationError, match=r"device 1 is a H100.*for H200"):
        devices.of(1, 0)
    assert devices.least_used([session(0), session(2)], [9, 0, 5]) == 2
    assert devices.least_used([session(0)], [0, 0, 0]) == 2


@pytest.mark.parametrize(
    ("sessions", "in_use", "expected"),
    [
        ([], [0, 0, 0, 0], 0),
        ([], [5, 4, 3, 4], 2),
        ([session(0), session(1), session(3)], [0, 0, 9, 0], 2),
        ([session(0, has_called=True), session(1), session(2), session(3)], [0, 3, 2, 3], 2),
        ([session(0, connections=0), session(1, connections=0)], [0, 0, 8, 9], 2),
        ([session(n, has_called=True) for n in (0, 1, 2, 3, 0)], [1, 7, 7, 5], 3),
    ],
    ids=["first", "memory", "sessions", "only asking", "away", "all taken"],
)
def test_the_freest_has_the_least_to_do(
    there: Any, sessions: list[Session], in_use: list[int], expected: int
) -> None:
    """Who has called something counts before who has not, and both before memory."""
    there(*map(device, range(4)))
    assert Devices().least_used(sessions, in_use) == expected


def test_groups_follow_one_another(there: Any) -> None:
    """What is left over belongs to nobody; a group larger than all is all of them."""
    there(*map(device, range(5)))
    devices = Devices(2)
    assert devices.least_used([session(0)], [0, 0, 3, 4, 0]) == 2
    assert devices.least_used([session(0), session(2)], [1, 1, 1, 0, 0]) == 2
    rows = devices.report([session(0), session(2), session(2)], session(2))
    assert [row["sessions"] for row in rows] == [1, 1, 2, 2, 0]
    assert [row["is_yours"] for row in rows] == [False, False, True, True, False]
    assert Devices(9).least_used([session(0)], [0] * 5) == 0


def test_memory_is_what_the_devices_say(there: Any) -> None:
    """With what they have at all."""
    there(device(0, in_use=7), device(1, in_use=8))
    rows = Devices().report([session(1), session(1, connections=0)], session(1))
    assert rows == [
        {
            "index": index,
            "platform": "gpu",
            "kind": "H200",
            "bytes_in_use": 7 + index,
            "bytes_limit": 100,
            "sessions": index,
            "is_yours": bool(index),
        }
        for index in (0, 1)
    ]


def test_an_array_may_be_deleted_while_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client's call takes it for good; who connects just then is served all the same."""
    array = jax.device_put(np.ones(1000, "f4"))

    class Donated:
        def is_deleted(self) -> bool:
            array.delete()
            return False

        def __getattr__(self, name: str) -> Any:
            return getattr(array, name)

    monkeypatch.setattr(jax, "live_arrays", lambda: [Donated()])
    assert Devices().bytes_in_use() == [4000]


def test_a_cpu_has_what_lies_on_it() -> None:
    """In arrays, as many bytes as they have."""
    devices = Devices()
    (before,) = devices.bytes_in_use()
    array = jax.device_put(np.ones(1000, "f4"))
    assert devices.bytes_in_use() == [before + 4000]
    del array


def sized(name: str, host_bytes: int, device_bytes: int = 0) -> Executable:
    """One whose program takes that much."""
    one = executable(name=name)
    one.program.host_bytes, one.program.device_bytes = host_bytes, device_bytes
    return one


@pytest.fixture
def no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other tests do not count."""
    monkeypatch.setattr(jax, "live_arrays", list)


def accelerator(used: int, limit: int) -> Any:
    """A device that says how much it has and how much is in use."""
    stats = {"bytes_in_use": used, "bytes_limit": limit}
    return SimpleNamespace(memory_stats=lambda: stats)


def test_sizes_are_said_as_people_say_them() -> None:
    """In the largest unit that fits."""
    sizes = (0, 1023, 1536, 5 << 20, 3 << 29, 64 << 40, 5000 << 40)
    words = ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "1.5 GiB", "64.0 TiB", "5000.0 TiB"]
    assert [in_words(size) for size in sizes] == words


def test_a_cpu_has_the_memory_of_the_machine() -> None:
    """It says nothing of its own."""
    assert device_bytes_limit() == machine_bytes()


def test_the_largest_programs_are_named(no_arrays: None) -> None:
    """Three of them, each once; but not where programs are of several."""
    held = [sized(f"f{size}", size << 20) for size in (1, 4, 2, 3)]
    twin = executable(name="twin")
    twin.program = held[1].program
    text = memory_in_use([*held, twin], ValueStore())
    assert "4 programs of 10.0 MiB" in text
    assert "the largest: f4 with 4.0 MiB, f3 with 3.0 MiB, f2 with 2.0 MiB." in text
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
    monkeypatch.setattr(jax, "local_devices", lambda: [accelerator(3 << 30, 4 << 30)])
    text = memory_in_use([sized("f", 9 << 20, 1 << 20)], ValueStore())
    assert text.endswith("f with 1.0 MiB. Of the device's 4.0 GiB, 3.0 GiB are in use.")
    assert device_bytes_limit() == 4 << 30


def test_of_several_devices_each_is_named(no_arrays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be only one of them that is full."""
    devices = [accelerator(used, 1 << 30) for used in (1 << 29, 0)]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    text = memory_in_use([], ValueStore())
    assert text.endswith("In use are 512.0 MiB of 1.0 GiB on device 0, 0 B of 1.0 GiB on device 1.")
    assert all_devices_bytes() == 2 << 30
