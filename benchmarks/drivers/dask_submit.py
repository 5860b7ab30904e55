"""A Dask worker process that runs a jitted function, in a local cluster of its own."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.answering import answer_requests, each

distributed: Any = import_module("distributed")  # by name: type checkers need not have it


@lru_cache
def compiled() -> Any:
    """The jitted function of this worker process."""
    import jax

    return jax.jit(lambda x: x * 2.0 + 1.0)


def affine(x: Any) -> Any:
    """The numpy result."""
    from benchmarks.drivers.dask_submit import compiled  # the worker's own cache

    return np.asarray(compiled()(x))


def main() -> None:
    """Measures until the input closes, then ends the cluster that it started."""
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        x = np.ones(16, np.float32)
        call = each(lambda: client.submit(affine, x, pure=False).result())
        answer_requests({"small": call})


if __name__ == "__main__":
    main()
