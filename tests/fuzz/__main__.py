"""`make fuzz`: each target for its part of the time, guided by coverage where atheris is there."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import Final

from tests.fuzz.fuzzing import FOUND, run
from tests.fuzz.mutating import mutations
from tests.fuzz.targets import ALONE, TARGETS

_ALL: Final = {**TARGETS, **ALONE}


def main() -> int:
    """1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for all of it (default: 600)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--plain", action="store_true", help="do not use atheris")
    parser.add_argument("targets", nargs="*", help=f"of these: {', '.join(_ALL)}")
    arguments = parser.parse_args()
    names = arguments.targets or list(_ALL)
    is_guided = not arguments.plain and importlib.util.find_spec("atheris") is not None
    way = "guided by coverage" if is_guided else "seeded changes"
    print(f"{len(names)} targets, {way}, seed {arguments.seed}", flush=True)
    one = _guided if is_guided else _plain
    each_s = arguments.seconds / len(names)
    failed = [name for name in names if not one(name, each_s, arguments.seed)]
    print(f"found something in {failed}: see {FOUND}" if failed else "nothing was found")
    return int(bool(failed))


def _plain(name: str, seconds: float, seed: int) -> bool:
    target = _ALL[name]
    count, found = run(name, target, mutations(target.seeds, seed), seconds, keep=True)
    print(f"{name:<28} {count:>10,} inputs, {len(found)} findings", flush=True)
    print("".join(found), end="")
    return not found


def _guided(name: str, seconds: float, seed: int) -> bool:
    words = [sys.executable, "-m", "tests.fuzz.guided", name, str(seconds), str(seed)]
    with tempfile.TemporaryDirectory(prefix="jaxd-fuzz-", dir="/tmp") as folder:
        environment = os.environ | {"FUZZ_FOLDER": folder}  # libFuzzer ends without cleaning up
        with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
            _, said = process.communicate(timeout=seconds + 120.0)
    inputs = re.search(r"number_of_executed_units: (\d+)", said)
    covered = re.findall(r"cov: (\d+)", said)
    count = f"{int(inputs[1]):>10,}" if inputs else f"{'?':>10}"
    print(f"{name:<28} {count} inputs, {covered[-1] if covered else '?'} places seen", flush=True)
    if process.returncode:
        print(said[-4000:])
    return process.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
