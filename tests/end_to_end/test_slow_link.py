"""A slow link: compression, progress on the terminal, and interrupts in the middle."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd_protocol.network.addresses import Address
from tests.end_to_end.terminals import TerminalProcess
from tests.end_to_end.throttle import MBIT, Throttle, far
from tests.live_server import TOKEN, LiveServer
from tests.server.staging import until

pytestmark = pytest.mark.soak  # a slow link takes its time

MIB = 1 << 20


@pytest.fixture
def link(live: LiveServer) -> Iterator[Callable[..., Throttle]]:
    """Makes slow links to the common server."""
    made: list[Throttle] = []

    def make(bytes_per_s: float) -> Throttle:
        made.append(Throttle(Address.parse(live.tcp).port, bytes_per_s))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("wanted", [True, False])
def test_arrays_are_compressed_where_it_is_wanted(
    link: Callable[..., Throttle], monkeypatch: pytest.MonkeyPatch, *, wanted: bool
) -> None:
    """The results are the same; numbers of jax and of numpy, also several at once."""
    import jax.numpy as jnp

    monkeypatch.setenv("JAXD_COMPRESS", "1" if wanted else "0")
    with connect(link(400 * MBIT).address, token=TOKEN) as client:
        total = far(client).persistent_call(lambda x, y, z: (x.sum(), y.sum(), z.sum()))
        arrays = (
            np.arange(100_000, dtype=np.int32) % 10,
            jnp.arange(50_000, dtype=jnp.float32) % 4,
            np.random.default_rng(0).random(50_000, np.float32),
        )
        writer = client.caller.session.connection()._channel.writer
        before = writer.bytes_sent
        results = [float(one) for one in total(*arrays)]
        moved = writer.bytes_sent - before
    assert results == pytest.approx([float(np.asarray(one).sum()) for one in arrays])
    assert (moved < 400_000) is wanted  # of 800,000, of which 200,000 are noise


# progress and interrupts ------------------------------------------------------------------------

LARGE = 24 * MIB // 4  # numbers of 4 bytes

BOTH_WAYS = """
import numpy as np
from jaxd import persistent_call

@persistent_call(results="numpy")
def ramp(x):
    import jax.numpy as jnp
    return x[0] + jnp.arange(%d, dtype=jnp.float32)

ramp(np.zeros(1, np.float32))
x = np.ones(%d, np.float32)
print(float(ramp(x)[-1]))
"""


@pytest.mark.parametrize("word", ["sending", "receiving"])
def test_a_long_transfer_shows_on_the_terminal(
    link: Callable[..., Throttle], live: LiveServer, word: str
) -> None:
    """In either direction, and not for longer than it takes."""
    sent, received = (LARGE, 4) if word == "sending" else (4, LARGE)
    environment = live.environment | {"JAXD_SERVER": link(10 * MIB).address}
    with TerminalProcess(BOTH_WAYS % (received, sent), [], environment) as terminal:
        terminal.wait_for(f"jaxd: {word} ")
        terminal.wait_for(" of 25.2 MB")
        assert terminal.end() == (0, f"{float(received)}\n")
    assert word not in terminal.said.rsplit("\r", 2)[1]


@contextmanager
def interrupted(client: Client, word: str) -> Iterator[None]:
    """Ctrl-C as soon as a part of something has been sent or received."""
    connection, over = client.caller.session.connection(), threading.Event()

    def interrupt() -> None:
        while not over.wait(0.01):
            found = connection.transfer_progress()
            if found is not None and found[0] == word and 0 < found[1] < found[2]:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("word", ["sending", "receiving"])
def test_an_interrupt_in_a_long_transfer_leaves_the_connection_usable(
    link: Callable[..., Throttle], word: str
) -> None:
    """What is left of it goes out, or comes in, behind the back of the next call."""
    x: np.ndarray[tuple[int], np.dtype[np.float32]] = np.ones(LARGE, np.float32)
    with connect(link(20 * MIB).address, token=TOKEN) as client:
        first = client.persistent_call(lambda x: x[0], results="numpy")
        ramp = client.persistent_call(ramp_of, static_argnums=(1,), results="numpy")
        assert float(ramp(1.0, 3)[-1]) == 3
        with interrupted(client, word):
            _ = first(x) if word == "sending" else ramp(1.0, LARGE)
        connection = client.caller.session.connection()
        assert float(ramp(1.0, 3)[-1]) == 3
        assert float(first(np.full(3, 7, np.float32))) == 7
        assert client.caller.session.connection() is connection


def ramp_of(start: float, count: int) -> Any:
    """Some numbers."""
    import jax.numpy as jnp

    return start + jnp.arange(count, dtype=jnp.float32)


def test_an_interrupted_call_has_left_nothing_behind(link: Callable[..., Throttle]) -> None:
    """An array of jax whose sending was interrupted is sent again, and kept then, once."""
    import jax.numpy as jnp

    x = jnp.ones(LARGE, jnp.float32)
    with connect(link(40 * MIB).address, token=TOKEN) as client:

        def values() -> int:
            return int(client.caller.session.ask("statistics")["values"])

        before = values()
        total = client.persistent_call(lambda x: x.sum())
        assert float(total(x)) == LARGE
        with interrupted(client, "sending"):
            total(x)
        writer = client.caller.session.connection()._channel.writer
        moved = []
        for _ in range(3):
            assert float(total(x)) == LARGE
            moved.append(writer.bytes_sent)
        assert moved[2] - moved[1] < 4000
        until(lambda: values() == before + 1)
