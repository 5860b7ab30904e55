"""What was sent once is not sent again, and nobody sees a difference."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd_protocol.network.addresses import Address
from tests.end_to_end.throttle import MBIT, Throttle, far
from tests.live_server import TOKEN, LiveServer, live_server
from tests.server.staging import until

MIB = 1 << 20
SIZE = MIB // 4  # numbers of 4 bytes


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    """A server of our own: what it holds is counted, and nobody else leaves anything there."""
    with live_server("--session-grace-s", "0") as server:
        yield server


@pytest.fixture(params=["tcp", "unix"])
def client(request: pytest.FixtureRequest, live: LiveServer) -> Iterator[Client]:
    """Over a network, and beside the server, where arrays go through shared memory."""
    with connect(live.tcp if request.param == "tcp" else live.unix, token=TOKEN) as client:
        until(lambda: client.statistics().values == 0)
        yield client


def in_64_bits(array: Any) -> Any:
    """An array of jax that keeps the dtype of one of numpy."""
    with jax.enable_x64(True):
        return jnp.asarray(array)


class Counting:
    """What came into the server, and what it holds."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def values(self) -> int:
        """Arrays that it holds for anybody."""
        return int(self._client.caller.session.ask("statistics")["values"])

    def sent(self, do: Callable[[], Any]) -> int:
        """Bytes that `do` sends over the socket, beside what asking takes."""
        sent = self._client.caller.session.connection()._channel.writer
        before = sent.bytes_sent
        do()
        return int(sent.bytes_sent - before)


@contextmanager
def awaited(values: Callable[[], int], wanted: int) -> Iterator[None]:
    """Behind it the server comes to hold so many arrays: it is told soon, not at once."""
    yield
    gc.collect()
    turn = threading.Event()
    for _ in range(200):
        if values() == wanted:
            return
        turn.wait(0.02)
    assert values() == wanted


@pytest.mark.slow
def test_an_array_of_jax_is_sent_twice_at_most(client: Client) -> None:
    """From the third time on a call moves a few hundred bytes; the results are the same."""
    count = Counting(client)
    before = count.values()
    total = client.persistent_call(lambda x, by: (x * by).sum(), results="numpy")
    x: Any = jnp.arange(SIZE, dtype=jnp.float32) % 7
    want = float(np.asarray(x).sum())
    results: list[float] = []
    moved = [count.sent(lambda: results.append(float(total(x, 2.0)))) for _ in range(5)]
    assert results == [want * 2] * 5
    assert moved[1] > MIB  # to be kept
    assert max(moved[2:]) < 1000
    assert count.values() == before + 1
    with awaited(count.values, before):
        x = None


def test_arrays_of_numpy_are_read_each_time(client: Client) -> None:
    """They can be written to, also those that say that they cannot."""
    total = client.persistent_call(lambda x: x.sum())
    x = np.zeros(SIZE, np.float32)
    for number in range(4):
        x.flags.writeable = True
        x[0] = number
        x.flags.writeable = False
        assert float(total(x)) == number


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("kind", ["weak", "bfloat16", "transposed", "float64"])
def test_what_is_kept_is_the_array_that_was_sent(client: Client, kind: str) -> None:
    """With its dtype, its weak type and its shape: nothing is compiled again for it."""
    make: dict[str, Callable[[], Any]] = {
        "weak": lambda: jnp.broadcast_to(jnp.asarray(2.5), (SIZE,)) * 1,
        "bfloat16": lambda: jnp.arange(SIZE).astype(jnp.bfloat16),
        "float64": lambda: in_64_bits(np.arange(SIZE) + 2.0**40),
        "transposed": lambda: jnp.arange(SIZE, dtype=jnp.float32).reshape(4, -1).T,
    }
    x = make[kind]()

    def plus(x: Any) -> Any:
        return x[:3] + jnp.bfloat16(1)

    here, there = jax.jit(plus)(x), client.persistent_call(plus)
    traces = []
    for _ in range(4):
        result = there(x)
        assert (result.dtype, result.weak_type) == (here.dtype, here.weak_type)
        np.testing.assert_array_equal(np.asarray(result), np.asarray(here))
        traces.append(client.statistics().traces)
    assert len(set(traces)) == 1


