"""An array fetcher without a server, which counts the bytes it moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxd.interop.remote_array import RemoteArray, ResultBatch
from jaxd_protocol.pytree import Leaf


def single_array(fetcher: Any, id: int, leaf: Leaf) -> RemoteArray:  # noqa: A002
    """An array that came of a call which returned no others."""
    (found,) = watched_arrays(ResultBatch(fetcher, id, (leaf,)))
    return found


def watched_arrays(batch: ResultBatch) -> list[RemoteArray]:
    """All arrays of a batch, whose fetcher is told at once when one goes."""
    arrays = batch.make(range(len(batch.leaves)))

    def tell(_: object) -> None:
        for ids in batch.take_gone()[0]:
            batch.fetcher.drop(ids)

    batch.watch(tell)
    return arrays


class FakeFetcher:
    """Holds arrays by number.

    Attributes:
        address: an address.
        moved: bytes that were brought home.
        told: what it was asked for, one word each, with the index for parts.
        failure: what every touch raises, if anything.
    """

    address = "unix:///run/jaxd"

    def __init__(self) -> None:
        self.moved = 0
        self.told: list[Any] = []
        self.failure: Exception | None = None
        self._arrays: dict[int, Any] = {}

    def keep(self, value: Any, weak: bool = False) -> Any:
        """A handle of a numpy or jax array, or of PRNG keys."""
        leaf, array = leaf_and_data(value, weak)
        self._arrays[len(self._arrays)] = array
        return single_array(self, len(self._arrays) - 1, leaf)

    def fetch_bytes(self, array: Any) -> memoryview:
        """The bytes, in memory of their own."""
        self._note("bring")
        self.moved += array.leaf.nbytes
        return memoryview(bytearray(self._arrays[array.id].tobytes()))

    def part(self, array: Any, index: tuple[Any, ...]) -> Any:
        """What numpy says that the index means, as an array of this process."""
        self._note(("part", index))
        found = self._arrays[array.id][index]
        self.moved += found.nbytes
        return single_array(
            SingleArrayFetcher(found), 0, leaf_and_data(found, array.leaf.weak)[0]
        ).fetch()

    def wait(self, array: Any) -> None:
        """Everything is computed."""
        self._note("wait")

    def data_here(self, array: RemoteArray) -> memoryview | None:
        return array.data_here()

    def drop(self, ids: range) -> None:
        """Takes note."""
        self.told.extend(("drop", id_) for id_ in ids)

    def _note(self, what: Any) -> None:
        self.told.append(what)
        if self.failure is not None:
            raise self.failure


class SingleArrayFetcher(FakeFetcher):
    """Holds one array that has come home."""

    def __init__(self, array: Any) -> None:
        super().__init__()
        self._arrays[0] = array


def leaf_and_data(value: Any, weak: bool) -> tuple[Leaf, Any]:
    """The leaf and the numbers of an array."""
    import jax

    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(value))
        return Leaf("K", "uint32", data.shape, impl=str(jax.random.key_impl(value))), data
    data = np.asarray(value)
    return Leaf("A", data.dtype.name, data.shape, weak), data
