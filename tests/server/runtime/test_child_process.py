from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from jaxd_server.runtime.child_process import in_a_file, read_argument

if TYPE_CHECKING:
    import pytest

ARGUMENT = {"epoch": 7, "suspects": [{"name": "f" * 1_000_000}], "principal": "account:Größe"}


def test_an_argument_is_read_from_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any length: a command line has a limit. Nothing is left open."""
    short, descriptor = in_a_file(ARGUMENT)
    assert not os.get_inheritable(descriptor)
    assert len(json.dumps(short)) < 100
    for given in (ARGUMENT, short):
        monkeypatch.setattr(sys, "argv", ["worker", json.dumps(given)])
        assert read_argument() == ARGUMENT
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")
