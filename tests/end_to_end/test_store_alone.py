"""Processes without a server that share a store: what one of them has built, the others load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxd_server.cache.record_file import encode, read_file, read_header, write_file
from jaxd_server.cache.shared_store import signing
from tests.end_to_end.gates import Gate
from tests.end_to_end.test_store import KEY, change, files, flushed
from tests.fake_packages import FakeSite
from tests.live_server import ROOT, LiveServer, source_environment

pytestmark = pytest.mark.slow

HEAD = """
import json, os, sys
import jax, jax.numpy as jnp
import jaxd
from jaxd.interop.local_programs import calls_here
from jaxd.tracing.from_store import store_calls

def say(*values):
    own = store_calls(os.environ["JAXD_STORE"])
    print(json.dumps([*map(float, values), own.loaded, own.built, calls_here.count]), flush=True)
"""
STEP = f"""{HEAD}
NAMES = ["STORE_RATE"]  # known when it is traced: not to the walk

@jaxd.persistent_call
def step(x):
    import os
    return x * 2 + sum(float(os.environ.get(name, "0")) for name in NAMES)
"""
PROGRAM = f"""{STEP}
say(step(jnp.float32(1)), step(jnp.float32(1)))
"""

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def start(runtime: Path, store: Path) -> Run:
    """Starts a program on a machine of its own, without a server and with an empty cache."""
    count = iter(range(100))

    def start_(program: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        own = {"JAXD_SERVER": "none", "JAXD_STORE": str(store), "JAXD_STORE_KEY": KEY}
        own |= {"XDG_CACHE_HOME": str(runtime / f"cache-{next(count)}")} | variables
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=source_environment(runtime, **own),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start_


def said(process: subprocess.Popen[str], warned: str = "") -> list[float]:
    """Results, programs loaded, programs built, and calls that ran with one of these."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert (warned in err) if warned else not err, err
    found: list[float] = json.loads(out.splitlines()[-1])
    return found


def test_what_one_process_has_built_another_loads(start: Run) -> None:
    """Also of what it reads of its process; another value is another program."""
    assert said(start(PROGRAM)) == [2.0, 2.0, 0, 1, 2]
    assert said(start(PROGRAM)) == [2.0, 2.0, 1, 0, 2]
    assert said(start(PROGRAM, STORE_RATE="3")) == [5.0, 5.0, 0, 1, 2]


@pytest.mark.timeout(300)
def test_a_server_and_a_process_without_one_share_a_store(
    start: Run, store: Path, start_live: Callable[..., LiveServer], runtime: Path
) -> None:
    """Their keys, targets and recorded reads are the same, in both directions."""
    shared = {"JAXD_STORE": str(store), "JAXD_STORE_KEY": KEY}
    program = f"{STEP}\nprint(float(step(jnp.float32(1))), jaxd.statistics().traces)"
    first = start_live(name="a", JAXD_CACHE_DIR=str(runtime / "cache-a"), **shared)
    done = first.run(program)
    assert done.stdout == "2.0 1\n", done.stderr
    flushed(first)
    assert said(start(PROGRAM)) == [2.0, 2.0, 1, 0, 2]
    assert said(start(PROGRAM, STORE_RATE="3")) == [5.0, 5.0, 0, 1, 2]
    second = start_live(name="b", JAXD_CACHE_DIR=str(runtime / "cache-b"), **shared)
    assert second.run(program, STORE_RATE="3").stdout == "5.0 0\n"


CHANGES = f"""{HEAD}
NAMES = ["STORE_RATE"]
rate = 1.0

@jaxd.persistent_call
def step(x):
    import os
    return x * rate + sum(float(os.environ.get(name, "0")) for name in NAMES)

found = [step(jnp.float32(1))]
os.environ["STORE_RATE"] = "3"
found.append(step(jnp.float32(1)))
rate = 10.0
found.append(step(jnp.float32(1)))
say(*found)
"""


