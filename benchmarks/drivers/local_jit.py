"""`jax.jit` in this process, from a numpy argument to a numpy result."""

from __future__ import annotations

import jax
import numpy as np

from benchmarks.answering import answer_requests, measure_median


def main() -> None:
    """Measures until the input closes."""
    affine = jax.jit(lambda x: x * 2.0 + 1.0)
    x = np.ones(16, np.float32)
    answer_requests({"small": measure_median(lambda: np.asarray(affine(x)))})


if __name__ == "__main__":
    main()
