"""Large arguments and results of a client without jax: `transfer ADDRESS BYTES ROUTE`.

ROUTE is how the data is to go: by `socket`, through `shared` memory, or `any` way. Which way it
went is known from the bytes that the server has received; where that is another one, the driver
is left out and reports that.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cached_property, partial
from statistics import median
from typing import Any

import numpy as np

import jaxd
from benchmarks.answering import answer_requests, measure_median, report_skipped


def affine(x: Any) -> Any:
    """The small function: what it computes costs nothing."""
    return x * 2.0 + 1.0


def first_eight(x: Any) -> Any:
    """The function of a large argument that hardly reads it."""
    return x[:8].sum()


def filled(x: Any, count: int) -> Any:
    """The function of a small argument that makes a large array."""
    import jax.numpy as jnp

    return jnp.full(count, x)


class Transfer:
    """One client, and a large array of float32.

    Args:
        client: of the server.
        nbytes: size of the array.
    """

    def __init__(self, client: jaxd.Client, nbytes: int) -> None:
        self._client = client
        self._count = nbytes // 4
        self._first_eight = client.persistent_call(first_eight)
        self._small = client.persistent_call(affine)
        self._made = client.persistent_call(filled, static_argnames="count", results="remote")
        self._turn = 0

    @cached_property
    def _plain(self) -> Any:
        return np.random.default_rng(0).random(self._count, np.float32)

    def argument(self) -> Any:
        """A call with the array, which is another one each time."""
        self._turn += 1
        self._plain[self._turn % 8] = self._turn
        return np.asarray(self._first_eight(self._plain))

    def put(self) -> Any:
        """The array, another one each time, put on the server, and a call with what is there."""
        self._turn += 1
        self._plain[self._turn % 8] = self._turn
        return np.asarray(self._first_eight(self._client.put(self._plain)))

    def again(self) -> Any:
        """A call with the array as it was the last time."""
        return np.asarray(self._first_eight(self._plain))

    def ready(self) -> Any:
        """A call with an array that lies in shared memory from the start."""
        return np.asarray(self._first_eight(self._shared))

    @cached_property
    def _shared(self) -> Any:
        shared = jaxd.empty(self._count, np.float32)
        shared[:] = 1
        return shared

    def handle(self) -> Any:
        """A call with an array that lies on the server."""
        return np.asarray(self._first_eight(self._remote))

    @cached_property
    def _remote(self) -> Any:
        return self._client.put(self._plain)

    def small(self) -> Any:
        """A call with a small array."""
        return np.asarray(self._small(self._few))

    @cached_property
    def _few(self) -> Any:
        return np.ones(16, np.float32)

    def fetch(self, calls: int, copy: bool = True) -> float:
        """Seconds until an array of the server is here, p50; making it is not counted."""
        taken = []
        for turn in range(calls):
            array = self._made(float(turn), count=self._count).block_until_ready()
            began = time.perf_counter_ns()
            found = array.fetch(copy=copy)
            taken.append((time.perf_counter_ns() - began) / 1e9)
            assert found[-1] == turn
        return median(taken)

    def bytes_by_socket(self) -> int:
        """Bytes that a call with the array sends over the socket."""
        self.argument()
        before = self._client.statistics().bytes_received
        self.argument()
        return self._client.statistics().bytes_received - before


def main() -> None:
    """Measures until the input closes."""
    address, nbytes, route = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if route == "socket" and hasattr(os, "memfd_create"):
        del os.memfd_create  # as where there is none
    transfer = Transfer(jaxd.connect(address), nbytes)
    taken = "socket" if transfer.bytes_by_socket() >= nbytes else "shared"
    if route not in (taken, "any"):
        report_skipped(
            "arrays of this size go by socket" if taken == "socket" else "nothing is sent"
        )
    answer_requests(
        {
            "argument": measure_median(transfer.argument),
            "put": measure_median(transfer.put),
            "again": measure_median(transfer.again),
            "ready": measure_median(transfer.ready),
            "handle": measure_median(transfer.handle),
            "small": measure_median(transfer.small),
            "fetch": transfer.fetch,
            "view": partial(transfer.fetch, copy=False),
        }
    )


if __name__ == "__main__":
    main()
