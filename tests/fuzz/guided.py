"""One target, guided by coverage with atheris (libFuzzer), which ends the process by itself.

FUZZ_FOLDER=FOLDER python -m tests.fuzz.guided NAME SECONDS SEED
"""

from __future__ import annotations

import os
import sys
import tempfile

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["jaxd", "jaxd_protocol", "jaxd_server"]):
    from tests.fuzz.fuzzing import FOUND, run_input
    from tests.fuzz.targets import ALONE, TARGETS


def main(name: str, seconds: float, seed: int) -> None:
    """Does not return."""
    target = {**TARGETS, **ALONE}[name]
    folder = FOUND / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    corpus = tempfile.mkdtemp(prefix="corpus-", dir=os.environ["FUZZ_FOLDER"])
    for number, data in enumerate(target.seeds):
        with open(os.path.join(corpus, str(number)), "wb") as file:
            file.write(data)
    words = [sys.argv[0], f"-max_total_time={max(1, int(seconds))}", f"-seed={seed & 0x7FFFFFFF}"]
    words += ["-max_len=16384", "-rss_limit_mb=4096", "-timeout=20", "-print_final_stats=1"]
    atheris.Setup(
        [*words, f"-artifact_prefix={folder}/", corpus], lambda d: run_input(name, target, d)
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
