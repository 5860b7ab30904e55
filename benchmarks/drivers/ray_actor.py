"""A Ray actor that holds jitted functions, in a cluster of its own: `ray_actor DIRECTORY BYTES`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.answering import answer_requests, measure_median

ray: Any = import_module("ray")  # by name: type checkers need not have it installed


class Functions:
    """Keeps them compiled between calls."""

    def __init__(self) -> None:
        import jax

        self._affine = jax.jit(lambda x: x * 2.0 + 1.0)
        self._first_eight = jax.jit(lambda x: x[:8].sum())

    def affine(self, x: Any) -> Any:
        """The numpy result of the small function."""
        return np.asarray(self._affine(x))

    def first_eight(self, x: Any) -> Any:
        """The numpy result of the function of a large argument."""
        return np.asarray(self._first_eight(x))


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
        actor = ray.remote(Functions).remote()
        x, large = np.ones(16, np.float32), np.ones(int(sys.argv[2]) // 4, np.float32)
        answer_requests(
            {
                "small": measure_median(lambda: ray.get(actor.affine.remote(x))),
                "large": measure_median(lambda: ray.get(actor.first_eight.remote(large))),
            }
        )
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
