"""The request of a call: encoded arguments and settings, ready to be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxd.interop.result_batch import range_locations
from jaxd.request.callback_context import in_callback, running_callbacks
from jaxd_protocol.messages.calls import (
    FROM_CALLBACK,
    LOST_AGAIN,
    LOST_ONCE,
    MAY_REPEAT,
    ON_VALUES,
    STRICT,
)
from jaxd_protocol.messages.data_locations import DataLocation, ResultPolicy, pack_locations

if TYPE_CHECKING:
    from jaxd.interop.result_batch import HandleRange
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.results.reader import ResultsAs


class CallSettings(NamedTuple):
    """How the calls of a function are made, beside what is part of its key.

    Attributes:
        config: jax settings that win over those of the process.
        results: in which form results are wanted.
        timeout_s: seconds until a caller gives up, or None.
        strict: whether packages that differ on the server are an error.
    """

    config: Mapping[str, Any] = {}
    results: ResultsAs = "auto"
    timeout_s: float | None = None
    strict: bool = False


class CallRequest(NamedTuple):
    """A call ready to be sent.

    Attributes:
        spec: what is called.
        skeleton, blob, buffers: the arguments; buffers are views of the caller's arrays.
        timeout_s: seconds until the caller gives up, or None.
        results: in which form the caller wants the result.
        strict: whether packages that differ on the server are an error.
        values: the arrays on the server that it takes.
        buffer_leaves: for each buffer the number of its leaf; -1 when that is no plain array, and
            shorter than `buffers` where none is.
        result_policy: what of the result is to stay on the server; None: nothing.
        sources: the arrays of jax whose data is in a buffer, by leaf.
        arguments: what it was called with, where it may call that back.
        lost_workers: how many workers have died during it.
        heads: of each array whose data is in a buffer its bytes in the skeleton, by leaf.
    """

    spec: FunctionSpec
    skeleton: bytes
    blob: bytes
    buffers: Sequence[memoryview]
    timeout_s: float | None
    results: ResultsAs
    strict: bool = False
    values: Sequence[HandleRange] = ()
    buffer_leaves: Sequence[int] = ()
    result_policy: ResultPolicy | None = None
    sources: Mapping[int, Any] = {}
    leaf_headers: Mapping[int, bytes] = {}
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    lost_workers: int = 0

    @property
    def data_locations(self) -> Sequence[DataLocation]:
        """Where the data lies of the arrays on the server."""
        return range_locations(self.values)

    @property
    def remote_leaves(self) -> tuple[tuple[int, int], ...]:
        """Which of its leaves are on the server: the first and the number of each handle range."""
        return tuple((handle_range.leaf, len(handle_range.arrays)) for handle_range in self.values)

    @property
    def flags(self) -> int:
        """Its properties as bits for the server; see `jaxd_protocol.messages.calls`."""
        flags = MAY_REPEAT | (STRICT if self.strict else 0) | (ON_VALUES if self.values else 0)
        if running_callbacks and in_callback():
            flags |= FROM_CALLBACK
        if self.lost_workers:
            flags |= LOST_ONCE if self.lost_workers == 1 else LOST_ONCE | LOST_AGAIN
        return flags

    def message(
        self,
        rows: Sequence[DataLocation] = (),
        acked: int = 0,
        drops: bytes = b"",
        skeleton: bytes | None = None,
        knows: bytes = b"",
    ) -> tuple[Any, ...]:
        """The arguments of the request `call`.

        Args:
            rows: where the data lies that is not in the message.
            acked: calls on values with smaller numbers have been answered.
            drops: ids of values that nobody here holds any more.
            skeleton: what stands for the skeleton; by default itself.
            knows: what the client knows of its result's form; see `ResultPolicy`.
        """
        told = b"" if self.result_policy is None else self.result_policy.to_bytes(acked, knows)
        elsewhere = pack_locations(rows) if rows else b""
        return (
            self.spec.key,
            skeleton or self.skeleton,
            self.blob,
            self.timeout_s,
            self.flags,
            told,
            elsewhere,
            drops,
        )

    def without_data(self) -> CallRequest:
        """The same, once its data is not needed any more."""
        return self._replace(blob=b"", buffers=(), values=(), sources={}, arguments=None)
