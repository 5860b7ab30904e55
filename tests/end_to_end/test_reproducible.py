"""The same key answers with the same bits, as long as the cache lives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jaxd import connect
from tests.end_to_end.counting import costs
from tests.live_server import LiveServer

pytestmark = pytest.mark.soak  # many fresh processes, one after the other

HEAVY = """
import hashlib
from typing import Any, NamedTuple
import numpy as np
from jaxd import persistent_call

class Sums(NamedTuple):
    total: Any
    log: Any
    product: Any
    share: Any

@persistent_call(results="numpy", static_argnames="parts")
def reduce(x, parts):
    import jax
    import jax.numpy as jnp

    assert parts == {"total", "log", "product", "share"}
    m = x.reshape(1000, 1000)
    log = jax.scipy.special.logsumexp(x)
    return Sums(x.sum(), log, (m @ m.T).mean(axis=1), jax.nn.softmax(x))

x = np.sin(np.arange(1_000_000, dtype=np.float32))
sums = reduce(x, parts=frozenset(Sums._fields))  # in another order in each process
assert type(sums) is Sums
assert abs(sums.share.sum() - 1) < 1e-3
assert np.allclose(sums.log, np.log(np.exp(x.astype(np.float64)).sum()), rtol=1e-4)
print(hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in sums)).hexdigest())
"""


def test_ten_fresh_clients_over_a_restart(start_live: Callable[..., LiveServer]) -> None:
    """One compilation, one load, and the same bits of sums, products and exponentials."""
    bits, spent = set(), []
    for name in ("first", "second"):
        server = start_live(name=name)
        with connect(server.unix) as client, costs(client) as cost:
            for _ in range(5):
                done = server.run(HEAVY)
                assert (done.returncode, done.stderr) == (0, "")
                bits.add(done.stdout)
        spent.append(cost)
        assert server.close() == 0
    assert len(bits) == 1
    assert spent == [
        {"traces": 1, "lowers": 1, "compiles": 1, "executable_hits": 4},
        {"executable_loads": 1, "executable_hits": 4},
    ]


SETTING = """
import numpy as np
from jaxd import persistent_call

@persistent_call(results="numpy")
def draw(seed):
    import jax
    key = jax.random.key(seed)
    return jax.random.key_data(key), jax.random.normal(key, (3,)), jax.numpy.arange(2) / 3

print([(each.dtype.name, each.tolist()) for each in draw(np.int32(7))])
"""


def test_processes_with_other_settings(start_live: Callable[..., LiveServer]) -> None:
    """Each gets what its own environment asks for, before and after a restart."""
    settings: tuple[dict[str, str], ...] = (
        {},
        {"JAX_DEFAULT_PRNG_IMPL": "rbg"},
        {"JAX_ENABLE_X64": "1"},
    )
    told: list[list[str]] = []
    for order in (settings, settings[::-1]):
        server = start_live(name=f"s{len(told)}")
        with connect(server.unix) as client, costs(client) as cost:
            runs = [server.run(SETTING, **setting) for setting in order]
        assert [run.stderr for run in runs] == [""] * 3
        told.append([run.stdout for run in runs])
        assert cost["compiles" if order is settings else "executable_loads"] == 3
        assert server.close() == 0
    assert told[1] == told[0][::-1]
    plain, rbg, x64 = told[0]
    assert len({plain, rbg, x64}) == 3
    assert plain.startswith("[('uint32', [0, 7]), ('float32'")
    assert rbg.startswith("[('uint32', [0, 7, 0, 7]), ('float32'")
    assert x64.startswith("[('uint32', [0, 7]), ('float64'")
