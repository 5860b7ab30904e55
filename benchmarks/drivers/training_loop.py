"""A training loop whose step one decorator or the other runs: `training_loop jit`, `… ADDRESS`.

A second argument is one of the `KINDS` of loops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax

from benchmarks.answering import answer_requests, measure_throughput
from benchmarks.programs.training import Training
from benchmarks.programs.training_kinds import KINDS
from jaxd import Client, connect

WARM_UP = 20


def bytes_per_step(
    training: Training, client: Client, counter: Literal["bytes_received", "bytes_sent"], steps: int
) -> float:
    """What the server counts while it trains, by step."""
    before: int = getattr(client.statistics(), counter)
    training.run(steps)
    after: int = getattr(client.statistics(), counter)
    return (after - before) / steps


def main() -> None:
    """Measures until the input closes."""
    make = KINDS[sys.argv[2] if len(sys.argv) > 2 else "plain"]
    if sys.argv[1] == "jit":
        training = make(jax.jit)
        measurements: dict[str, Callable[[int], Any]] = {}
    else:
        client = connect(sys.argv[1])
        training = make(client.persistent_call)
        count = partial(bytes_per_step, training, client)
        measurements = {"sent": partial(count, "bytes_received")}
        measurements["received"] = partial(count, "bytes_sent")
    training.run(WARM_UP)
    measurements["loss"] = lambda _: training.losses[1]
    answer_requests(measurements | {"step": measure_throughput(training.run)})


if __name__ == "__main__":
    main()
