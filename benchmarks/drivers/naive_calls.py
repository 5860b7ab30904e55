"""A client of the naive server, as one would write it first: `naive_calls PORT BYTES`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import rpyc

from benchmarks.answering import answer_requests, measure_median


def naive_persistent_call(function: Callable[..., Any], port: int) -> Callable[..., Any]:
    """The function, run by the naive server at that loopback port."""
    connection = rpyc.connect("127.0.0.1", port)
    packed = cloudpickle.dumps(function)

    def call(*arguments: Any, **keywords: Any) -> Any:
        sent = cloudpickle.dumps(arguments), cloudpickle.dumps(keywords)
        return cloudpickle.loads(connection.root.call(packed, *sent))

    return call


def main() -> None:
    """Measures until the input closes."""
    port, nbytes = int(sys.argv[1]), int(sys.argv[2])
    affine = naive_persistent_call(lambda x: x * 2.0 + 1.0, port)
    first_eight = naive_persistent_call(lambda x: x[:8].sum(), port)
    x = np.ones(16, np.float32)
    large = np.random.default_rng(0).random(nbytes // 4, np.float32)  # rpyc compresses what it can
    answer_requests(
        {
            "small": measure_median(lambda: affine(x)),
            "large": measure_median(lambda: first_eight(large)),
        }
    )


if __name__ == "__main__":
    main()
