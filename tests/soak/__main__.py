"""`make soak`: clients of all kinds while everything around them breaks, then while all is calm.

Every answer is compared with what jax says. Exits with 1 when one was wrong, when a client was
told an error that the documents do not explain, or when something was left behind. A failure is
sought again with its seed; the folder that is kept then has what each client did, step by step.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.report import text, write_into
from tests.soak.soak import Soak


def main() -> int:
    """1 when something is not as it has to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0, help="(default: 1200)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all figures")
    arguments = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("JAXD_")]:
        del os.environ[name]
    print(f"soak of {arguments.seconds:.0f} s, seed {arguments.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))  # sun_path has 107 bytes
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    faulthandler.dump_traceback_later(2 * arguments.seconds + 900, exit=True)  # it hangs
    with Soak(folder, arguments.seed) as soak:
        found = soak.run(arguments.seconds)
    if found["bad"]:
        soak.write_logs()
    written = text(found)
    print(written)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    if target := os.environ.get("SOAK_REPORT"):
        write_into(Path(target), written)
    if not found["bad"]:
        shutil.rmtree(folder)
        return 0
    print("\n\n".join(found["bad"][:20]))
    (folder / "findings").write_text("\n\n".join(found["bad"]))
    print(f"\n{len(found['bad'])} findings, seed {arguments.seed}; see {folder}")
    for each in found["bad"][:20]:  # the last lines of a log are read first
        print(f"  {each.splitlines()[0]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
