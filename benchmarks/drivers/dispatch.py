"""One warm executable as the server calls it, beside `jax.jit`, in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.answering import answer_requests, measure_median
from jaxd_server.codec.results import result_layout
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.jax_compat import programs
from jaxd_server.jax_compat.lowered import out_leaves


def double(tree: Any) -> Any:
    """What it computes costs nothing."""
    return jax.tree.map(lambda x: x * 2, tree)


def executable_of(argument: Any) -> Executable:
    """The function for that argument, as a server holds it."""
    lowered = jax.jit(double).lower(argument)
    form = result_layout(out_leaves(lowered), lowered.out_tree)
    return Executable("double", b"", Program(b"", programs.compile_flat(lowered)), form)


def _run(call: Callable[[Any], Any], argument: Any) -> None:
    jax.block_until_ready(call(argument))


def main() -> None:
    """Measures until the input closes."""
    programs.prepare()
    jitted = jax.jit(double)
    one = np.ones(16, np.float32)
    fifty = {f"k{index}": np.ones(4, np.float32) for index in range(50)}
    measurements = {}
    for name, argument in (("one", one), ("fifty", fifty)):
        executable, leaves = executable_of(argument), jax.tree.leaves(argument)
        measurements[f"{name}, executable"] = measure_median(partial(_run, executable, leaves))
        measurements[f"{name}, jit"] = measure_median(partial(_run, jitted, argument))
    answer_requests(measurements)


if __name__ == "__main__":
    main()
