"""Converts failures of the server to exceptions that are raised at the call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxd.interop.jax_runtime import loaded_jax
from jaxd_protocol.errors import JaxdError, RemoteError
from jaxd_protocol.messages.failures import Failure, decode_failure

if TYPE_CHECKING:
    from jaxd.results.reader import ResultReader


def exception_of(failure: Failure, name: str, reader: ResultReader, address: str) -> BaseException:
    """The exception that a call has ended with; a note says which call, and of which server.

    Args:
        failure: that of the reply.
        name: what people call the function.
        reader: of its results; of the user's own exceptions, those that it reaches are known.
        address: of the server, for people.
    """
    error = decode_failure(failure, reader, with_jax=_shows_jax())
    if type(error) is RemoteError or not isinstance(error, JaxdError):
        error.add_note(f"Raised in the call of {name} on the jaxd server at {address}.")
    return error


def _shows_jax() -> bool:
    """Whether this process has told jax not to leave its own frames out of tracebacks."""
    jax = loaded_jax()
    if jax is not None:
        return bool(jax.config.jax_traceback_filtering == "off")
    return os.environ.get("JAX_TRACEBACK_FILTERING", "").lower() == "off"