def test_what_a_function_reads_counts_at_each_call(start: Run) -> None:
    """Its globals and its environment, in the process that has built it and in those that load."""
    assert said(start(CHANGES)) == [1.0, 4.0, 13.0, 0, 3, 3]
    assert said(start(CHANGES)) == [1.0, 4.0, 13.0, 3, 0, 3]


PATCHED = f"""{HEAD}
if "patch" in sys.argv:
    import jax._src.nn.functions as inner
    inner.sigmoid = lambda x: x * 0 + 100

@jaxd.persistent_call
def step(x):
    return jax.nn.silu(x)

say(step(jnp.float32(0.0)))
"""


def test_what_a_process_has_patched_answers_no_other(start: Run) -> None:
    """The key does not count what a library does inside of itself, so another process traces."""
    said(start(PATCHED, "patch"))
    assert said(start(PATCHED))[0] == 0.0
    assert said(start(PATCHED.replace("0.0", "1.0")))[0] == pytest.approx(0.7310586)


def test_a_reader_writes_nothing(start: Run, store: Path) -> None:
    """It takes what is there, and what is not there runs as under `jax.jit`."""
    said(start(PROGRAM))
    before = files(store)
    assert said(start(PROGRAM, JAXD_STORE_READ_ONLY="1")) == [2.0, 2.0, 1, 0, 2]
    other = start(PROGRAM, JAXD_STORE_READ_ONLY="1", STORE_RATE="3")
    assert said(other) == [5.0, 5.0, 0, 0, 0]
    assert files(store) == before


def test_a_changed_byte_is_a_miss_and_a_warning(start: Run, store: Path) -> None:
    """Whoever finds it builds anew, and puts a sound one in its place."""
    said(start(PROGRAM))
    for path in store.rglob("programs/*"):
        change(path)
    assert said(start(PROGRAM), "StoreWarning: An entry of a shared store") == [2.0, 2.0, 0, 1, 2]
    assert said(start(PROGRAM)) == [2.0, 2.0, 1, 0, 2]


def spoil(path: Path) -> None:
    """Cuts a record of a store short, and signs it."""
    sign = signing(KEY)
    header = read_header(str(path))
    about = header.kind, header.name, header.target
    content, payload = read_file(str(path), *about, sign=sign)
    write_file(str(path), encode(*about, content, payload[: len(payload) // 2], sign))


def test_a_program_that_does_not_load_is_replaced(start: Run, store: Path) -> None:
    """Though its signature is right: whoever finds it builds anew."""
    said(start(PROGRAM))
    for path in store.rglob("programs/*"):
        spoil(path)
    assert said(start(PROGRAM), "A program on disk cannot be loaded") == [2.0, 2.0, 0, 1, 2]
    assert said(start(PROGRAM)) == [2.0, 2.0, 1, 0, 2]


FULL = f"""{HEAD}
import jaxd_server.cache.store_files as store_files

def full(*_):
    raise OSError(28, "No space left on device")

if "full" in sys.argv:
    store_files.FolderFiles.write = full
{PROGRAM.removeprefix(HEAD)}
"""


def test_what_could_not_be_written_after_the_last_call_is_warned_of(
    start: Run, tmp_path: Path
) -> None:
    """Once, when the process ends: what was kept before there was a store is added to it late."""
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    said(start(FULL, **own))
    late = start(FULL, "full", JAXD_STORE=str(other), **own)
    out, err = late.communicate(timeout=120)
    assert json.loads(out) == [2.0, 2.0, 1, 0, 2]
    assert err.count("StoreWarning") == err.count("No space left on device") == 1, err
    assert files(other) == {}


OTHER_CPU = f"""{HEAD}
import jaxd_server.compilation.disk_cache.compile_target as compile_target
compile_target._CPU = sys.argv[1]
{PROGRAM.removeprefix(HEAD)}
"""


def test_another_processor_loads_nothing(start: Run, tmp_path: Path) -> None:
    """One without an instruction that the first one has."""
    said(start(PROGRAM))
    text = Path("/proc/cpuinfo").read_text()
    other = tmp_path / "cpuinfo"
    other.write_text(re.sub(r"(?m)^(flags|Features)(\s*: )\S+", r"\1\2", text))
    assert other.read_text() != text
    found = said(start(OTHER_CPU, str(other), JAXD_STORE_READ_ONLY="1"))
    assert found == [2.0, 2.0, 0, 0, 0]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"JAXD_STORE_KEY": "secret"}, "JAXD_STORE_KEY can be guessed"),
        ({"JAXD_STORE_KEY": ""}, "JAXD_STORE_KEY is empty"),
        ({"JAXD_STORE": "nowhere://a/b"}, "nowhere://a/b cannot be opened"),
        ({"JAXD_CACHE_DIR": "none"}, "JAXD_CACHE_DIR=none"),
    ],
    ids=["weak key", "no key", "url", "no cache"],
)
def test_a_store_that_cannot_be_used_is_warned_of(
    start: Run, store: Path, variables: dict[str, str], reason: str
) -> None:
    """Once; calls run as under `jax.jit`, and nothing is written to it."""
    assert said(start(PROGRAM, **variables), reason) == [2.0, 2.0, 0, 0, 0]
    assert files(store) == {}


