"""A Dask worker that runs jitted functions, in a cluster of its own: `dask_submit BYTES`."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.answering import answer_requests, measure_median

distributed: Any = import_module("distributed")  # by name: type checkers need not have it


@lru_cache
def compiled() -> dict[str, Any]:
    """The jitted functions of this worker process."""
    import jax

    return {"small": jax.jit(lambda x: x * 2.0 + 1.0), "large": jax.jit(lambda x: x[:8].sum())}


def call(name: str, x: Any) -> Any:
    """The numpy result of one of them."""
    from benchmarks.drivers.dask_submit import compiled  # the worker's own cache

    return np.asarray(compiled()[name](x))


def main() -> None:
    """Measures until the input closes, then ends the cluster that it started."""
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        x, large = np.ones(16, np.float32), np.ones(int(sys.argv[1]) // 4, np.float32)
        answer_requests(
            {
                "small": measure_median(
                    lambda: client.submit(call, "small", x, pure=False).result()
                ),
                "large": measure_median(
                    lambda: client.submit(call, "large", large, pure=False).result()
                ),
            }
        )


if __name__ == "__main__":
    main()
