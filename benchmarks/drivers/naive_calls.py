"""A client of the naive server, as one would write it first: `naive_calls PORT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import rpyc

from benchmarks.answering import answer_requests, each


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
    affine = naive_persistent_call(lambda x: x * 2.0 + 1.0, int(sys.argv[1]))
    x = np.ones(16, np.float32)
    answer_requests({"small": each(lambda: affine(x))})


if __name__ == "__main__":
    main()