CALLS_BACK = f"""{HEAD}
if "late" in sys.argv:
    import jaxd_server.processes.without_server as without_server
    without_server._COMMAND = ("false",)

@jaxd.persistent_call
def step(x):
    print("traced")
    return jax.pure_callback(lambda value: value * 2, jax.typeof(x), x)

say(step(jnp.float32(1)), step(jnp.float32(1)))
"""


def test_what_cannot_be_kept_runs_in_the_process(start: Run) -> None:
    """It says its lines once, and the next process knows without a builder."""
    first = start(CALLS_BACK)
    out, err = first.communicate(timeout=120)
    assert (out.splitlines()[0], out.count("traced"), err) == ("traced", 1, "")
    assert json.loads(out.splitlines()[-1]) == [2.0, 2.0, 0, 0, 0]
    assert said(start(CALLS_BACK, "late")) == [2.0, 2.0, 0, 0, 0]


NAMES_PACKAGE = CALLS_BACK.replace('print("traced")', "import shelf_named")


def test_what_cannot_be_kept_is_tried_again_with_other_packages(
    start: Run, store: Path, tmp_path: Path
) -> None:
    """Those that the function names; until then nobody tries."""
    site = FakeSite(tmp_path)
    folders = [str(site.path), *(str(ROOT / name) for name in ("client", "server", "shared"))]
    kept = []
    for version in ("1", "1", "2"):
        site.install("shelf_named", version, {"shelf_named.py": version})
        process = start(NAMES_PACKAGE, PYTHONPATH=os.pathsep.join(folders))
        assert said(process) == [2.0, 2.0, 0, 0, 0]
        kept.append({path: data for path, data in files(store).items() if "/calls/" in path})
    assert kept[0] == kept[1] != kept[2]


WARMED = f"""{HEAD}
step = jaxd.persistent_call(lambda x: x * 2)
shape = jax.ShapeDtypeStruct((3,), "float32")
print(*[step.warm(shape).verdict for _ in range(2)], jaxd.put(1.0))
try:
    step.why(1.0)
except jaxd.errors.NoServer as error:
    print("JAXD_SERVER=none" in str(error))
"""


def test_warm_says_whether_it_was_there(start: Run) -> None:
    """And what only a server has is an error that says so."""
    for verdict in ("compile", "load"):
        process = start(WARMED)
        out, err = process.communicate(timeout=120)
        assert (out, err) == (f"{verdict} hit 1.0\nTrue\n", "")


# at the same time --------------------------------------------------------------------------------

