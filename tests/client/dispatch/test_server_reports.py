"""What a server tells of itself, as users have it: devices and statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxd
from jaxd import Device, PersistentFunction, Statistics, persistent_call
from jaxd.dispatch.server_reports import device_index
from jaxd.errors import ConfigurationError
from jaxd_protocol.fingerprint.function_wrapper import jit_options_of

ROW: dict[str, Any] = {
    "index": 3,
    "platform": "gpu",
    "kind": "H200",
    "bytes_in_use": 1,
    "bytes_limit": 2,
    "sessions": 0,
    "is_yours": False,
}


def test_a_device_is_its_index() -> None:
    """Where one is chosen; what a later server says beside it is left alone."""
    device = Device.from_report({**ROW, "colour": "green"})
    assert (device.kind, device.index, device_index(device)) == ("H200", 3, 3)
    assert ["a", "b", "c", "d"][device] == "d"
    assert (device_index(None), device_index(np.int64(2))) == (None, 2)


@pytest.mark.parametrize("wrong", [-1, 1.0, "1", True, object()])
def test_what_is_no_index_is_refused(wrong: Any) -> None:
    """Before anybody is asked."""
    with pytest.raises(ConfigurationError, match="no device of a server"):
        device_index(wrong)


def test_without_a_server_there_are_the_devices_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `JAXD_INLINE=1`."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    (here,) = jaxd.devices()
    assert (here.index, here.platform, here.kind, here.is_yours) == (0, "cpu", "cpu", True)
    function = persistent_call(lambda x: x * 2)
    assert float(function.on(0)(2.0)) == 4.0
    assert function.on(0).warm(2.0).verdict == "compile"
    for ask in (function.on(1), function.on(1).warm, function.on(1).jaxpr):
        with pytest.raises(ConfigurationError, match="jax has 1"):
            ask(2.0)


def key_of(function: PersistentFunction[..., Any]) -> bytes:
    """The key that a call has now."""
    binding = function._binding
    return binding.snapshots.spec(binding.config()).key


def test_the_device_is_part_of_the_key_and_of_nothing_else() -> None:
    """None is the key that there was without."""
    function = persistent_call(lambda x: x * 2)
    keys = [key_of(one) for one in (function, function.on(0).on(None))]
    assert keys[0] == keys[1]
    others = {key_of(one) for one in map(function.on, range(3))}
    assert len({*others, keys[0]}) == 4
    assert jit_options_of(function.on(1)) == jit_options_of(function)
    assert function.on(1).fingerprint == function.fingerprint


REPORT = {name: index for index, name in enumerate(Statistics._fields)}


def test_a_report_becomes_a_snapshot() -> None:
    """What a newer server may report beyond it is left out."""
    found = Statistics.from_report({**REPORT, "invented_later": 1})
    assert found._asdict() == REPORT


def test_a_report_that_lacks_a_counter_is_an_error() -> None:
    """It is not filled up with guesses."""
    with pytest.raises(KeyError, match="traces"):
        Statistics.from_report({name: 0 for name in REPORT if name != "traces"})


def test_the_promised_counters_are_there() -> None:
    """Those that the documents name."""
    promised = {
        "calls", "traces", "compiles", "executable_hits", "executable_loads", "executables",
        "functions", "values", "bytes_received", "bytes_sent", "uptime_s", "epoch",
        "lowers", "programs", "programs_shared", "disk_bytes", "disk_files",
        "trace_s", "compile_s", "load_s", "saved_s",
    }  # fmt: skip
    assert promised <= set(Statistics._fields)
