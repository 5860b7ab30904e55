"""Small data in the place of data sets that programs would download."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

_MNIST_OF_JAX = Path("/tmp/jax_example_data")
"""Where jax's examples look before they download."""


def make_data() -> None:
    """Makes all that the programs need, where it is missing."""
    if not (_MNIST_OF_JAX / "t10k-labels-idx1-ubyte.gz").exists():
        _write_digits(_MNIST_OF_JAX)


def _write_digits(folder: Path) -> None:
    """The digits of scikit-learn in the files of MNIST: 1500 to train with and 297 to test."""
    from sklearn.datasets import load_digits

    folder.mkdir(exist_ok=True)
    digits = load_digits()
    images = np.zeros((len(digits.images), 28, 28), np.uint8)
    images[:, 2:26, 2:26] = np.kron(digits.images * 15.9, np.ones((3, 3))).astype(np.uint8)
    for name, part in (("train", slice(0, 1500)), ("t10k", slice(1500, None))):
        chosen, labels = images[part], digits.target[part].astype(np.uint8)
        head = struct.pack(">IIII", 2051, len(chosen), 28, 28)
        _write(folder / f"{name}-images-idx3-ubyte.gz", head + chosen.tobytes())
        head = struct.pack(">II", 2049, len(labels))
        _write(folder / f"{name}-labels-idx1-ubyte.gz", head + labels.tobytes())


def _write(file: Path, content: bytes) -> None:
    with gzip.open(file, "wb") as opened:
        opened.write(content)
