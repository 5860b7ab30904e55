"""What a server says that it has done for one client process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect
from tests.live_server import LiveServer


@pytest.mark.counts_builds
def test_each_client_has_counts_of_its_own(live: LiveServer, client: Client) -> None:
    """A second one is spared what the first has paid for; a call that fails is none."""

    def doubled(x: Any) -> Any:
        import jax.numpy as jnp

        if x.shape == (3,):
            raise ValueError("no")
        return jnp.multiply(x, 2.25)

    def session_of(one: Client) -> dict[str, float]:
        return one.caller.session.use()

    with connect(live.unix) as first, connect(live.unix) as second:
        for number in range(3):
            first.persistent_call(doubled)(np.float32(number))
        with pytest.raises(ValueError, match="no"):
            first.persistent_call(doubled)(np.ones(3))
        second.persistent_call(doubled)(np.float32(1))
        paid, spared = session_of(first), session_of(second)
    assert (paid["calls"], paid["compiled"], paid["found"]) == (3, 1, 0)
    assert (spared["calls"], spared["compiled"], spared["found"]) == (1, 0, 1)
    assert paid["saved_s"] == 0.0 < spared["saved_s"]
    assert session_of(second) == spared  # known after the end of the connection
