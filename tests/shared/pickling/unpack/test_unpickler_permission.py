from __future__ import annotations

import pickle

import pytest

from jaxd_protocol.errors import NotPermitted
from jaxd_protocol.pickling.unpack.unpickler import UnpicklingGate, unpack, unpack_function


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
