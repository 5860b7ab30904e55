"""`JAXD_INLINE=1`: the same program without any server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live_server import source_environment

PROGRAM = """
import asyncio, os
from functools import partial
import numpy as np
from jaxd import persistent_call

@persistent_call(static_argnames="affine", donate_argnums=0)
def layer(x, w, affine=True):
    return x @ w + 1 if affine else x @ w

@persistent_call
def whose(x):
    import os
    global pid
    pid = os.getpid()
    return x

x, w = np.ones((3, 3), np.float32), np.ones((3, 3), np.float32)
print(float(layer(x, w)[0, 0]), float(layer(x, w, affine=False)[0, 0]))
print(float(layer.submit(x, w).result()[0, 0]), [float(y) for y in whose.map([1.0, 2.0])])
print(asyncio.run(whose.call_async(3.0)).item(), pid == os.getpid(), type(whose(1.0)).__module__)
outer = persistent_call(lambda x: whose(x) + 1)
print(float(outer(1.0)))

@persistent_call
def broken(x):
    raise KeyError("mine")

for call in (broken, lambda x: broken.submit(x).result()):
    try:
        call(1.0)
    except KeyError as error:
        print(error, "jaxd server" in "".join(getattr(error, "__notes__", [])))
"""


@pytest.mark.slow
def test_it_is_jax_jit_in_this_process(runtime: Path) -> None:
    """Calls, futures, maps, coroutines, options and errors; no server is looked for or started."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=source_environment(runtime, JAXD_INLINE="1", JAXD_SERVER="tcp://127.0.0.1:1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    assert run.stdout.splitlines() == [
        "4.0 3.0",
        "4.0 [1.0, 2.0]",
        "3.0 True jaxlib._jax",
        "2.0",
        "'mine' False",
        "'mine' False",
    ]
    assert os.listdir(runtime) == []


def test_without_jax_it_says_so(runtime: Path) -> None:
    """The error names the extra."""
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "import jaxd\n"
        "try: jaxd.persistent_call(lambda x: x)(1.0)\n"
        "except jaxd.errors.NoServer as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=source_environment(runtime, JAXD_INLINE="1"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "jaxd[server]" in said
    assert "unset JAXD_INLINE" in said
