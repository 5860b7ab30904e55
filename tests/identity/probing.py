"""Starts `prober.py` and gives what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.live_server import source_environment

PROBER = Path(__file__).with_name("prober.py")


@dataclass(frozen=True, slots=True)
class Job:
    """One project, imported in a process of its own.

    Attributes:
        folder: where its files are.
        names: expressions to look at, in the namespace of its main module.
        module: what to import; `__main__` runs `file` as a program.
        called: the file name that the code of such a program carries.
        path: more folders to import from.
        before, after: statements to run around the import; `after` finds the module as `main`.
    """

    folder: str
    names: Sequence[str]
    module: str = "main"
    file: str = "main.py"
    called: str = ""
    path: Sequence[str] = ()
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was found for each name of a job."""

    seen: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> dict[str, Any]:
        crashed = self.seen.get("")
        assert crashed is None, crashed
        assert "crash" not in self.seen[name], self.seen[name]["crash"]
        return self.seen[name]

    def digest(self, name: str) -> str:
        """The digest of something that can be shared and looks the same twice."""
        one = self[name]
        assert "refused" not in one, one["refused"]
        assert one["unshared"] == []
        assert one["digest"] == one["again"], "two walks in one process differ"
        return str(one["digest"])

    def digests(self) -> dict[str, str]:
        """Those of all names."""
        self[next(iter(self.seen))]
        return {name: self.digest(name) for name in self.seen}


def probe(
    jobs: Sequence[Job],
    flags: Sequence[str] = (),
    preload: Sequence[str] = ("jaxd_protocol.fingerprint", "numpy"),
    **environment: str,
) -> list[ProbeResult]:
    """Does all the jobs from one fresh interpreter."""
    order = {"preload": list(preload), "jobs": [asdict(job) for job in jobs]}
    folder = Path(jobs[0].folder).parent
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", *flags, str(PROBER)],
        input=json.dumps(order),
        cwd=folder,
        env=source_environment(folder, **environment),
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [ProbeResult(each) for each in json.loads(done.stdout)]
