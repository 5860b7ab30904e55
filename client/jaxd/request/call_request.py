"""The request of a call: encoded arguments and settings, ready to be sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxd_protocol.messages.calls import (
    FIRST,
    FROM_CALLBACK,
    LOST_AGAIN,
    LOST_ONCE,
    MAY_REPEAT,
    ON_ONE_DEVICE,
    ON_VALUES,
    STRICT,
    TIMED,
)
from jaxd_protocol.messages.data_locations import (
    INLINE_RESULT_BYTES,
    KEEP_ALL,
    KEEP_NONE,
    DataLocation,
    ResultPolicy,
    new_call_number,
    pack_locations,
)

if TYPE_CHECKING:
    from jaxd.interop.handle_ranges import HandleRange
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.results.reader import ResultsAs


running_callbacks: list[None] = []
"""One for each callback that runs now: each call looks here, which takes next to nothing."""


class _Scope:
    """A callback that runs; contexts that were copied from its own outlive it."""

    __slots__ = ("origin",)

    def __init__(self, origin: Any) -> None:
        self.origin = origin


_scope: ContextVar[_Scope | None] = ContextVar("scope", default=None)


@contextmanager
def callback_scope(origin: Any) -> Iterator[None]:
    """A context in which this thread runs a callback.

    Args:
        origin: the open call that calls back, see `CallbackOrigin`.
    """
    scope = _Scope(origin)
    token = _scope.set(scope)
    running_callbacks.append(None)
    try:
        yield
    finally:
        running_callbacks.pop()
        _scope.reset(token)
        scope.origin = None


def callback_origin() -> Any:
    """The open call whose callback runs in this context, or in that which it copied; or None."""
    scope = _scope.get() if running_callbacks else None
    return None if scope is None else scope.origin


class CallSettings(NamedTuple):
    """How the calls of a function are made, beside what is part of its key.

    Attributes:
        config: names and values of jax settings that win over those of the process.
        results: the form of results.
        timeout_s: seconds until a caller gives up, or None.
        strict: whether packages that differ on the server are an error.
        fallback: what becomes of calls that the server cannot answer; None: as the client says.
    """

    config: tuple[tuple[str, Any], ...] = ()
    results: ResultsAs = "auto"
    timeout_s: float | None = None
    strict: bool = False
    fallback: str | None = None


class CallRequest(NamedTuple):
    """A call ready to be sent.

    Attributes:
        spec: what is called.
        skeleton, blob, buffers: the arguments; buffers are views of the caller's arrays.
        timeout_s: seconds until the caller gives up, or None.
        results: the form of the result.
        strict: whether packages that differ on the server are an error.
        values: the arrays on the server that it takes.
        buffer_leaves: for each buffer the number of its leaf; -1 when that is no plain array, and
            shorter than `buffers` where none is.
        result_policy: what of the result is to stay on the server; None: nothing.
        sources: the arrays of jax whose data is in a buffer, by leaf.
        arguments: what it was called with, where it may call that back.
        lost_workers: how many workers have died during it.
        fallback: what becomes of it where the server cannot answer it; None: as the client says.
        leaf_headers: of each array whose data is in a buffer its bytes in the skeleton, by leaf.
        origin: the open call whose callback makes it; None: none does.
        is_timed: whether its reply is to say how long it ran.
        is_first: whether it is the first of its kind, of a function that is to be as under
            `jax.jit`, which would trace it here.
        on_one_device: whether it is to be refused where its program computes on several.
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
    fallback: str | None = None
    origin: Any = None
    is_timed: bool = False
    is_first: bool = False
    on_one_device: bool = False

    @property
    def data_locations(self) -> Sequence[DataLocation]:
        """Where the data lies of the arrays on the server."""
        return [handle_range.row for handle_range in self.values]

    @property
    def remote_leaves(self) -> tuple[tuple[int, int], ...]:
        """Which of its leaves are on the server: the first and the number of each handle range."""
        return tuple((handle_range.leaf, len(handle_range.arrays)) for handle_range in self.values)

    @property
    def flags(self) -> int:
        """Its properties as bits for the server; see `jaxd_protocol.messages.calls`."""
        flags = MAY_REPEAT | (STRICT if self.strict else 0) | (ON_VALUES if self.values else 0)
        if self.origin is not None:
            flags |= FROM_CALLBACK
        if self.is_timed:
            flags |= TIMED
        if self.is_first:
            flags |= FIRST
        flags |= ON_ONE_DEVICE if self.on_one_device else 0
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
            drops: ids of values that this process released.
            skeleton: what stands for the skeleton; by default itself.
            knows: what the client knows of its result's form; see `ResultPolicy`.
        """
        policy = b"" if self.result_policy is None else self.result_policy.to_bytes(acked, knows)
        elsewhere = pack_locations(rows) if rows else b""
        return (
            self.spec.key,
            skeleton or self.skeleton,
            self.blob,
            self.timeout_s,
            self.flags,
            policy,
            elsewhere,
            drops,
        )

    @property
    def kind(self) -> bytes:
        """What it has in common with calls of the same snapshot that are answered as it is."""
        return self.spec.options + self.skeleton

    def check_not_refused(self) -> None:
        """Returns when the server has refused no call like this one.

        Raises:
            Refused: when it has, and such calls run in this process.
        """
        reason = self.spec.snapshot.refused.get(self.kind)
        if reason is not None:
            from jaxd.request.function_snapshot import Refused  # few functions fall back

            raise Refused(reason)

    def without_data(self) -> CallRequest:
        """The same, once its data is not needed any more."""
        return self._replace(
            blob=b"", buffers=(), values=(), sources={}, arguments=None, origin=None
        )


def result_policy_for(results: ResultsAs, *, on_values: bool) -> ResultPolicy | None:
    """The result policy of a call: what stays on the server."""
    if results == "remote":
        return ResultPolicy(new_call_number(), KEEP_ALL, -1)
    if results == "auto":
        return ResultPolicy(
            new_call_number(), KEEP_ALL if on_values else INLINE_RESULT_BYTES, INLINE_RESULT_BYTES
        )
    return ResultPolicy(new_call_number(), KEEP_NONE, KEEP_NONE) if on_values else None
