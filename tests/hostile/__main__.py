"""`make hostile`: hostile ends, each against a victim of its own; what is found is saved and shown.

Two processes: a hostile server, whose client has imported numpy alone and then jax and others; and
a hostile client, of a server that takes code and then of one that takes programs only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.hostile.reverts import REVERTS
from tests.hostile.running import (
    FOUND,
    ClientRun,
    Run,
    ServerRun,
    replayed,
    table,
    tethered,
    vulnerability_of,
)

ENDS: Final[Mapping[str, tuple[float, Callable[[int], Run]]]] = {
    "server": (0.35, lambda seed: ServerRun(seed, libraries=False)),
    "server-libraries": (0.65, lambda seed: ServerRun(seed, libraries=True)),
    "client-code": (0.5, lambda seed: ClientRun(seed, accepts="code")),
    "client-exported": (0.5, lambda seed: ClientRun(seed, accepts="exported")),
}
"""The share of its process's time that each has, and how it is made."""

WORKERS: Final = (("server", "server-libraries"), ("client-code", "client-exported"))
COUNTED_KINDS: Final = ("tag", "verb", "event", "question")
"""What is said, rather than a part or an answer."""

_COUNTS: Final = "COUNTS "


def main() -> int:
    """1 when something was found, or when with `--revert` it was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="(default: 1800)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--least",
        type=int,
        default=0,
        help="of each tag, verb, event and question; fewer is a failure",
    )
    parser.add_argument(
        "--revert",
        choices=[*REVERTS, "all"],
        help="take a mend away in the victim, and find what it mends, within --seconds or 600",
    )
    parser.add_argument(
        "--replay",
        nargs="+",
        type=Path,
        metavar="FILE",
        help=f"have these exchanges again, which a run has kept in {FOUND.name}/",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("ends", nargs="*", help=f"of these: {', '.join(ENDS)}")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        finds = [replayed(path, libraries=True) for path in arguments.replay]
        print("nothing was found" if not any(finds) else "something was found: see above")
        return int(any(map(bool, finds)))
    if arguments.revert is not None:
        names = list(REVERTS) if arguments.revert == "all" else [arguments.revert]
        seconds = min(arguments.seconds, 600.0)
        found = [_is_found(name, arguments.seed, seconds) for name in names]
        return int(not all(found))
    ends = arguments.ends or list(ENDS)
    if arguments.worker:
        try:
            return _work(ends, arguments.seconds, arguments.seed)
        except Exception:  # noqa: BLE001  what broke off has found nothing
            traceback.print_exc()
            return 2
    return _all(ends, arguments.seconds, arguments.seed, arguments.least)


def _all(ends: Sequence[str], seconds: float, seed: int, least: int) -> int:
    """Both processes, and the table of what they have said."""
    print(f"hostile ends {', '.join(ends)} for {seconds:.0f} s, seed {seed}", flush=True)
    groups = [[end for end in group if end in ends] for group in WORKERS]
    words = tethered("-m", "tests.hostile", "--worker", "--seed", str(seed))
    processes = [
        subprocess.Popen(
            [*words, "--seconds", str(seconds), *group], stdout=subprocess.PIPE, text=True
        )
        for group in groups
        if group
    ]
    counts: Counter[tuple[str, str]] = Counter()
    for process in processes:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_COUNTS):
                said = json.loads(line.removeprefix(_COUNTS))
                counts.update({(kind, name): count for kind, name, count in said})
            else:
                print(line, end="", flush=True)
    codes = [process.wait() for process in processes]
    print(table(counts))
    few = sorted(
        f"{kind} {name}"
        for (kind, name), count in counts.items()
        if kind in COUNTED_KINDS and count < least
    )
    if few:
        print(f"said fewer than {least:,} times: {', '.join(few)}")
    if any(code not in (0, 1) for code in codes):
        print(f"an end broke off, with {codes}: see above")
    else:
        print(f"something was found: see {FOUND}" if any(codes) else "nothing was found")
    return int(any(codes) or bool(few))


def _work(ends: Sequence[str], seconds: float, seed: int) -> int:
    """These ends, one after the other."""
    whole = sum(ENDS[end][0] for end in ends)
    found = 0
    for end in ends:
        share, make = ENDS[end]
        run = make(seed)
        started = time.monotonic()
        try:
            run.run(seconds * share / whole)
        finally:
            said = [[kind, name, count] for (kind, name), count in run.counts.items()]
            spent = time.monotonic() - started
            print(f"{_COUNTS}{json.dumps(said)}")
            print(f"{end:<18} {run.count:>10,} exchanges in {spent:.0f} s, {len(run.finds)} finds")
            run.close()
        found += len(run.finds)
    return int(found > 0)


def _is_found(name: str, seed: int, seconds: float) -> bool:
    """Whether a hole is found where its mend is taken away, and after how long."""
    run = ServerRun(seed, libraries=False, reverts=[name], keep=False)
    started = time.monotonic()

    def is_there() -> bool:
        return any(vulnerability_of(find) == name for find in run.finds.values())

    try:
        run.run(seconds, until=is_there)
    finally:
        run.close()
    spent = time.monotonic() - started
    what = "found" if is_there() else "NOT found"
    print(f"{name} reverted: {what} after {spent:.1f} s and {run.count:,} exchanges", flush=True)
    return is_there()


if __name__ == "__main__":
    sys.exit(main())
