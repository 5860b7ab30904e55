"""A server of your choice.

Start one in another terminal and name it here:

    jaxd serve --listen unix:///tmp/my-server/server.sock
    python own_server.py unix:///tmp/my-server/server.sock
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import jaxd


def solve(matrix: Any, right: Any) -> Any:
    """The x with matrix @ x = right."""
    import jax.numpy as jnp

    return jnp.linalg.solve(matrix, right)


if len(sys.argv) != 2:
    sys.exit("usage: own_server.py ADDRESS   (such as unix:///tmp/my-server/server.sock)")

with jaxd.connect(sys.argv[1]) as client:
    remote_solve = client.persistent_call(solve)
    matrix = np.eye(3, dtype=np.float32) * 2
    print("solution:", np.asarray(remote_solve(matrix, np.ones(3, np.float32))))
    print("server:  ", client.info())
