"""The first call of the train step in a process that is ready for it: `first_call HOW BLOCKS …`.

`jaxd ADDRESS`: on a server; `jax`: with `jax.jit` here, whose disk cache the environment names.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.answering import answer_requests
from benchmarks.programs.train import make_arguments, train_step


def first_result(how: str, arguments: Any) -> float:
    """Seconds until the loss is here."""
    function: Callable[..., Any]
    if how == "jaxd":
        from jaxd import connect

        function = connect(sys.argv[3]).persistent_call(train_step)
    else:
        import jax

        jax.devices()
        function = jax.jit(train_step)
    began = time.perf_counter_ns()
    float(function(*arguments)[0])
    return (time.perf_counter_ns() - began) / 1e9


def main() -> None:
    """Measures once, when asked."""
    arguments = make_arguments()
    answer_requests({"first": lambda _: first_result(sys.argv[1], arguments)})


if __name__ == "__main__":
    main()
