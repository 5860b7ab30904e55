"""Counts what warm calls take at both ends: messages, bytes, functions, allocations, threads.

A client without jax makes calls of each kind in windows, first while every call of a function is
counted (`tests/traced_calls`), then without that, while a preloaded library counts allocations.
What one call takes is that of the least of its windows: other work that is due just then, such as
that of timers, only adds. On a busy machine most calls take so long that another thread goes on
reading meanwhile, so a window is one call, or a few that are in flight together. Of bytes, and of
blocks that are kept, it is the median.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from tests.live_server import ROOT, LiveServer, run_client
from tests.preloaded import has_compiler, make_library

WINDOWS: Final = 12
"""In which functions are counted."""

LONG_WINDOWS: Final = 6
COUNT: Final = 16
"""In which allocations and bytes are counted, and calls in each of these."""

KINDS: Final = {"small": 1, "step": 1, "leaves": 1, "submit": 8, "map": 8}
"""Kinds of calls, and how many are a window in which functions are counted."""

_FIRST_WINDOW: Final = 2
_NO_MORE: Final = 255
"""What the byte means that turns counting on, see `tests/traced_calls/sitecustomize.py`."""

_PATIENCE_S: Final = 150.0
"""For the client, of a few seconds of work, on a machine with much other work."""

_SENT: Final = "shared/jaxd_protocol/wire/connection.py:BulkChannel.send"

_OTHERS: Final = {"-": "functions of libraries", "+": "changes of thread"}
_BY_THE_CLOCK: Final = ("jaxd-sentry", "jaxd-housekeeper")
"""Threads of a worker that work every few milliseconds, whatever is called."""

_BOTH_WAYS: Final = ("blocks kept", "bytes")
"""Figures that may also be too low in a window: what comes late counts in the next one."""

_COUNTING_ALLOCATIONS: Final = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Names of glibc, by which a library that is preloaded reaches what it stands before. */
void *__libc_malloc(size_t); void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t); void __libc_free(void *);
void *__libc_memalign(size_t, size_t);

static uint64_t before[2];
static uint64_t *counts = before; /* blocks that were allocated, and freed */

static void count(int which) { __atomic_fetch_add(&counts[which], 1, __ATOMIC_RELAXED); }

__attribute__((constructor)) static void begin(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%d.allocations", getenv("JAXD_TRACED_CALLS"), getpid());
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, 16)) return;
  void *map = mmap(0, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (map != MAP_FAILED) counts = map;
  close(file);
}

void *malloc(size_t size) { count(0); return __libc_malloc(size); }
void *calloc(size_t many, size_t size) { count(0); return __libc_calloc(many, size); }
void *realloc(void *block, size_t size) {
  if (!block) count(0);
  return __libc_realloc(block, size);
}
void *memalign(size_t to, size_t size) { count(0); return __libc_memalign(to, size); }
void *aligned_alloc(size_t to, size_t size) { count(0); return __libc_memalign(to, size); }
int posix_memalign(void **block, size_t to, size_t size) {
  count(0);
  *block = __libc_memalign(to, size);
  return *block ? 0 : ENOMEM;
}
void free(void *block) { if (block) count(1); __libc_free(block); }
"""

_PROGRAM: Final = """
import gc, json, mmap, os, struct, sys
from collections import deque
from contextlib import suppress
import numpy as np
import jaxd
from jaxd import persistent_call

MOST_LOOKS = 8  # where others wait for the processor as well, it is hardly ever seen idle
KINDS = json.loads(sys.argv[1])
FIRST_WINDOW, NO_MORE, WINDOWS, LONG_WINDOWS, COUNT, WORKER = map(int, sys.argv[2:])

def linear_transform(x, w, b):
    return x @ w + b

def one_more(tree):
    return {name: leaf + 1 for name, leaf in tree.items()}

def advance(state, batch):
    return {name: leaf + batch.mean() for name, leaf in state.items()}, state["w0"].sum()

arguments = np.ones((4, 8), "f4"), np.ones((8, 2), "f4"), np.ones(2, "f4")
small = persistent_call(linear_transform)
tree = {f"a{i}": np.ones(4, "f4") for i in range(100)}
leaves = persistent_call(one_more)
update = persistent_call(advance, donate_argnums=0)
state = {f"w{i}": np.ones(50_000, "f4") for i in range(10)}
batch = np.ones((8, 100), "f4")

def steps(count):
    global state
    for _ in range(count):
        before = state
        state, loss = update(before, batch)
        float(loss)  # else what of `before` is let go first depends on when the reply comes

def submitted(count):
    for future in [small.submit(*arguments) for _ in range(count)]:
        future.result()

CALLS = {
    "small": lambda count: [small(*arguments) for _ in range(count)] and None,
    "step": steps,
    "leaves": lambda count: [leaves(tree) for _ in range(count)] and None,
    "submit": submitted,
    "map": lambda count: deque(small.map(*([x] * count for x in arguments)), maxlen=0) and None,
}
for _ in range(3):
    for calls in CALLS.values():
        calls(2 * COUNT)
with open(os.environ["JAXD_TRACED_CALLS"] + "/on", "r+b") as file:
    on = mmap.mmap(file.fileno(), 1)

def until_worker_is_idle():
    # what it does for a call after the reply is a part of that call; this is not
    profile, quiet, looks = sys.getprofile(), 0, 0
    sys.setprofile(None)
    while quiet < 2 and looks < MOST_LOOKS:
        states = set()
        for thread in os.listdir(f"/proc/{WORKER}/task"):
            with suppress(OSError), open(f"/proc/{WORKER}/task/{thread}/stat") as file:
                states.add(file.read().rpartition(")")[2].split()[0])
        quiet, looks = 0 if "R" in states else quiet + 1, looks + 1
    sys.setprofile(profile)

window = FIRST_WINDOW
for kind, calls in CALLS.items():
    for _ in range(WINDOWS):
        until_worker_is_idle()
        on[0] = window
        calls(KINDS[kind])
        until_worker_is_idle()
        on[0] = 0
        window += 1

on[0] = NO_MORE
for calls in CALLS.values():
    calls(COUNT)
gc.disable()  # so that what it would have to find counts as kept
counted = {}
def allocations(pid):
    try:
        with open(f"{os.environ['JAXD_TRACED_CALLS']}/{pid}.allocations", "rb") as file:
            made, freed = struct.unpack("QQ", file.read())
    except OSError:
        return 0, 0
    return made, made - freed

def now():
    return {
        name + end: figure
        for end, pid in ((" of the client", os.getpid()), (" of the worker", WORKER))
        for name, figure in zip(
            ("allocations", "blocks kept"), allocations(pid)
        )
    }

def traffic():
    seen = jaxd.statistics()
    return {"bytes to the server": seen.bytes_received, "bytes from the server": seen.bytes_sent}

def less(after, before):
    return {name: figure - before[name] for name, figure in after.items()}

for kind, calls in CALLS.items():
    counted[kind] = []
    for _ in range(LONG_WINDOWS):
        calls(2)
        before = traffic()
        begin = traffic()
        calls(COUNT)
        moved, asked = less(traffic(), begin), less(begin, before)
        calls(2)
        before = now()
        calls(COUNT)
        counted[kind].append({**less(now(), before), **less(moved, asked)})
assert "jax" not in sys.modules
print(json.dumps(counted))
"""

