"""A program that has just arrived, from a client that has traced its function by itself."""

from __future__ import annotations

from jaxd_protocol.calls import fingerprint_of
from jaxd_protocol.errors import NotPermitted, ProtocolError
from jaxd_protocol.meanings import Meaning
from jaxd_server.arrivals import Arrival
from jaxd_server.jax_exported import open_program

__all__ = ["receive_exported"]


def receive_exported(
    name: str,
    meaning: Meaning | None,
    fingerprint: bytes,
    data: bytes | memoryview,
    *,
    allowed: frozenset[str],
) -> Arrival:
    """As `arrivals.receive`, of what `jax.export` has written; no code of the client's runs.

    Args:
        name: what people call the function.
        meaning: what its client says of it.
        fingerprint: what it was asked for by.
        data: the program.
        allowed: native functions that it may call.

    Raises:
        ProtocolError: when the bytes are not those that were asked for, or no program.
        NotPermitted: when it calls what it may not, or is a function.
    """
    code = bytes(data)
    if fingerprint_of(code) != fingerprint:
        raise NotPermitted(
            f"{name} came as a function, and this server takes exported programs only (it was "
            "started with --accept exported). Use a client of the same jaxd, which exports by "
            "itself, or a server that takes code."
        )
    if meaning is None:
        raise ProtocolError("an exported program came without saying what it is.")
    return Arrival(open_program(code, allowed))
