"""Memory that a client shares with a server on its machine: used when it can be, and never seen."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxd
from jaxd import Client, connect
from jaxd.transfer.routing import TransferRouter
from jaxd.transfer.shared_memory import BlockPool, shared_pool
from jaxd_protocol.base import shared_memory
from tests.end_to_end.gates import Gate, in_thread
from tests.live_server import LiveServer
from tests.server.in_process import InProcessServer
from tests.server.staging import until

SIZE: Final = 1 << 18
"""Numbers of four bytes: one megabyte, which goes through a block."""

LITTLE: Final = 1 << 14
"""Bytes of messages that carry no such array."""


@pytest.fixture
def client(in_process_server: InProcessServer) -> Client:
    """A client of it, which has made a connection and a block."""
    client = in_process_server.client()
    client.put(np.ones(SIZE, np.float32))
    return client


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where a function stops while it runs."""
    return Gate(tmp_path / "gate")


def ones(value: float = 1.0) -> Any:
    """An array that goes through a block."""
    return np.full(SIZE, value, np.float32)


def moved(client: Client, do: Callable[[], Any]) -> int:
    """Bytes that went over the socket meanwhile, both ways."""
    before = client.statistics()
    do()
    after = client.statistics()
    both = (after.bytes_received - before.bytes_received, after.bytes_sent - before.bytes_sent)
    return sum(both)


def blocks() -> int:
    """How many blocks this process has."""
    return len(shared_pool()._blocks)


def stopping_at(gate: Gate) -> Callable[[Any, Any], Any]:
    """Adds; waits at the gate before it looks at its second argument: when the first is -1."""

    def pass_gate(x: Any) -> Any:
        if np.ravel(x)[0] < 0:
            Path(gate.path).read_bytes()
        return np.asarray(x)

    def step(x: Any, y: Any) -> Any:
        first = jax.pure_callback(pass_gate, jax.typeof(x[:1]), x[:1])
        return jnp.where(first > 0, y, y + 1) + x

    return step


# what goes through it -----------------------------------------------------------------------------


def test_large_arrays_do_not_go_over_the_socket(client: Client) -> None:
    """Neither arguments nor results, called, submitted, put and fetched."""
    double = client.persistent_call(lambda x: x * 2)
    double(ones())

    def use() -> None:
        results = [double(ones(3)), double.submit(ones(3)).result(), double(client.put(ones(3)))]
        for result in jaxd.get(results):
            np.testing.assert_array_equal(result, ones(6))

    assert moved(client, use) < LITTLE


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "bfloat16", "complex64", "bool"])
def test_every_dtype_goes_there_and_back(client: Client, dtype: str) -> None:
    """With its numbers."""
    same = client.persistent_call(lambda x: x[::-1])
    array = (np.arange(1 << 20) % 100).astype(jnp.dtype(dtype))
    np.testing.assert_array_equal(np.asarray(same(array)), array[::-1])
    np.testing.assert_array_equal(np.asarray(client.put(array)), array)


def test_weak_types_stay_weak(client: Client) -> None:
    """What they give way to decides about the dtype of the result."""
    add = client.persistent_call(lambda x, y: x + y)
    weak = jnp.full(SIZE, 2.0).astype(float) * 1
    weak = jax.lax.full_like(weak, 2.0) if weak.weak_type else jnp.broadcast_to(2.0, (SIZE,))
    small = jnp.ones(SIZE, jnp.bfloat16)
    expected = jax.jit(lambda x, y: x + y)(weak, small)
    assert add(weak, small).dtype == expected.dtype
    assert add(client.put(weak), small).dtype == expected.dtype


# whoever writes into its arrays -------------------------------------------------------------------


