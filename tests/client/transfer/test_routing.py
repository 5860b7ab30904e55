"""How large arrays travel: through blocks, or in the message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxd.transfer.routing import MIN_SHARED_BYTES, TransferRouter
from jaxd.transfer.shared_memory import BlockPool
from jaxd_protocol.errors import ConnectionLost
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import BLOCK, BLOCK_PROBE_BYTES, VALUE, DataLocation


class Connection:
    """A server that maps what it is given, and shows what is in it; unless it is to fail."""

    def __init__(self, pool: BlockPool) -> None:
        self.passes_descriptors = True
        self.proof: bytes | None = None
        self.failure: Exception | None = None
        self.shared: list[int] = []
        self.told: list[tuple[str, Any]] = []
        self.deadline: float | None = None
        self._pool = pool

    def request(
        self, verb: str, args: Any, *, deadline: float | None = None, descriptors: Any = ()
    ) -> Any:
        if self.failure is not None:
            raise self.failure
        if verb == "adopt":
            self.deadline = deadline
            return (OK, b"\1"), None
        number, _ = args
        self.shared.append(number)
        (block,) = [b for b in self._pool._blocks.values() if b.number == number]
        return (
            OK,
            bytes(block.view[:BLOCK_PROBE_BYTES]) if self.proof is None else self.proof,
        ), None

    def notify(self, verb: str, args: Any) -> None:
        self.told.append((verb, args))


def data(*arrays: Any, rows: tuple[DataLocation, ...] = ()) -> Any:
    """A call with these arrays beside it, as leaves 1, 2 and so on."""
    views = [memoryview(array.reshape(-1).view("u1")) for array in arrays]
    owners = list(range(1, len(views) + 1))
    return SimpleNamespace(
        data_locations=rows, buffers=views, buffer_leaves=owners, sources={}, leaf_headers={}
    )


LARGE = np.arange(MIN_SHARED_BYTES, dtype=np.uint8)
SMALL = np.ones(MIN_SHARED_BYTES - 1, np.uint8)


@pytest.fixture
def pool() -> BlockPool:
    """Of its own."""
    return BlockPool(1 << 26)


@pytest.fixture
def connection(pool: BlockPool) -> Any:
    """To a server on this machine."""
    return Connection(pool)


def idle(pool: BlockPool) -> bool:
    """Whether no block is in use."""
    with pool._lock:
        pool._reclaim()
        return len(pool._idle) == len(pool._blocks)


def test_large_arrays_go_through_a_block_and_small_ones_in_the_message(
    pool: BlockPool, connection: Any
) -> None:
    """Rows say which is where, by leaf; beside those that the call had."""
    row = DataLocation(0, VALUE, 7)
    load = TransferRouter(pool).prepare(data(SMALL, LARGE, rows=(row,)), connection)
    assert [(r.leaf, r.kind) for r in load.data_locations] == [(0, VALUE), (2, BLOCK)]
    assert [len(one) for one in load.buffers] == [len(SMALL)]
    ((block, offset),) = load.places
    assert bytes(block.view[offset : offset + len(LARGE)]) == LARGE.tobytes()
    assert connection.shared == [block.number]
    assert not idle(pool)
    load.release()
    assert idle(pool)


@pytest.mark.parametrize("proof", [b"", b"somebody else's!"])
def test_a_server_that_does_not_see_the_memory_is_sent_everything(
    pool: BlockPool, connection: Any, proof: bytes
) -> None:
    """From then on, and without asking again; no block stays in use."""
    connection.proof = proof
    for _ in range(2):
        load = TransferRouter(pool).prepare(data(LARGE), connection)
        assert (list(load.data_locations), load.places) == ([], ())
        assert [bytes(one) for one in load.buffers] == [LARGE.tobytes()]
    assert len(connection.shared) == 1
    assert idle(pool)


def test_a_connection_that_is_lost_meanwhile_keeps_no_block(
    pool: BlockPool, connection: Any
) -> None:
    """The call is made again over another one."""
    connection.failure = ConnectionLost("lost")
    with pytest.raises(ConnectionLost):
        TransferRouter(pool).prepare(data(LARGE), connection)
    assert idle(pool)


def test_the_server_is_asked_as_long_as_the_caller_waits(pool: BlockPool, connection: Any) -> None:
    """And no longer."""
    asked: list[Any] = []

    def spare(call: Any, ask: Any) -> Any:
        asked.append(ask)
        raise ConnectionLost("gone")

    def sent_before() -> Any:
        return SimpleNamespace(plan=spare)

    with pytest.raises(ConnectionLost):
        TransferRouter(pool).prepare(data(LARGE), connection, sent_before, deadline=17.0)
    (ask,) = asked
    assert ask(b"", b"") == b"\1"
    assert connection.deadline == 17.0
