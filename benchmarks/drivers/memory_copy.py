"""One copy from memory to memory, both in use before: `memory_copy BYTES`."""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.answering import answer_requests, measure_median


def main() -> None:
    """Measures until the input closes."""
    source = np.ones(int(sys.argv[1]), np.uint8)
    target = np.zeros_like(source)
    answer_requests({"copy": measure_median(lambda: np.copyto(target, source))})


if __name__ == "__main__":
    main()