def test_what_is_kept_can_be_given_up_again_and_again(client: Client) -> None:
    """The call is given a copy; also twice the same array at once."""

    def sums(x: Any, y: Any) -> Any:
        return x + y, x - y

    there = client.persistent_call(sums, donate_argnums=(0,))
    keeping = client.persistent_call(sums)
    for _ in range(3):
        x = jnp.arange(SIZE, dtype=jnp.float32)
        for function in (keeping, keeping, there):
            more, less = function(x, x)
            assert float(np.asarray(more)[-1]) == 2 * (SIZE - 1)
            assert float(np.abs(np.asarray(less)).max()) == 0


def test_results_that_stay_are_computed_from_what_is_kept(client: Client) -> None:
    """A loop over values, with data that stays the same."""
    step = client.persistent_call(lambda state, data: state + data, results="remote")
    count = Counting(client)
    data, state = jnp.ones(SIZE, jnp.float32), client.put(np.zeros(SIZE, np.float32))
    moved = []

    def once() -> None:
        nonlocal state
        state = step(state, data)
        state.block_until_ready()

    moved = [count.sent(once) for _ in range(5)]
    assert float(np.asarray(state)[0]) == 5
    assert max(moved[2:]) < 1000


def test_many_threads_may_send_the_same_array(client: Client) -> None:
    """Each gets its own result."""
    total = client.persistent_call(lambda x, by: (x[:8] * by).sum())
    x = jnp.ones(SIZE, jnp.float32)
    futures = [total.submit(x, by) for by in range(20)]
    assert [float(future.result()) for future in futures] == [8.0 * by for by in range(20)]
    found: list[float] = []
    threads = [
        threading.Thread(target=lambda by=by: found.append(float(total(x, by)))) for by in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [8.0 * by for by in range(8)]


# by content -----------------------------------------------------------------------------------


@pytest.fixture
def slow(live: LiveServer) -> Iterator[Callable[[], Client]]:
    """Makes clients behind a slow link that seems to be a far one."""
    with Throttle(Address.parse(live.tcp).port, 400 * MBIT) as throttle, ExitStack() as clients:

        def make() -> Client:
            return far(clients.enter_context(connect(throttle.address, token=TOKEN)))

        yield make


def test_what_is_in_an_array_of_numpy_is_sent_once(slow: Callable[[], Client]) -> None:
    """Neither again by this client nor by the next one of the same user."""
    x = np.random.default_rng(1).random(SIZE, np.float32)
    want = float(x.sum(dtype=np.float64))

    def moved() -> list[int]:
        client, results = slow(), []
        total = client.persistent_call(lambda x: x.sum())
        count = Counting(client)
        sent = [count.sent(lambda: results.append(float(total(np.array(x))))) for _ in range(3)]
        assert results == pytest.approx([want] * 3)
        return sent

    first, *later = moved() + moved()
    assert first > MIB
    assert max(later) < 4000


def test_an_array_of_64_bits_that_was_sent_is_numpys_or_jaxs_as_before(
    slow: Callable[[], Client],
) -> None:
    """One of numpy is narrowed as by jax, one of jax is not: whether it is sent or found."""
    client = slow()
    back = client.persistent_call(lambda x: x[-2:], results="numpy")
    x = np.arange(SIZE) + (1 << 40)
    for _ in range(3):
        for given in (np.array(x), in_64_bits(x)):
            here, there = jax.jit(lambda x: x[-2:])(given), back(given)
            assert (there.dtype, there.tolist()) == (here.dtype, here.tolist())


def test_over_a_slow_link_arrays_of_jax_are_sent_once(slow: Callable[[], Client]) -> None:
    """By content as well; then they are not even hashed."""
    client = slow()
    total, count = client.persistent_call(lambda x: x.sum()), Counting(client)
    x = jnp.arange(SIZE, dtype=jnp.float32) % 5
    moved = [count.sent(lambda: total(x)) for _ in range(2)]
    with patch("jaxd.transfer.content_cache.content_id", side_effect=AssertionError):
        moved.append(count.sent(lambda: total(x)))
    assert float(total(x)) == float(x.sum())
    assert moved[0] > MIB
    assert max(moved[1:]) < 4000


def test_an_array_that_was_written_to_is_another_one(slow: Callable[[], Client]) -> None:
    """In place, by one bit, between two calls; and as it was before, it is there again."""
    client = slow()
    last = client.persistent_call(lambda x: x[-1])
    count = Counting(client)
    x = np.random.default_rng(2).random(SIZE, np.float32)
    moved, found = [], []
    for number in (1, 2, 1, 2):
        x[-1] = number
        moved.append(count.sent(lambda: found.append(float(last(x)))))
    assert found == [1, 2, 1, 2]
    assert min(moved[:2]) > MIB
    assert max(moved[2:]) < 4000


@pytest.mark.slow
def test_arrays_that_are_always_new_cost_a_few_questions(slow: Callable[[], Client]) -> None:
    """Then they are sent as they are."""
    client = slow()
    first = client.persistent_call(lambda x: x[0])
    asked = []
    request = client.caller.session.connection().request

    def noted(verb: str, *args: Any, **options: Any) -> Any:
        asked.append(verb)
        return request(verb, *args, **options)

    with patch.object(client.caller.session.connection(), "request", noted):
        for number in range(12):
            x = np.full(SIZE, number, np.float32)
            x[1] = 0.5
            assert float(first(x)) == number
    assert (asked.count("adopt"), asked.count("call")) == (8, 12)


def test_a_loop_over_values_sends_its_data_once(slow: Callable[[], Client]) -> None:
    """The second time around, batches are known by their content."""
    client = slow()
    step = client.persistent_call(lambda state, batch: state + batch.sum(), results="remote")
    count = Counting(client)
    # no other test has sent these, which the server may still have
    batches = [np.full(SIZE, 0.5 + number, np.float32) for number in range(3)]
    state = client.put(np.zeros(SIZE, np.float32))
    moved = []

    def epoch() -> None:
        nonlocal state
        for batch in batches:
            state = step(state, batch)
        state.block_until_ready()

    moved = [count.sent(epoch) for _ in range(3)]
    assert float(np.asarray(state)[0]) == 3 * SIZE * (0.5 + 1.5 + 2.5)
    assert moved[0] > 3 * MIB
    assert max(moved[1:]) < 10_000


def test_beside_the_server_nothing_is_hashed(live: LiveServer) -> None:
    """Over a Unix socket arrays go through shared memory, over loopback as quickly."""
    x = np.ones(SIZE, np.float32)
    for where in (live.unix, live.tcp):
        with connect(where, token=TOKEN) as client:
            total = client.persistent_call(lambda x: x.sum())
            with patch("jaxd.transfer.content_cache.content_id", side_effect=AssertionError):
                assert [float(total(x)) for _ in range(3)] == [SIZE] * 3


@pytest.mark.soak
def test_where_there_is_no_room_calls_work_all_the_same(
    start_live: Callable[..., LiveServer],
) -> None:
    """It is brought once to be kept, and not again; shared memory is good enough then."""
    server = start_live("--value-bytes", "512K")
    with connect(server.unix) as client:
        count = Counting(client)
        total = client.persistent_call(lambda x: x.sum())
        x = jnp.ones(SIZE, jnp.float32)
        results: list[float] = []
        moved = [count.sent(lambda: results.append(float(total(x)))) for _ in range(5)]
        assert results == [SIZE] * 5
        assert [nbytes > MIB for nbytes in moved] == [False, True, False, False, False]
        assert count.values() == 0


@pytest.mark.slow
def test_a_new_session_begins_anew(start_live: Callable[..., LiveServer]) -> None:
    """When the server is another one than before, it is sent the data again."""
    server = start_live("--session-grace-s", "0")
    with connect(server.tcp, token=TOKEN) as client:
        total = client.persistent_call(lambda x: x.sum())
        x = jnp.ones(SIZE, jnp.float32)
        for _ in range(3):
            assert float(total(x)) == SIZE
        client.close()
        for _ in range(3):
            assert float(total(x)) == SIZE