def test_arrays_may_be_overwritten_when_a_call_has_returned(client: Client) -> None:
    """A call, one that is submitted, one that returns before it has run."""
    double = client.persistent_call(lambda x: x * 2)
    add = client.persistent_call(lambda state, x: state + x)
    state = add(add(client.put(ones(0)), ones()), ones())
    batch, results, futures = np.empty(SIZE, np.float32), [], []
    for i in range(12):
        batch[:] = i
        results.append(double(batch))
        batch[:] = i
        futures.append(double.submit(batch))
        batch[:] = i
        state = add(state, batch)
        batch[:] = -1
    for i, (result, future) in enumerate(zip(results, futures, strict=True)):
        np.testing.assert_array_equal(np.asarray(result), ones(2 * i))
        np.testing.assert_array_equal(np.asarray(future.result()), ones(2 * i))
    np.testing.assert_array_equal(np.asarray(state), ones(2 + sum(range(12))))


def test_a_batch_is_overwritten_before_its_call_has_run(client: Client, gate: Gate) -> None:
    """The call has its own copy, in a block that nobody else is given."""
    step = client.persistent_call(stopping_at(gate))
    state = step(step(client.put(ones(1)), ones(1)), ones(1))
    stuck = step(client.put(ones(-1)), ones(5))
    batch = ones(7)
    state = step(state, batch)
    batch[:] = 9
    others = [client.put(ones(i)) for i in range(4)]
    with gate.reached():
        batch[:] = 11
    np.testing.assert_array_equal(np.asarray(state), ones(10))
    np.testing.assert_array_equal(np.asarray(stuck), ones(5))
    assert [float(other[0]) for other in others] == [0, 1, 2, 3]


def test_a_result_that_is_its_argument_is_not_overwritten(client: Client) -> None:
    """The block in which it came is used for other calls."""
    same = client.persistent_call(lambda x: x)
    both = client.persistent_call(lambda x, y: (x, y, x + y), results="remote")
    kept = [same(ones(i)) for i in range(6)]
    array = jaxd.empty(SIZE, np.float32)
    array[:] = 7
    kept.append(same(array))
    kept += both(array, ones(8))
    kept.append(same.remote(array))
    array[:] = -1
    for i in range(6):
        same(ones(100 + i))
    found = [float(np.asarray(x)[[0, -1]].sum()) / 2 for x in kept]
    assert found == [0, 1, 2, 3, 4, 5, 7, 7, 8, 15, 7]


