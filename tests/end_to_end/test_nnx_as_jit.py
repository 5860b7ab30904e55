"""A table of what functions do to flax nnx objects: as under `nnx.jit`, attribute by attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxd import Client

nnx: Any = pytest.importorskip("flax.nnx")
pytest.importorskip("optax")
pytestmark = pytest.mark.libraries("flax", "optax")

from tests.end_to_end import nnx_mutations  # noqa: E402
from tests.live_server import LiveServer  # noqa: E402


@pytest.fixture(autouse=True)
def server_of_inner_functions(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is persistent inside of `nnx.jit` is called from here: on the common server as well."""
    monkeypatch.setenv("JAXD_SERVER", live.unix)


def outcome(function: Callable[..., Any], row: Any) -> Any:
    """Everything that two calls with the same objects leave and return."""
    given = row.given()
    results = []
    for _ in range(2):
        try:
            results.append(function(*given))
        except Exception as error:  # noqa: BLE001  the second one may be without what has gone
            results.append(type(error).__name__)
    return nnx_mutations.described(given, results)


SLOW = {nnx_mutations.train, nnx_mutations.sows, nnx_mutations.takes_out}
"""A whole step of a training takes seconds; of the others there are rows that do more."""

ROWS = [
    pytest.param(row, id=str(row), marks=[pytest.mark.slow] * (row.does in SLOW))
    for row in nnx_mutations.ROWS
]


@pytest.mark.filterwarnings("ignore")  # flax's own, of what it is about to take away
@pytest.mark.parametrize("row", ROWS)
def test_a_call_leaves_what_nnx_jit_leaves(client: Client, row: Any) -> None:
    """Values, attributes, types, shared objects, and which results are arguments."""
    assert outcome(client.persistent_call(row.does), row) == outcome(nnx.jit(row.does), row)
