"""Packed bytes, read; what may not be read, and what could not travel."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from jaxd_protocol.errors import MissingPackage, NotPermitted, PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.process_view import SALT, ClientProcess
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.rebuild import make_placeholder
from jaxd_protocol.pickling.unpack.unpickler import UnpicklingGate, unpack, unpack_function
from tests.shared.pickling.processes import round_trip

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


def test_a_gate_is_open_until_it_is_shut() -> None:
    """For good."""
    gate = UnpicklingGate()
    gate.require_open("code")
    gate.shut()
    with pytest.raises(NotPermitted, match=r"opens no code.*--accept exported|--accept exported"):
        gate.require_open("code")


@pytest.mark.parametrize("open_", [unpack, unpack_function])
def test_nothing_is_unpacked_behind_them(open_: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be it the most harmless of pickles: it is not looked at."""
    shut = UnpicklingGate()
    shut.shut()
    monkeypatch.setattr("jaxd_protocol.pickling.unpack.unpickler.unpickling_gate", shut)
    for data in (pickle.dumps(1), b"nothing"):
        with pytest.raises(NotPermitted, match="packed code or objects"):
            open_(data)  # type: ignore[operator]


STREAM = (number for number in [1])
LATER = 1


def test_a_function_that_does_not_touch_it_works() -> None:
    """It may only refer to it in a branch that is not taken."""

    def takes_a_branch(really: bool) -> Any:
        return next(STREAM) if really else LATER

    copied = round_trip(takes_a_branch)
    assert copied(False) == 1
    with pytest.raises(PackingError, match=r"STREAM is a generator, which cannot travel"):
        copied(True)


@pytest.mark.parametrize(
    "touch",
    [
        lambda it: it.value,
        lambda it: it(),
        lambda it: it[0],
        lambda it: it + 1,
        lambda it: 1 + it,
        list,
        bool,
        lambda it: it < 1,
        len,
        lambda it: setattr(it, "a", 1),
    ],
)
def test_whatever_is_done_with_it_raises(touch: Callable[[Any], Any]) -> None:
    """With its path, its type, the reason and the way out."""
    it = make_placeholder("f → STREAM", "generator", "it has no content")
    with pytest.raises(PackingError) as caught:
        touch(it)
    assert str(caught.value) == (
        "f → STREAM is a generator, which cannot travel to the server: it has no content. Make it "
        "inside the function, or pass what it yields as an argument."
    )


def test_it_can_be_passed_around() -> None:
    """Asking for its type, its identity or special names is not touching it."""
    it = make_placeholder("f", "socket", "no")
    assert not hasattr(it, "__fspath__")
    assert it is it  # noqa: PLR0124  that is the question
    assert repr(it)
    assert copy.copy([it])[0] is it
