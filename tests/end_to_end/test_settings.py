"""Nobody gets a program of other settings: in memory, through the program, through the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import connect
from jaxd_server.jax_compat.config import configured
from tests.end_to_end.counting import costs
from tests.fake_packages import FakeSite
from tests.live_server import LiveServer

X = np.linspace(0.5, 2.0, 6, dtype=np.float32)


class Setting(NamedTuple):
    """A setting of jax's, and a function whose result depends on it."""

    name: str
    value: Any
    function: Callable[..., Any]
    argument: Any = X


def draws(seed: Any) -> Any:
    key = jax.random.key(seed)
    return jax.random.normal(key, (6,)), jax.random.key_data(key)


def divides(x: Any) -> Any:
    return jnp.arange(6) / x, jnp.ones(2).astype(float)


def multiplies(x: Any) -> Any:
    return x[:, None] * 3 @ x[None, :]


def mixes(x: Any) -> Any:
    return jnp.ones(6, jnp.int32) + x * 3


def adds(x: Any) -> Any:
    return jnp.ones((2, 6)) + x * 4


def nan(x: Any) -> Any:
    return jnp.log(-x) * 2


def infinite(x: Any) -> Any:
    return x / (x - x + jnp.zeros(6))


SETTINGS = (
    Setting("jax_default_prng_impl", "rbg", draws, np.int32(5)),
    Setting("jax_threefry_partitionable", False, draws, np.int32(5)),
    Setting("jax_enable_x64", True, divides),
    Setting("jax_default_matmul_precision", "highest", multiplies),
    Setting("jax_numpy_dtype_promotion", "strict", mixes),
    Setting("jax_numpy_rank_promotion", "raise", adds),
    Setting("jax_debug_nans", True, nan),
    Setting("jax_debug_infs", True, infinite),
)


def outcome(call: Callable[[Any], Any], argument: Any) -> Any:
    """Bits and types of a result, or the name of the error."""
    try:
        leaves = jax.tree.leaves(call(argument))
        return [(str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()) for leaf in leaves]
    except Exception as error:  # noqa: BLE001  whatever the setting makes of it
        return type(error).__name__


def expected(setting: Setting, *, is_set: bool) -> Any:
    """What jax does here."""

    def fresh(x: Any) -> Any:  # for one that jax knows it forgets that the settings are others
        return setting.function(x)

    with configured(((setting.name, setting.value),) if is_set else ()):
        return outcome(jax.jit(fresh), setting.argument)


@pytest.mark.soak
def test_no_setting_of_one_client_reaches_another(
    start_live: Callable[..., LiveServer], runtime: Path
) -> None:
    """Neither in memory, nor through the program, nor through the disk, in whatever order."""
    wanted = [
        {is_set: expected(each, is_set=is_set) for is_set in (True, False)} for each in SETTINGS
    ]
    counts = []
    elsewhere = runtime / "elsewhere"
    # What the second server is started with must not matter either.
    variables = {
        "JAX_ENABLE_X64": "1",
        "JAX_DEFAULT_PRNG_IMPL": "rbg",
        "JAX_DEBUG_NANS": "1",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "JAX_COMPILATION_CACHE_DIR": str(elsewhere),
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "JAX_LOG_COMPILES": "0",
    }
    for order, environment in (((False, True), {}), ((True, False), variables)):
        server = start_live(name=f"set-first-{order[0]}", **environment)
        with connect(server.unix) as one, connect(server.unix) as other, costs(one) as spent:
            for setting, want in zip(SETTINGS, wanted, strict=True):
                for is_set in order * 2:
                    client = other if is_set else one
                    config = {setting.name: setting.value} if is_set else None
                    step = client.persistent_call(setting.function, config=config)
                    found = outcome(step, setting.argument)
                    assert found == want[is_set], (setting.name, is_set)
        counts.append(spent)
        assert server.close() == 0
    assert not elsewhere.exists()
    assert "programs_shared" not in counts[0]
    # two of each; `draws` has only one under the defaults, and two settings refuse to be traced
    assert counts[0]["compiles"] >= 2 * len(SETTINGS) - 1 - 2
    assert counts[1]["executable_loads"] == 2 * len(SETTINGS) - 1 - 2


SETS_ONE = """
import jax
jax.config.update("jax_default_matmul_precision", "float32")
def double(x):
    return x * 2
"""
USES_IT = """
import json, numpy, a_library
from jaxd import persistent_call, statistics

@persistent_call
def f(x):
    return a_library.double(x) + 1

result = f(numpy.float32(3))
print(json.dumps([float(result), statistics().traces]))
"""


@pytest.mark.slow
def test_a_package_that_sets_something_when_it_is_imported_is_served(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """As dynamax does: the client's own setting travels, and the server's import is undone."""
    site = FakeSite(tmp_path)
    site.install("a_library", "1.0", {"a_library/__init__.py": SETS_ONE})
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(site.path)])
    live = start_live("--build-in", "worker", PYTHONPATH=path)
    done = [live.run(USES_IT, PYTHONPATH=path, JAXD_FALLBACK="error") for _ in range(2)]
    assert [json.loads(each.stdout or "0") for each in done] == [[7.0, 1]] * 2, done[0].stderr
