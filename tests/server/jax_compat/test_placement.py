"""Programs and arrays on several devices, in a process that has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_server.jax_compat.placement import (
    are_several,
    index_of,
    is_bound,
    place_of,
    placed,
    places_of,
)
from tests.xla_flags import devices

PROGRAM = """
import json, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxd_server.jax_compat import programs as jax_programs
from jaxd_server.jax_compat.placement import *
assert jax_programs.prepare() == ()
x, found = np.ones(4, np.float32), {}
devices = jax.devices()
ids = lambda results: [[d.id for d in r.devices()] for r in results]

def lowered(f, *args, **options):
    return jax.jit(f, **options).lower(*args)

plain = lambda x: {"a": x * 2, "b": jnp.linalg.eigh(jnp.outer(x, x))[0]}
low = lowered(plain, x)
one = jax_programs.compile_flat(low)
for index in (0, 2):
    there, _ = read_program(jax_programs.serialized(one, (1,)), index)
    found[f"moved to {index}"] = ids(there(x))
    found[f"committed {index}"] = [r.committed for r in there(x)]
    same = [np.asarray(r) for r in one(x)]
    found[f"same {index}"] = all(np.array_equal(r, s) for r, s in zip(there(x), same))
data = jax_programs.serialized(one, (0,))
program, on = read_program(data, 1)
found["read for 1"] = [ids(program(x)), on]
program, on = read_program(data, 0)
found["read for 0"] = [ids(program(x)), on]
with jax.default_device(devices[2]):
    there = jnp.ones(4)
found["uncommitted of another"] = ids(program(there))
low = lowered(plain, x)
elsewhere = move_lowered(low, 1)
found["compiled for 1"] = ids(jax_programs.compile_flat(elsewhere)(x))
found["and for 0"] = ids(jax_programs.compile_flat(low)(x))

mesh = Mesh(np.array(devices), ("i",))
spread = NamedSharding(mesh, PartitionSpec("i"))
put = jax.device_put(x, devices[1])
found["bound"] = {
    "plain": is_bound(lowered(plain, x)),
    "of another": is_bound(lowered(plain, there)),
    "mesh": is_bound(lowered(lambda x: jax.lax.with_sharding_constraint(x, spread), x)),
    "argument": is_bound(lowered(plain, put)),
    "first": is_bound(lowered(plain, jax.device_put(x, devices[0]))),
    "result": is_bound(lowered(plain, x, out_shardings=SingleDeviceSharding(devices[0]))),
}
on_1 = jax_programs.compile_flat(lowered(plain, put))
program, on = read_program(jax_programs.serialized(on_1, (1,)), None)
found["bound to 1"] = [ids(program(put)), on]
found["several"] = are_several()
with placed(2):
    found["placed"] = ids([jax.device_put(x), jnp.ones(2)])
names = [place_name(s) for s in (spread, NamedSharding(mesh, PartitionSpec(None)), put.sharding,
    jax.device_put(x, devices[2]).sharding,
    NamedSharding(Mesh(np.array(devices[::-1]), ("i",)), PartitionSpec("i")))]
found["names"] = len(set(names))
found["same name"] = place_name(spread) == place_name(jax.device_put(np.ones(4), spread).sharding)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> Any:
    """What four devices have to say."""
    flags = {**devices(4), "JAX_PLATFORMS": "cpu"}
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **flags, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_program_runs_where_it_is_wanted(found: Any) -> None:
    """Moved, with the same results, or read or compiled for it, without being lowered again."""
    for index in (0, 2):
        assert found[f"moved to {index}"] == [[index], [index]]
        assert found[f"committed {index}"] == [False, False]
        assert found[f"same {index}"]
    assert found["read for 1"] == [[[1], [1]], [1]]
    assert found["read for 0"] == [[[0], [0]], [0]]
    assert found["bound to 1"] == [[[1], [1]], [1]]
    assert found["uncommitted of another"] == [[0], [0]]
    assert found["compiled for 1"] == [[1], [1]]
    assert found["and for 0"] == [[0], [0]]


def test_a_program_is_bound_when_somebody_has_named_its_devices(found: Any) -> None:
    """In it, in its options, or by putting an argument somewhere."""
    assert found["bound"] == {
        "plain": False,
        "of another": False,
        "mesh": True,
        "argument": True,
        "first": True,
        "result": True,
    }


def test_what_goes_nowhere_in_particular_goes_where_it_is_placed(found: Any) -> None:
    """In this thread, as long as the block lasts."""
    assert found["placed"] == [[2], [2]]
    assert found["several"] is True
    assert found["names"] == 5
    assert found["same name"]


def test_with_one_device_nothing_is_to_be_chosen() -> None:
    """Whatever was put there on purpose; a jax that says nothing binds every program."""
    assert are_several() is False
    assert index_of(jax.devices()[0].id) == 0
    with placed(0):
        array = jax.device_put(np.ones(2))
    put = jax.device_put(np.ones(2), jax.devices()[0])
    assert (place_of(array), place_of(3.0), place_of(np.ones(2))) == (None, None, None)
    assert places_of([array, put, 1]) == ((1, put.sharding),)
    assert is_bound(object())  # type: ignore[arg-type]
