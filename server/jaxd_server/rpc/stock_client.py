"""Stock rpyc clients: `root.ping()` and `root.call(function, args, kwargs)` in cloudpickle bytes.

The only connections on which references are sent: the root and its two methods.
One of the few modules that import rpyc; relies on `Connection._box`, `Connection._netref_factory`,
`Connection._dispatch_request`, `Connection._local_root` and `Service._connect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import rpyc
from rpyc.core import brine, consts
from rpyc.core.protocol import Connection

from jaxd_protocol.errors import JaxdError, PackingError, ProtocolError
from jaxd_protocol.jit.options import Options, fingerprint_of, function_key
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.pytree.decoder import COUNT
from jaxd_protocol.wire import BulkChannel
from jaxd_protocol.wire.connection import PLAIN_CONFIG
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.functions.function import Described
from jaxd_server.compilation.functions.table import Clientless
from jaxd_server.execution.call import Call, Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.rpc.flow_control import ConnectionShare

_PICKLED = b"P" + COUNT.pack(0)
_SKELETON = b"T" + COUNT.pack(2) + _PICKLED + _PICKLED  # (args, kwargs), each one pickle


class _StockConnection(Connection):  # type: ignore[misc]
    def _dispatch_request(self, seq: int, raw_args: Any) -> None:
        """Counts the request as a call until its reply is sent, so that a drain waits for it."""
        share: ConnectionShare = self._local_root.share
        nbytes = share.begin()
        try:
            super()._dispatch_request(seq, raw_args)
        finally:
            share.end_call(nbytes)

    def _box(self, value: Any) -> tuple[int, Any]:
        if brine.dumpable(value):
            return consts.LABEL_VALUE, value
        owner = getattr(value, "__self__", value)
        if owner is self._local_root:  # the root, or a method that rpyc found to be exposed
            label, package = super()._box(value)
            return label, package
        raise TypeError(f"a {type(value).__name__} does not leave this server by reference")

    def _netref_factory(self, id_pack: object) -> NoReturn:
        raise TypeError("send plain values and bytes: this server takes no references")

    def close(self) -> None:
        """Ends the connection; rpyc's own version would wait for the peer's consent first."""
        if not self._closed:
            self._cleanup()


class _SentCode(Clientless):
    """A function source for a client that has sent the code with the call."""

    def __init__(self, code: bytes) -> None:
        super().__init__(PackingError("a stock client is not asked for what its function reads."))
        self._code = code

    def describe(self, key: bytes) -> Described:
        return Described(fingerprint_of(self._code), "a stock client's function", Options())

    def code(self, fingerprint: bytes) -> bytes:
        return self._code


class StockService(rpyc.Service):  # type: ignore[misc]
    """What a stock rpyc client sees as `root`."""

    _protocol = _StockConnection

    def __init__(self, pipeline: Pipeline, share: ConnectionShare) -> None:
        super().__init__()
        self._pipeline = pipeline
        self.share = share

    # rpyc exposes these by itself; they are not needed here
    exposed_get_service_aliases = None
    exposed_get_service_name = None

    def exposed_ping(self) -> str:
        """Answers `pong`."""
        return "pong"

    def exposed_call(self, function: bytes, args: bytes, kwargs: bytes) -> bytes:
        """Calls a function through `jax.jit`, compiled once for equal bytes and signature.

        Args:
            function: `cloudpickle.dumps` of the function.
            args: of the tuple of positional arguments.
            kwargs: of the dict of keyword arguments.

        Returns:
            `cloudpickle.dumps` of the result, its arrays as numpy arrays.

        Raises:
            TypeError: when an argument is not bytes.
            Exception: whatever the function raises.
        """
        if not all(type(data) is bytes for data in (function, args, kwargs)):
            raise TypeError("call takes three values of type bytes, made with cloudpickle.dumps")
        key = function_key(fingerprint_of(function), Options())
        buffers = [memoryview(args), memoryview(kwargs)]
        call = Call(key, _SKELETON, b"", buffers, _SentCode(function), deliver=_deliver_pickled)
        outcome, _ = self._pipeline.answer(call)
        if outcome[0] == FAILED:
            raise decode_failure(outcome[1])
        return bytes(outcome[1])


def _deliver_pickled(leaves: Sequence[Any], executable: Executable) -> Reply:
    arrays = executable.structure.unflatten(map(np.asarray, leaves))  # it is never from disk
    return (OK, cloudpickle.dumps(arrays)), ()


def serve_stock(
    pipeline: Pipeline, share: ConnectionShare, channel: BulkChannel, principal: str
) -> None:
    """Answers one stock client until it leaves.

    Raises:
        ProtocolError: when it sends what is no message of rpyc's.
        LimitExceeded: when a message is too large.
    """
    config = {**PLAIN_CONFIG, "credentials": principal}
    try:
        StockService(pipeline, share)._connect(channel, config).serve_all()
    except (JaxdError, EOFError, OSError):
        raise
    except Exception as error:  # whatever rpyc raises over bytes that are no message of its own
        raise ProtocolError(f"a stock client's message cannot be read: {error!r}.") from error
