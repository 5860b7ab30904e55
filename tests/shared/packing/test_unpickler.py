"""Packed bytes, read."""

from __future__ import annotations

import cloudpickle
import pytest

from jaxd_protocol.fingerprint import There, walk
from jaxd_protocol.fingerprint.world import SALT
from jaxd_protocol.packing import pack_function, unpack, unpack_function

RATE = 3


def helper(x: int) -> int:
    return x * RATE


def use(x: int) -> int:
    from tests.shared.packing import processes

    return helper(x) + len(processes.PLAIN) * 0


def test_the_modules_of_a_function_come_with_it() -> None:
    """By name, and they are not the client's own."""
    arrived = unpack_function(pack_function(use, "it", walk(use, "it").reach))
    assert {__name__, "tests", "tests.shared.packing.processes"} <= arrived.modules.keys()
    assert vars(arrived.modules[__name__]) is arrived.function.__globals__
    assert arrived.sources == {}


def test_what_arrived_means_what_was_sent() -> None:
    """The server's own walk comes to the same digest."""
    walked = walk(use, "use")
    arrived = unpack_function(pack_function(use, "it", walked.reach))
    found = walked.fingerprint
    there = There(
        salt=SALT,
        packages=found.packages,
        local=found.local,
        carried=found.carried,
        modules={**arrived.overlays, **arrived.modules},
        sources=arrived.sources,
    )
    assert walk(arrived.function, "use", there).fingerprint.digest == found.digest


def test_bytes_of_a_stock_client_are_read_too() -> None:
    """Those of `cloudpickle.dumps`."""
    assert unpack(cloudpickle.dumps(lambda: 1))() == 1


def test_a_package_that_is_missing_is_named() -> None:
    """As by an import statement."""
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        unpack(b"cno_such_package\nthing\n.")
