"""`make gpu`: everything that a GPU is needed for, in parts that go on where they were stopped.

A part ends by its time, and a test or row that has a result in the folder is not run again: one
calls this as often as the machine is there, with the folder of the time before. At most eight files
are written: the results of each part, what the processes said, and a summary.

Needs Python, jax for the GPU, and what `make gpu-wheels` has fetched, which is installed first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from tests.gpu.carried import install_missing
from tests.gpu.nvidia import gpus
from tests.gpu.parts import ROOT, SOURCES, Part, parts
from tests.gpu.summary import is_good, write_summary

_GRACE_S: Final = 60.0
"""After its time a part ends what it is at; then it is killed."""

_LOG: Final = "log.txt"


def _parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "--before", type=Path, help="that of an earlier run, which this one goes on"
    )
    parser.add_argument("--parts", default="", help="only these, with commas")
    parser.add_argument("--seconds", type=float, default=480.0, help="for each part (480)")
    parser.add_argument("--wheels", type=Path, help="folder of what the machine may lack")
    parser.add_argument(
        "--rehearsal", action="store_true", help="a small piece of each part, without a GPU"
    )
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """1 when something failed, 2 when there is nothing to run on."""
    chosen = _parse(words)
    output = chosen.output.resolve()
    wanted = [name.strip() for name in chosen.parts.split(",") if name.strip()]
    known = parts(chosen.rehearsal, output)
    if unknown := set(wanted) - {part.name for part in known}:
        print(f"there is no part {', '.join(sorted(unknown))}: {', '.join(p.name for p in known)}")
        return 2
    if not chosen.rehearsal and not gpus():
        print("nvidia-smi finds no GPU. `make gpu GPU_REHEARSAL=1` runs what needs none.")
        return 2
    output.mkdir(parents=True, exist_ok=True)
    if chosen.before is not None and chosen.before.is_dir():
        _go_on_from(chosen.before, output)
    if chosen.wheels is not None and not chosen.rehearsal:
        install_missing(chosen.wheels)
    run = partial(_run, output=output, seconds=chosen.seconds)
    with ThreadPoolExecutor(
        2 if chosen.rehearsal else 1
    ) as side_by_side:  # a GPU has one at a time
        for _ in side_by_side.map(run, (p for p in known if not wanted or p.name in wanted)):
            write_summary(known, output)
    print((output / "summary.md").read_text())
    return 0 if is_good(known, wanted, output) else 1


def _go_on_from(before: Path, output: Path) -> None:
    for file in before.iterdir():
        if file.is_file() and not (output / file.name).exists():
            shutil.copyfile(file, output / file.name)


def _run(part: Part, output: Path, seconds: float) -> None:
    """Returns when it has ended; its processes are a group that is ended as a whole."""
    began = time.monotonic()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAXD_")}
    environment = {
        **kept,
        **part.variables,
        "PYTHONPATH": os.pathsep.join(SOURCES),
        "GPU_RESULTS": str(output / part.writes),
        "GPU_UNTIL": str(time.time() + seconds),
    }
    with (output / _LOG).open("ab") as log:
        log.write(f"\n== {part.name}\n".encode())
        log.flush()
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(seconds + (_GRACE_S if part.writes.endswith("l") else 0.0))
        except subprocess.TimeoutExpired:
            log.write(b"\nended: its time was over\n")
        finally:
            _end(process)
    print(f"{part.name}: {time.monotonic() - began:.0f} s", flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """In order, then at once: a benchmark has servers of its own, which it ends."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
