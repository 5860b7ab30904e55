"""What a worker keeps of functions that are called no more."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from jaxd_protocol.pickling.unpack.private_modules import PrivateModules
from jaxd_server.codec.object_references import ObjectNumbers
from jaxd_server.compilation.functions import receive
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.processes.worker import wiring
from tests.server.in_process import InProcessServer

LIMIT = 4


def modules() -> int:
    """How many functions there are whose modules were made again in this process."""
    gc.collect()
    return sum(type(one) is PrivateModules for one in gc.get_objects())


@pytest.mark.slow
def test_of_functions_no_more_is_kept_than_the_tables_hold(
    open_in_process_server: Callable[..., InProcessServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by jax, whose caches know what was traced, nor by what was compiled."""
    monkeypatch.setattr(wiring, "Functions", partial(Functions, limit=LIMIT))
    monkeypatch.setattr(receive, "object_numbers", ObjectNumbers(LIMIT))
    client = open_in_process_server(max_executables=LIMIT).client()
    before = modules()
    for number in range(3 * LIMIT):
        f = client.persistent_call(lambda x, n=number: x * n + 1, extra_key=str(number))
        assert f(np.float32(2)) == 2 * number + 1
    assert 0 < modules() - before <= LIMIT