def test_a_fetched_array_outlives_the_blocks_next_use(client: Client) -> None:
    """Whether it was copied or not."""
    there = [client.put(ones(i)) for i in range(6)]
    views = [x.fetch(copy=False) for x in there[:3]] + [x.fetch() for x in there[3:]]
    del there
    double = client.persistent_call(lambda x: x * 2)
    for i in range(8):
        double(ones(50 + i))
        np.asarray(client.put(ones(60 + i)))
    assert [float(view[0]) for view in views] == [float(view[-1]) for view in views]
    assert [float(view[0]) for view in views] == [0, 1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_what_a_child_has_stays_as_it_is(client: Client) -> None:
    """Though its parent lets go of it, and goes on."""
    there = client.put(ones(5))
    view, whole = np.asarray(there.fetch(copy=False)), np.asarray(client.put(ones(6)))
    ready, go = os.pipe()
    child = os.fork()
    if not child:  # where jax cannot be used any more
        os.close(go)
        os.read(ready, 1)
        os._exit(0 if (view == 5).all() and (whole == 6).all() else 1)
    del view, whole, there
    gc.collect()
    for i in range(6):
        np.asarray(client.put(ones(50 + i)))
    os.write(go, b"x")
    os.close(go)
    os.close(ready)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_block_that_a_fetch_may_still_fill_is_not_used_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller was interrupted; another fetch has its own."""
    there = client.put(ones(5))
    asked: list[Any] = []
    lease = BlockPool.lease

    def noted(pool: BlockPool, *sizes: int) -> Any:
        asked.append(lease(pool, *sizes))
        return asked[-1]

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BlockPool, "lease", noted)
        patch.setattr(client.caller.session.connection().shared_reader, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            there.fetch()
    (block,) = asked
    np.testing.assert_array_equal(there.fetch(), ones(5))
    until(lambda: block not in used_blocks())


def used_blocks() -> list[Any]:
    """Those of this process, after what was given back was sorted out."""
    pool = shared_pool()
    with pool._lock:
        pool._reclaim()
        return list(pool._blocks.values())


# arrays that lie there already --------------------------------------------------------------------


def test_arrays_of_empty_are_not_copied(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a whole, in slices, twice in one call; and may be overwritten when the result is here."""
    add = client.persistent_call(lambda x, y: x + y, results="numpy")
    x = jaxd.empty((4, SIZE), np.float32)
    x[:] = np.arange(4)[:, None]
    copies: list[Any] = []
    copy_in = BlockPool.copy_in

    def noted(pool: BlockPool, buffers: Any, **how: Any) -> Any:
        copies.extend(buffers)
        return copy_in(pool, buffers, **how)

    monkeypatch.setattr(BlockPool, "copy_in", noted)
    np.testing.assert_array_equal(add(x, x), 2 * np.asarray(x))
    np.testing.assert_array_equal(add(x[1], x[3]), ones(4))
    np.testing.assert_array_equal(add(x[1:3], x[2:]), np.stack([ones(3), ones(5)]))
    assert not copies
    x[:] = 5
    np.testing.assert_array_equal(add(x[0], x[1]), ones(10))


def test_a_call_on_such_an_array_does_not_return_before(client: Client, gate: Gate) -> None:
    """It would be overwritten too early."""
    step = client.persistent_call(stopping_at(gate))
    batch = jaxd.empty(SIZE, np.float32)
    batch[:] = 1
    state = step(step(client.put(ones(1)), batch), batch)
    stuck = client.put(ones(-1))
    running = in_thread(step, stuck, batch)
    with gate.reached():
        assert not running.done()
    np.testing.assert_array_equal(np.asarray(running.result(30)), ones(1))
    np.testing.assert_array_equal(np.asarray(state), ones(3))


def test_a_submitted_one_is_copied(client: Client, gate: Gate) -> None:
    """It may be overwritten at once."""
    step = client.persistent_call(stopping_at(gate))
    first = client.put(ones(-1))
    step(client.put(ones(1)), ones(1))
    batch = jaxd.empty(SIZE, np.float32)
    batch[:] = 3
    futures = [step.submit(first, batch), step.submit(ones(2), batch)]
    batch[:] = 4
    with gate.reached():
        batch[:] = 5
    assert [float(future.result(30)[0]) for future in futures] == [3.0, 5.0]


# where it cannot be used --------------------------------------------------------------------------


def assert_right_over_the_socket(client: Client) -> None:
    """Values, calls and results are what they should be, and were sent."""
    add = client.persistent_call(lambda x, y: x + y)

    def use() -> None:
        state = client.put(ones(1))
        batch = ones(2)
        for _ in range(4):
            state = add(state, batch)
        batch[:] = 5
        np.testing.assert_array_equal(np.asarray(state), ones(9))
        np.testing.assert_array_equal(np.asarray(add(batch, batch)), ones(10))
        future = add.submit(batch, batch)
        batch[:] = 0
        np.testing.assert_array_equal(np.asarray(future.result()), ones(10))

    assert moved(client, use) > 4 * SIZE * 4


def test_a_system_without_such_memory(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything goes over the socket."""
    monkeypatch.setattr(shared_memory, "available", lambda: False)
    client = connect(in_process_server.unix)
    client.caller.session.transfer_router.made = TransferRouter(BlockPool(1 << 30))
    assert_right_over_the_socket(client)
    client.close()


def test_no_room_for_blocks(in_process_server: InProcessServer) -> None:
    """What has no room goes over the socket."""
    client = connect(in_process_server.unix)
    client.caller.session.transfer_router.made = TransferRouter(BlockPool(1 << 18))
    assert_right_over_the_socket(client)
    client.close()


def test_a_server_that_takes_little(in_process_server: InProcessServer) -> None:
    """It maps no more than it was told to."""
    object.__setattr__(in_process_server.parts._worker_context, "max_shared_bytes", 1 << 19)
    client = connect(in_process_server.unix)
    assert_right_over_the_socket(client)
    client.close()


class Forwarder:
    """Passes a Unix socket on, byte for byte: open files are lost on the way."""

    def __init__(self, path: str, target: str) -> None:
        self.address = f"unix://{path}"
        self._target = target.removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._open = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    self._start(self._pass, one, other)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends it with all its connections."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._open:
            one.close()


def test_descriptors_that_get_lost_on_the_way(
    in_process_server: InProcessServer, runtime: Path
) -> None:
    """The client finds out with the first block."""
    between = Forwarder(f"{runtime}/between.sock", in_process_server.unix)
    with connect(between.address) as client:
        assert_right_over_the_socket(client)
        assert not client.caller.session.connection().passes_descriptors
    between.close()


# many, and for long -------------------------------------------------------------------------------


@pytest.mark.slow
def test_threads_share_the_blocks(client: Client) -> None:
    """Each has its own numbers back."""
    add = client.persistent_call(lambda x, y: x + y)

    def work(number: int) -> bool:
        state = client.put(ones(number))
        for i in range(10):
            state = add(state, ones(i))
            if not bool((np.asarray(add(ones(number), ones(i))) == number + i).all()):
                return False
        return bool((np.asarray(state) == number + 45).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def test_an_endless_map_uses_the_same_blocks(
    client: Client, in_process_server: InProcessServer
) -> None:
    """However many batches there are: no more than may be on their way."""
    total = client.persistent_call(lambda x: x[0] + x[-1])
    most, batches = blocks() + in_process_server.options.slots, 3 * in_process_server.options.slots
    found = total.map(ones(i) for i in count())
    assert [float(x) for x in islice(found, batches)] == [2.0 * i for i in range(batches)]
    assert blocks() <= most
    found.close()  # type: ignore[attr-defined]


def test_blocks_are_free_when_nobody_needs_them(client: Client) -> None:
    """After calls, failed calls, fetches and early returns."""
    pool = shared_pool()

    def busy() -> int:
        with pool._lock:
            pool._reclaim()
            return len(pool._blocks) - len(pool._idle)

    gc.collect()
    before = busy()  # what other tests of this process still hold
    add = client.persistent_call(lambda x, y: x + y)
    bad = client.persistent_call(lambda x: x.no_such_attribute)
    state = client.put(ones())
    for _ in range(6):
        state = add(state, ones())
        with pytest.raises(AttributeError):
            bad(ones())
        np.asarray(state)
    jaxd.wait(state)
    del state
    gc.collect()
    until(lambda: busy() <= before)


KILLED: Final = """
import os, signal, sys
import numpy as np
import jaxd
client = jaxd.connect()
add = client.persistent_call(lambda x, y: x + y)
arrays = [jaxd.empty(1 << 20, "f4") for _ in range(8)]
for a in arrays:
    a[:] = 1
    add(a, a)
state = client.put(arrays)
print("there", flush=True)
sys.stdin.read()
"""


def held_by(pid: int) -> tuple[int, int]:
    """Open files of a process, and mappings of files in memory."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return len(os.listdir(f"/proc/{pid}/fd")), maps.count("/memfd:jaxd")


@pytest.mark.soak
def test_a_killed_client_leaves_nothing_behind(start_live: Callable[..., LiveServer]) -> None:
    """The worker has as many open files and mappings as before."""
    server = start_live("--session-grace-s", "0")
    with connect(server.unix) as other:
        other.put(np.ones(3))
    before = held_by(server.worker_pid())

    def nothing_left(other: Client) -> bool:
        other.put(np.ones(3))  # jax lets go of memory when it is called the next time
        return held_by(server.worker_pid())[1] == before[1]

    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=server.environment,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert held_by(server.worker_pid())[1] >= 8
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with connect(server.unix) as other:
            until(lambda: nothing_left(other))
        until(lambda: held_by(server.worker_pid())[0] <= before[0])
