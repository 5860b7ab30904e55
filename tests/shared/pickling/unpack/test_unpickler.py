"""Packed bytes, read."""

from __future__ import annotations

from pathlib import Path

import cloudpickle
import pytest

from jaxd_protocol.errors import MissingPackage
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.process_view import SALT, ClientProcess
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack, unpack_function

RATE = 3


def helper(x: int) -> int:
    return x * RATE


def use(x: int) -> int:
    from tests.shared.pickling import processes

    return helper(x) + len(processes.PLAIN) * 0


def test_the_modules_of_a_function_come_with_it() -> None:
    """By name, and they are not the client's own; those that it imports too, once it has."""
    use(0)
    arrived = unpack_function(pack_function(use, "it", walk(use, "it").reach))
    assert {__name__, "tests", "tests.shared.pickling.processes"} <= arrived.modules.keys()
    assert vars(arrived.modules[__name__]) is arrived.function.__globals__
    assert arrived.sources == {}


def test_what_arrived_means_what_was_sent() -> None:
    """The server's own walk comes to the same digest."""
    walked = walk(use, "use")
    arrived = unpack_function(pack_function(use, "it", walked.reach))
    found = walked.fingerprint
    there = ClientProcess(
        salt=SALT,
        packages=found.packages,
        local=found.local,
        carried=found.carried,
        modules={**arrived.patched_modules, **arrived.modules},
        sources=arrived.sources,
    )
    assert walk(arrived.function, "use", there).fingerprint.digest == found.digest


def test_bytes_of_a_stock_client_are_read_too() -> None:
    """Those of `cloudpickle.dumps`."""
    assert unpack(cloudpickle.dumps(lambda: 1))() == 1


def test_a_package_that_is_missing_is_named() -> None:
    """With what needs it, and what to do."""
    with pytest.raises(MissingPackage, match=r"needs no_such_package\.part\.thing.*Install") as e:
        unpack(b"cno_such_package.part\nthing\n.")
    assert "and no_such_package is not installed" in str(e.value)


def test_a_module_whose_own_imports_fail_says_so_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is installed: to install it again would change nothing."""
    (tmp_path / "broken_one.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        unpack(b"cbroken_one\nthing\n.")
