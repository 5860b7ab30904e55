"""The 1,797 handwritten digits that ship inside scikit-learn, for the examples beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

FOR_TESTS = 297


def split() -> tuple[Any, Any, Any, Any]:
    """Images of shape (n, 64) and labels to learn from, and others to test with."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.data[order] / 16).astype(np.float32)
    labels = found.target[order].astype(np.int32)
    return images[FOR_TESTS:], labels[FOR_TESTS:], images[:FOR_TESTS], labels[:FOR_TESTS]


def batches(images: Any, labels: Any, steps: int, size: int = 100) -> Iterator[tuple[Any, Any]]:
    """So many random batches, the same in every process."""
    rng = np.random.default_rng(1)
    for _ in range(steps):
        chosen = rng.choice(len(labels), size, replace=False)
        yield images[chosen], labels[chosen]
