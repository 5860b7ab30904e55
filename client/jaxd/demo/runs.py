"""Runs the training script in fresh processes and times them from the outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxd.demo.server import JAX_CACHE_VARIABLES

__all__ = ["DemoFailed", "Run", "read_files_once", "run_training"]


class DemoFailed(Exception):
    """The demo cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one fresh process needed; times in seconds since the process was started.

    Attributes:
        label: what the run is called in the table.
        ready_s: until everything was imported and the images were loaded.
        first_call_s: how long the first training call took, from `ready_s` on.
        first_result_s: until the first loss was a Python float.
        total_s: until the process had ended.
        accuracy: share of the test images that were read rightly after the last epoch.
        history: loss and test accuracy after each epoch.
        jax_imported: whether the process had imported jax when it ended.
    """

    label: str
    ready_s: float
    first_call_s: float
    first_result_s: float
    total_s: float
    accuracy: float
    history: tuple[dict[str, float], ...]
    jax_imported: bool


def run_training(
    label: str,
    mode: Literal["persistent", "jit"],
    epochs: int,
    variables: Mapping[str, str],
) -> Run:
    """Runs `jaxd.demo.digits` once in a fresh process.

    Args:
        label: what the run is called in the table.
        mode: which decorator the script uses.
        epochs: passes over the training images.
        variables: environment variables to set on top of those of this process.

    Raises:
        DemoFailed: when the process failed; what it printed has gone to standard error.
    """
    started_at, started = time.time(), time.perf_counter()
    # -P: a folder named jaxd where the user happens to stand must not be what is imported.
    command = [sys.executable, "-P", "-m", "jaxd.demo.digits", "--mode", mode]
    process = subprocess.run(  # noqa: S603  our own program
        [*command, "--epochs", str(epochs), "--started-at", repr(started_at)],
        env=_environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    total_s = time.perf_counter() - started
    if process.returncode:
        raise DemoFailed(
            f"the process {label!r} ended with code {process.returncode}; "
            "its own message stands above. Repair that and run the demo again."
        )
    report = json.loads(process.stdout.splitlines()[-1])
    return Run(
        label=label,
        ready_s=report["ready_s"],
        first_call_s=report["first_call_s"],
        first_result_s=report["first_result_s"],
        total_s=total_s,
        accuracy=report["accuracy"],
        history=tuple(report["history"]),
        jax_imported=report["jax_imported"],
    )


def read_files_once() -> None:
    """Imports, untimed, what the runs import: the first of them must not pay for the disk."""
    command = [sys.executable, "-P", "-c", "import cloudpickle, jax, rpyc, sklearn.datasets"]
    subprocess.run(command, env=_environment({}), stdin=subprocess.DEVNULL, check=False)  # noqa: S603  our own program


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        # "plain jax" has to be plain, and JAXD_INLINE would leave the server out of it.
        if name not in JAX_CACHE_VARIABLES and not name.startswith("JAXD_")
    }
    # Several processes share the device in turn with the server: none may take all its memory.
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | kept | dict(variables)
