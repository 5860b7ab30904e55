"""Lowered programs that go to another process: the same program arrives, or none at all."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jax_objects import lowered_bytes
from jaxd_protocol.jax_objects.arrays import key_array, key_data, weak_array
from jaxd_protocol.jax_objects.lowered_bytes import NotTransferable, pack_lowered
from jaxd_protocol.jit.options import Options
from jaxd_server.jax_compat.lowered import device_ids, out_leaves, program_id
from jaxd_server.jax_compat.lowered_transfer import can_unpack, sample_program, unpack_lowered
from jaxd_server.jax_compat.programs import compile_flat
from tests.live_server import source_environment
from tests.server.in_process import prepare_once

ONES = np.ones(3, np.float32)
KEYS = np.array([[1, 2], [3, 4]], np.uint32)


@pytest.fixture(autouse=True, scope="module")
def _prepared() -> None:
    prepare_once()


def lower(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The function, lowered for these arguments."""
    return jax.jit(function, **options).lower(*args)


def handed(lowered: Any) -> Any:
    """The same, as it arrives."""
    return unpack_lowered(pack_lowered(lowered))


def _step(p: Any, x: Any) -> Any:
    return {"p": jax.tree.map(lambda a: a - 0.1 * x.sum(), p), "loss": jnp.tanh(x).sum()}


LOWERED: dict[str, Callable[[], Any]] = {
    "trees": lambda: lower(_step, {"b": ONES, "a": ONES * 2}, ONES),
    "weak types": lambda: lower(lambda a, b: (a * 2, b), 1.5, weak_array(np.ones(2, np.float32))),
    "unused": lambda: lower(lambda a, b, c: b + 1, ONES, ONES, 3),
    "donated": lambda: lower(lambda a, b: (a + b, b), ONES, ONES, donate_argnums=0),
    "keys": lambda: lower(
        lambda k: jax.random.split(k[0]), key_array("threefry2x32", jnp.asarray(KEYS))
    ),
    "no arguments": lambda: lower(lambda: jnp.arange(3)),
    "no results": lambda: lower(lambda a: (), ONES),
    "lapack": lambda: lower(jnp.linalg.eigh, np.eye(3, dtype=np.float32)),
    "narrow types": lambda: lower(lambda a: a + 1, np.ones(3, jnp.bfloat16)),
    "compiler options": lambda: lower(
        lambda a: a + 1, ONES, compiler_options={"xla_cpu_enable_fast_math": True}
    ),
    "places": lambda: lower(
        lambda a: a * 2,
        ONES,
        out_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[0]),
    ),
}


@pytest.mark.parametrize("case", LOWERED)
def test_what_arrives_is_the_same_program(case: str) -> None:
    """It has the same name, results of the same types, and the same devices."""
    lowered = LOWERED[case]()
    arrived = handed(lowered)
    name, obstacle = program_id(lowered, Options())
    assert obstacle is None
    assert program_id(arrived, Options()) == (name, None)
    assert out_leaves(arrived) == out_leaves(lowered)
    assert device_ids(arrived) == device_ids(lowered)


@pytest.mark.parametrize("case", ["trees", "weak types", "unused", "donated", "lapack"])
def test_it_computes_the_same(case: str) -> None:
    """Called as every flat program is: unused and donated arguments included."""
    lowered = LOWERED[case]()
    leaves = [
        np.asarray(np.eye(*info.shape) if len(info.shape) == 2 else np.ones(info.shape), info.dtype)
        for info in jax.tree.leaves(lowered.args_info)
    ]
    expected, found = (compile_flat(one)(*leaves) for one in (lowered, handed(lowered)))
    assert [np.asarray(one).tolist() for one in found] == [
        np.asarray(one).tolist() for one in expected
    ]
    assert [one.aval.weak_type for one in found] == [one.aval.weak_type for one in expected]


def test_keys_and_wide_numbers_stay_what_they_are() -> None:
    """Keys, and not their numbers."""
    lowered = LOWERED["keys"]()
    keys = key_array("threefry2x32", jnp.asarray(KEYS))
    (expected,), (found,) = (compile_flat(one)(keys) for one in (lowered, handed(lowered)))
    assert key_data(found).tolist() == key_data(expected).tolist()
    with jax.enable_x64(True):
        lowered = lower(lambda a: a + 1, np.ones(2))
        arrived = handed(lowered)
        assert str(out_leaves(arrived)[0].dtype) == "float64"
        assert np.asarray(compile_flat(arrived)(np.ones(2))[0]).dtype == np.float64


def _calls_home(x: Any) -> Any:
    return jax.pure_callback(lambda a: a, x, x)


def _prints(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def _keeps_state(x: Any) -> Any:
    ref = jax.new_ref(x)
    ref[...] = x + 1
    return ref[...]


@pytest.mark.parametrize("function", [_calls_home, _prints])
def test_what_is_only_in_this_process_stays_here(function: Callable[..., Any]) -> None:
    """`program_id` says why, and that is what is raised."""
    lowered = lower(function, ONES)
    _, obstacle = program_id(lowered, Options())
    assert obstacle is not None
    with pytest.raises(NotTransferable, match=obstacle):
        pack_lowered(lowered, obstacle)


def test_what_cannot_be_pickled_is_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker can trace by itself; a reference that is used up inside is no obstacle."""
    lowered = lower(lambda a: a, ONES)
    facts = {**lowered._lowering.compile_args, "host_callbacks": [lambda: None]}
    monkeypatch.setattr(lowered._lowering, "compile_args", facts)
    with pytest.raises(NotTransferable, match="callbacks"):
        pack_lowered(lowered)
    lowered = lower(_keeps_state, ONES)
    _, obstacle = program_id(lowered, Options())
    if obstacle is None:
        assert compile_flat(handed(lowered))(ONES)[0].tolist() == [2.0] * 3


def test_a_name_that_jax_has_moved_is_noticed_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is handed over then, and no call fails."""
    data = pack_lowered(lower(lambda a: a, ONES))
    monkeypatch.setattr(lowered_bytes, "parts_of", attrgetter("_elsewhere"))
    with pytest.raises(NotTransferable, match="_elsewhere"):
        pack_lowered(lower(lambda a: a, ONES))
    monkeypatch.delattr("jax._src.interpreters.pxla.MeshComputation")
    with pytest.raises(NotTransferable, match="MeshComputation"):
        unpack_lowered(data)
    assert not can_unpack(data, b"")


@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps((1, 2))])
def test_what_is_no_program_is_refused(data: bytes) -> None:
    """With the one error that the caller knows."""
    with pytest.raises(NotTransferable):
        unpack_lowered(data)


ELSEWHERE = """
import sys
from jaxd_server.jax_compat import lowered_transfer, programs as jax_programs
from jaxd_server.jax_compat.config import set_default_settings
set_default_settings()
jax_programs.prepare()
data, name = lowered_transfer.sample_program()
sys.stdout.write(f"{name.hex()} {data.hex()}")
"""


@pytest.mark.slow
def test_the_sample_of_another_process_is_understood(tmp_path: Path) -> None:
    """It is the same program as the sample of this process."""
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        env=source_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    name, data = map(bytes.fromhex, run.stdout.split())
    assert can_unpack(data, name)
    assert not can_unpack(data, b"another")
    assert sample_program()[1] == name
