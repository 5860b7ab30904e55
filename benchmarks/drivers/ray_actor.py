"""A Ray actor that holds a jitted function, in a cluster of its own: `ray_actor DIRECTORY`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.answering import answer_requests, each

ray: Any = import_module("ray")  # by name: type checkers need not have it installed


class Affine:
    """Keeps the function compiled between calls."""

    def __init__(self) -> None:
        import jax

        self._affine = jax.jit(lambda x: x * 2.0 + 1.0)

    def call(self, x: Any) -> Any:
        """The numpy result."""
        return np.asarray(self._affine(x))


def main() -> None:
    """Measures until the input closes, then ends the cluster that it started."""
    ray.init(
        address="local",
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        _temp_dir=sys.argv[1],
        log_to_driver=False,
    )
    try:
        actor = ray.remote(Affine).remote()
        x = np.ones(16, np.float32)
        answer_requests({"small": each(lambda: ray.get(actor.call.remote(x)))})
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