MANY = f"""{HEAD}
from pathlib import Path

@jaxd.persistent_call
def gated(x):
    Path(sys.argv[1]).read_bytes()
    return x + 1

functions = [gated, *(jaxd.persistent_call(eval(f"lambda x: x * {{n}}")) for n in (2, 3))]
say(*(function(jnp.float32(1)) for function in functions))
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_eight_processes_build_what_they_need_once_between_them(
    start: Run, tmp_path: Path, store: Path
) -> None:
    """But for what one was killed in: another one builds it, ten seconds later."""
    gate = Gate(tmp_path / "gate")
    program = MANY.replace("sys.argv[1]", repr(gate.path))
    first = start(program)
    with gate.reached():
        others = [start(program) for _ in range(7)]
        first.kill()
        first.communicate()
    while any(each.poll() is None for each in others):
        gate.let_pass()
    found = [said(each) for each in others]
    assert {tuple(values[:3]) for values in found} == {(2.0, 2.0, 3.0)}
    assert sum(values[4] for values in found) == 3
    assert sum(values[3] for values in found) == 7 * 3 - 3
    assert [path for path in store.rglob("leases/*") if path.is_file()] == []


# the recipes of docs/store.md ---------------------------------------------------------------------

TRAIN = """
import json, os, jax.numpy as jnp, jaxd
from jaxd.tracing.from_store import store_calls
step = jaxd.persistent_call(lambda x: x * 2)
value = float(step(jnp.float32(1)))
own = store_calls(os.environ["JAXD_STORE"])
with open(os.environ["SAID"], "a") as said:
    said.write(json.dumps([value, own.loaded, own.built]) + "\\n")
"""
SRUN = """#!/bin/sh
shift; count=$1; shift
rank=0
while [ $rank -lt $count ]; do
  SLURM_JOB_ID=1 SLURM_NTASKS=$count SLURM_PROCID=$rank SLURM_LOCALID=$rank \
    XDG_CACHE_HOME=$HOME/$rank "$@" &
  rank=$((rank + 1))
done
wait
"""


@pytest.fixture
def job(runtime: Path) -> Callable[..., list[Any]]:
    """Runs a recipe of the page, on a machine without a cache; what its programs say."""
    folder = runtime / "bin"
    folder.mkdir()
    programs = {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n', "srun": SRUN}
    programs["jaxd"] = f'#!/bin/sh\nexec {sys.executable} -m jaxd.cli "$@"\n'
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o700)

    def run(title: str, work: Path, **variables: str) -> list[Any]:
        page = (ROOT / "docs" / "store.md").read_text()
        (recipe,) = re.findall(f"### {title}\n.*?```sh\n(.*?)```", page, re.DOTALL)
        work.mkdir(exist_ok=True, mode=0o700)
        (work / "train.py").write_text(TRAIN)
        told = work / "said"
        where = {"HOME": str(work), "XDG_CACHE_HOME": str(work / "cache"), "SAID": str(told)}
        environment = source_environment(work, **where, **variables)
        environment["PATH"] = f"{folder}:{environment['PATH']}"
        subprocess.run(["sh", "-ec", recipe], env=environment, cwd=work, check=True)
        return sorted(json.loads(line) for line in told.read_text().splitlines())

    return run


@pytest.mark.timeout(300)
def test_tasks_of_slurm(job: Callable[..., list[Any]], runtime: Path) -> None:
    """Of eight that start together, one builds."""
    found = job("Slurm", runtime / "home")
    assert found == [[2.0, 0, 1], *[[2.0, 1, 0]] * 7]


@pytest.mark.timeout(300)
def test_jobs_of_a_ci(job: Callable[..., list[Any]], runtime: Path) -> None:
    """Main packs; a pull request unpacks that on another machine, and leaves it as it is."""
    assert job("Main", runtime / "main", JAXD_STORE_KEY=KEY) == [[2.0, 0, 1]]
    packed = (runtime / "main" / "jaxd.tar").read_bytes()
    for name, key, expected in (("pull", KEY, [2.0, 1, 0]), ("stranger", KEY[::-1], [2.0, 0, 0])):
        work = runtime / name
        work.mkdir(mode=0o700)
        (work / "jaxd.tar").write_bytes(packed)
        assert job("Pull requests", work, JAXD_STORE_KEY=key) == [expected]
        assert (work / "jaxd.tar").read_bytes() == packed
        assert files(work / "jaxd-store") == {}
