"""What a fresh process loads until it has its first result: each module costs it time.

A first call of a known function is what a client starts for, so this is counted and held. What is
needed only by some calls (values of the server, blocks, errors, callbacks, jax) is imported by the
function that needs it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.another_server import own_server_needed
from tests.end_to_end.unchanged import JAXD_RUN, run
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

MOST_OF_OUR_OWN = 87
"""Raise it for what every first call needs, and only for that."""

NOT_NEEDED = (
    "cloudpickle",
    "dataclasses",
    "jax",
    "jaxd.api.batching",
    "jaxd.transfer.shared_arrays",
    "jaxd.transfer.shared_memory",
    "jaxd.events.jax_callbacks",
    "jaxd.api.client",
    "jaxd.transfer.content_cache",
    "jaxd.connection.discovery",
    "jaxd.remote_values.call_pipeline",
    "jaxd.events.output",
    "jaxd.events.progress",
    "jaxd.interop.remote_array",
    "jaxd.interop.jax_registry",
    "jaxd.interop.lazy_array",
    "jaxd.interop.handle_ranges",
    "jaxd.dispatch.retry",
    "jaxd.remote_values.lineage",
    "jaxd.connection.server_requests",
    "jaxd.results.exceptions",
    "jaxd.transfer.dedup",
    "jaxd.transfer.routing",
    "jaxd_protocol.messages.failures",
    "jaxd_protocol.fingerprint.local_archives",
    "jaxd_protocol.fingerprint.values.instances",
    "jaxd_protocol.jax_objects",
    "jaxd_protocol.fingerprint.client_object",
    "jaxd_protocol.network.local_server",
    "jaxd_protocol.pickling",
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


AT_EXIT = """
import atexit, gc, sys
import numpy as np
from jaxd import persistent_call

class Holder:
    pass

class Finalized:
    def __del__(self):
        print("finalized", flush=True)

def suspended():
    try:
        yield
    finally:
        print("closed", flush=True)

def in_a_cycle(value):
    holder = Holder()
    holder.itself, holder.value = holder, value
    return holder

atexit.register(lambda: print(gc.get_freeze_count() > 1000, flush=True))  # runs as the last one

@persistent_call
def doubled(x):
    return x * 2

doubled(np.ones(3, "f4"))
what = sys.argv[1]
if what == "a file":
    held = in_a_cycle(open(sys.argv[2], "w"))
    held.value.write("written")
elif what == "an object":
    held = in_a_cycle(Finalized())
elif what == "a generator":
    held = in_a_cycle(suspended())
    next(held.value)
"""


def test_a_process_exits_without_a_search_for_garbage(live: LiveServer) -> None:
    """It would find nothing."""
    own_server_needed()
    assert live.run(AT_EXIT, "nothing").stdout == "True\n"


@pytest.mark.slow
def test_what_is_finalized_at_exit_still_is(live: LiveServer, tmp_path: Path) -> None:
    """Text that was not written out yet, `__del__`, and what a generator does at its end."""
    own_server_needed()
    assert live.run(AT_EXIT, "a file", str(tmp_path / "file")).stdout == "False\n"
    assert (tmp_path / "file").read_text() == "written"
    assert live.run(AT_EXIT, "an object").stdout == "False\nfinalized\n"
    assert live.run(AT_EXIT, "a generator").stdout == "False\nclosed\n"


RUN_AT_EXIT = """
import atexit, gc, sys

atexit.register(lambda: print(gc.get_freeze_count() > 1000, flush=True))  # runs as the last one

import jax.numpy as jnp

class Holder:
    pass

def stream():
    try:
        yield
    finally:
        print("closed", flush=True)

def leave_a_cycle():
    held = Holder()
    held.itself, held.array, held.stream = held, jnp.ones(3), stream()
    if "begun" in sys.argv:
        next(held.stream)

gc.disable()
leave_a_cycle()
"""


@pytest.mark.slow
def test_a_program_of_jax_exits_without_a_search_for_garbage(
    live: LiveServer, tmp_path: Path
) -> None:
    """It would take a tenth of a short program, and find nothing but what has no finalizer."""
    environment = live.environment | {"XDG_CACHE_HOME": str(tmp_path)}
    (tmp_path / "program.py").write_text(RUN_AT_EXIT)
    assert run((*JAXD_RUN, "program.py"), environment, tmp_path).stdout == "True\n"
    begun = run((*JAXD_RUN, "program.py", "begun"), environment, tmp_path)
    assert begun.stdout == "False\nclosed\n"
