"""What a fresh process loads until it has its first result: each module costs it time.

A first call of a known function is what a client starts for, so this is counted and held. What is
needed only by some calls (values of the server, blocks, errors, callbacks, jax) is imported by the
function that needs it.
"""

from __future__ import annotations

import pytest

from tests.another_server import own_server_needed
from tests.live_server import LiveServer

PROGRAM = """
import sys
import numpy as np
from jaxd import persistent_call

@persistent_call(extra_key="what a first call loads")
def scaled(x, by):
    return x * by

assert scaled(np.ones(3, "f4"), 2.0).tolist() == [2.0, 2.0, 2.0]
print(*sys.modules)
"""

MOST_OF_OUR_OWN = 104
"""Raise it for what every first call needs, and only for that."""

NOT_NEEDED = (
    "cloudpickle",
    "dataclasses",
    "jax",
    "jaxd.batching",
    "jaxd.block_arrays",
    "jaxd.blocks",
    "jaxd.callbacks",
    "jaxd.client",
    "jaxd.compression",
    "jaxd.contents",
    "jaxd.discovery",
    "jaxd.flights",
    "jaxd.frames",
    "jaxd.hearing",
    "jaxd.indexing",
    "jaxd.jax_nodes",
    "jaxd.losses",
    "jaxd.lost_values",
    "jaxd.questions",
    "jaxd.raised",
    "jaxd.remote_array",
    "jaxd.sent_before",
    "jaxd_protocol.failures",
    "jaxd_protocol.fingerprint.archives",
    "jaxd_protocol.fingerprint.instances",
    "jaxd_protocol.jax_objects",
    "jaxd_protocol.live",
    "jaxd_protocol.local_server",
    "jaxd_protocol.packing",
    "mmap",
    "multiprocessing",
    "secrets",
    "sysconfig",
    "tomllib",
    "urllib",
)


@pytest.fixture(scope="module")
def loaded(live: LiveServer) -> list[str]:
    """The modules of a process whose function another one has made known."""
    own_server_needed()
    live.run(PROGRAM)
    done = live.run(PROGRAM)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_first_call_loads_few_modules_of_our_own(loaded: list[str]) -> None:
    """No more than there are now."""
    own = [name for name in loaded if name.partition(".")[0] in ("jaxd", "jaxd_protocol")]
    assert len(own) <= MOST_OF_OUR_OWN, sorted(own)


def test_a_first_call_loads_nothing_that_only_others_need(loaded: list[str]) -> None:
    """Neither of ours nor of the standard library."""
    assert sorted(set(NOT_NEEDED) & set(loaded)) == []
