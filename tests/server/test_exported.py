from __future__ import annotations

import pickle

import jax
import numpy as np
import pytest

from jaxd_protocol.calls import fingerprint_of
from jaxd_protocol.errors import NotPermitted, ProtocolError
from jaxd_protocol.meanings import Meaning
from jaxd_server.exported import receive_exported
from jaxd_server.jax_exported import allowed_targets

pytest.importorskip("flatbuffers")

ALLOWED = allowed_targets()


def meaning_of(data: bytes) -> Meaning:
    """What a client says of a program."""
    return Meaning(fingerprint_of(data), b"", (), {}, {}, frozenset(), (), True)


def program() -> bytes:
    """One that adds one."""
    spec = jax.ShapeDtypeStruct((), np.float32)
    return bytes(jax.export.export(jax.jit(lambda x: [x + 1]))(spec).serialize())


def test_a_program_arrives() -> None:
    """Nothing of it is in doubt: its name is that of its bytes."""
    data = program()
    arrival = receive_exported(
        "f", meaning_of(data), fingerprint_of(data), memoryview(data), allowed=ALLOWED
    )
    assert float(jax.jit(arrival.function)(np.float32(1))[0]) == 2.0
    assert arrival.doubt is None


def test_a_function_is_refused_unopened() -> None:
    """Its fingerprint is not that of its bytes, whatever they are."""
    data = pickle.dumps(print)
    with pytest.raises(NotPermitted, match="came as a function"):
        receive_exported("f", meaning_of(data), b"f" * 16, data, allowed=ALLOWED)


@pytest.mark.parametrize("data", [pickle.dumps(print), b"", b"\x80\x04."])
def test_bytes_that_are_no_program_are_refused(data: bytes) -> None:
    """Though they are those that were named."""
    with pytest.raises(ProtocolError, match="cannot be read"):
        receive_exported("f", meaning_of(data), fingerprint_of(data), data, allowed=ALLOWED)


def test_a_client_that_says_nothing_of_it_is_refused() -> None:
    """As a stock one."""
    data = program()
    with pytest.raises(ProtocolError, match="without saying"):
        receive_exported("f", None, fingerprint_of(data), data, allowed=ALLOWED)
