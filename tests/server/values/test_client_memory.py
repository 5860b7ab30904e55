"""A client's memory on the server's side: what can be reached, and that nothing stays behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxd_protocol.base import shared_memory
from jaxd_protocol.base.shared_memory import create_sealed, map_file
from jaxd_protocol.errors import LimitExceeded, ProtocolError
from jaxd_protocol.wire import BulkChannel, BulkStream
from jaxd_server.values import client_memory as module
from jaxd_server.values.client_memory import ClientMemory

pytestmark = pytest.mark.skipif(
    not shared_memory.available(), reason="this system has no files in memory"
)

SIZE = 1 << 18
LIMIT = 1 << 24


def count_open() -> int:
    gc.collect()
    return len(os.listdir("/dev/fd"))


def count_mapped() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:jaxd")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = count_open(), count_mapped()
    yield
    assert (count_open(), count_mapped()) == before


@pytest.fixture
def mappings() -> Iterator[ClientMemory]:
    mappings = ClientMemory(LIMIT)
    yield mappings
    mappings.close()


def shared(mappings: ClientMemory, number: int = 1) -> memoryview:
    """The client's view of a block that the server has been given."""
    descriptor = create_sealed(SIZE)
    memory = map_file(descriptor, SIZE, writable=True)
    mappings.add(number, SIZE, descriptor)
    return memory


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, "u1").ctypes.data)


def test_both_ends_see_the_same_bytes(mappings: ClientMemory) -> None:
    """What the one writes, the other reads; arguments can only be read."""
    memory = shared(mappings)
    memory[7:10] = b"abc"
    assert bytes(mappings.view(1, 7, 3)) == b"abc"
    mappings.writable_view(1, 100, 3)[:] = b"xyz"
    assert bytes(memory[100:103]) == b"xyz"
    shared(mappings)
    assert mappings.view(1, 0, 9).readonly


@pytest.mark.parametrize(
    ("number", "offset", "nbytes"),
    [(2, 0, 1), (1, SIZE, 1), (1, 0, SIZE + 1), (1, -1, 1), (1, 5, -1), (1, 1 << 63, 1 << 63)],
)
def test_only_what_was_announced_can_be_reached(
    mappings: ClientMemory, number: int, offset: int, nbytes: int
) -> None:
    """Whatever numbers a client sends."""
    shared(mappings)
    for view in (mappings.view, mappings.writable_view):
        with pytest.raises(ProtocolError):
            view(number, offset, nbytes)
    assert len(mappings.view(1, SIZE, 0)) == 0


def test_a_block_that_is_announced_twice_is_one(mappings: ClientMemory) -> None:
    """Two threads of a client may do so; the first mapping stays."""
    memory = shared(mappings)
    mappings.add(1, SIZE, create_sealed(SIZE))
    memory[:1] = b"x"
    assert bytes(mappings.view(1, 0, 1)) == b"x"


def test_memory_that_could_be_taken_away_is_refused(mappings: ClientMemory) -> None:
    """And memory that is smaller than announced, that cannot be written, or no memory."""
    unsealed = os.memfd_create("test")
    os.ftruncate(unsealed, SIZE)
    pipe, other = os.pipe()
    os.close(other)
    for nbytes, descriptor in [
        (SIZE, unsealed), (SIZE, pipe), (SIZE + 1, create_sealed(SIZE)), (0, create_sealed(SIZE)),
    ]:  # fmt: skip
        with pytest.raises(ProtocolError):
            mappings.add(1, nbytes, descriptor)
    import fcntl

    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(ProtocolError, match="cannot be mapped"):
        mappings.add(1, SIZE, descriptor)


def test_there_is_a_limit_to_the_bytes_and_to_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was removed counts no more."""
    mappings = ClientMemory(2 * SIZE)
    for number in (1, 2):
        shared(mappings, number)
    with pytest.raises(LimitExceeded, match="786,432 bytes"):
        shared(mappings, 3)
    mappings.remove(1)
    shared(mappings, 3)
    monkeypatch.setattr(module, "MAX_BLOCKS", 2)
    with pytest.raises(LimitExceeded, match="more than 2 blocks"):
        shared(mappings, 4)


def test_a_removed_block_is_gone_when_its_last_view_is(mappings: ClientMemory) -> None:
    """And can be read until then."""
    memory = shared(mappings)
    memory[:3] = b"abc"
    array = np.frombuffer(mappings.view(1, 0, 3), "u1")
    del memory
    mappings.remove(1)
    mappings.remove(1)
    assert bytes(array) == b"abc"
    with pytest.raises(ProtocolError):
        mappings.view(1, 0, 3)
    before = count_mapped()
    del array
    assert count_mapped() == before - 1


def test_it_is_known_which_memory_is_the_clients(mappings: ClientMemory) -> None:
    """Also of a block that is removed while something reads it."""
    memory = shared(mappings)
    view = mappings.view(1, 100, 9)
    address = address_of(view)
    assert mappings.holds(address)
    assert mappings.holds(address - 100)
    assert not mappings.holds(address - 101)
    assert not mappings.holds(address - 100 + SIZE)
    assert not mappings.holds(address_of(memoryview(bytearray(9))))
    assert not mappings.holds(address_of(memory))  # the client's mapping, not the server's
    mappings.remove(1)
    assert mappings.holds(address)
    del view
    gc.collect()
    assert not mappings.holds(address)


CLIENT = """
import os, socket, sys
from jaxd_protocol.base.shared_memory import create_sealed
from jaxd_protocol.wire import BulkChannel, BulkStream

channel = BulkChannel(BulkStream(socket.socket(fileno=int(sys.argv[1]))))
while True:
    descriptor = create_sealed(1 << 18)
    os.pwrite(descriptor, b"from the client", 0)
    channel.send(b"block", (), [descriptor])
    os.close(descriptor)
"""


def test_nothing_stays_when_a_client_is_killed() -> None:
    """Neither open files nor memory, whatever it was doing."""
    before = count_open(), count_mapped()
    for _ in range(2):
        mappings = ClientMemory(LIMIT)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            client = subprocess.Popen(
                [sys.executable, "-c", CLIENT, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
            theirs.close()
            _serve_until_killed(ours, mappings, client)
        mappings.close()
        del mappings
    assert (count_open(), count_mapped()) == before


def _serve_until_killed(
    sock: socket.socket, mappings: ClientMemory, client: subprocess.Popen[bytes]
) -> None:
    stream = BulkStream(sock)
    stream.expect_descriptors()
    channel = BulkChannel(stream)
    for number in range(20):
        mappings.add(number, SIZE, channel.recv().descriptors.pop())
        assert bytes(mappings.view(number, 0, 15)) == b"from the client"
    client.send_signal(signal.SIGKILL)
    client.wait()
    with pytest.raises(EOFError):
        _drain(channel)


def _drain(channel: BulkChannel) -> None:
    while True:
        channel.recv()