Figures = dict[str, dict[str, float]]
"""By kind of call, what one call or item takes, by the name of the figure."""


def count_work(folder: Path, server_folder: Path) -> tuple[Figures, set[str]]:
    """Runs a server and its client, and counts; takes about five seconds.

    Returns:
        The figures; the files of the product that each small call runs through.

    Raises:
        AssertionError: when the client failed.
    """
    (folder / "on").write_bytes(b"\0")
    sources = ("tests/traced_calls", "client", "server", "shared")
    counted = {
        "JAXD_TRACED_CALLS": str(folder),
        "PYTHONPATH": ":".join(str(ROOT / name) for name in sources),
    }
    if has_compiler():
        library = make_library(folder, "allocations", _COUNTING_ALLOCATIONS)
        counted |= {"LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc"}
    # Programs are built before it is counted: a builder would only take time to start.
    live = LiveServer(server_folder, "--build-in", "worker", **counted)
    try:
        worker = live.worker_pid()
        numbers = (_FIRST_WINDOW, _NO_MORE, WINDOWS, LONG_WINDOWS, COUNT, worker)
        # arrays are kept track of, and no snapshot of them is taken while it is counted
        own = {"JAXD_TRACED_MAIN": "1", "JAXD_SNAPSHOT_S": "3600"}
        environment = live.environment | counted | own
        given = (json.dumps(KINDS), *map(str, numbers))
        ran = run_client(_PROGRAM, *given, environment=environment, timeout_s=_PATIENCE_S)
    finally:
        live.close()
    assert ran.returncode == 0, ran.stderr
    by_kind: dict[str, list[dict[str, float]]] = json.loads(ran.stdout)
    traced, called = _traced(folder, worker)
    figures: Figures = {}
    for place, (kind, calls) in enumerate(KINDS.items()):
        first = _FIRST_WINDOW + place * WINDOWS
        rows = [traced[window] for window in range(first, first + WINDOWS)]
        figures[kind] = _of_one_call(rows, calls) | _of_one_call(by_kind[kind], COUNT)
    small = range(_FIRST_WINDOW, _FIRST_WINDOW + WINDOWS)
    return figures, set.intersection(*(called[window] for window in small))


def _traced(
    folder: Path, worker: int
) -> tuple[dict[int, dict[str, float]], Mapping[int, set[str]]]:
    """What was noted in each window, at both ends, and the files that were run through in it."""
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    files: defaultdict[int, set[str]] = defaultdict(set)
    for file in folder.glob("*.counts"):
        end, where = ("worker", "from") if file.stem == str(worker) else ("client", "to")
        for line in file.read_text().splitlines():
            window, thread, name, calls = line.split()
            if thread in _BY_THE_CLOCK:
                continue
            kind = _OTHERS.get(name, "functions of jaxd")
            counts[int(window)][f"{kind} in the {end}"] += int(calls)
            if name not in _OTHERS:
                files[int(window)].add(name.partition(":")[0])
            if name == _SENT:
                counts[int(window)][f"messages {where} the server"] += int(calls)
    return {window: dict(found) for window, found in counts.items()}, files


def _of_one_call(rows: Sequence[Mapping[str, float]], calls: int) -> dict[str, float]:
    """From the figures of windows of so many calls."""
    figures = {}
    for name in sorted({name for row in rows for name in row}):
        found = [row.get(name, 0) for row in rows]  # what never happened has no entry
        figures[name] = (median(found) if name.startswith(_BOTH_WAYS) else min(found)) / calls
    return figures
