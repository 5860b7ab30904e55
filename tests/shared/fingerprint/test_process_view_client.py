"""The process of a client, as a walk on the server sees it."""

from __future__ import annotations

import json
import sys
from types import ModuleType

from jaxd_protocol.fingerprint.data_model import Source
from jaxd_protocol.fingerprint.process_view import ClientProcess
from jaxd_protocol.packages.distributions import Package

PACKAGE = Package("optax", "1.0", b"d" * 16)


def there() -> ClientProcess:
    """A client that has said this much."""
    return ClientProcess(
        salt=b"salt",
        packages={"optax": PACKAGE},
        local={"json": True, "mine": True, "theirs": False},
        carried=frozenset({"json:dumps"}),
        modules={"mine": ModuleType("mine")},
        sources={"late": Source(compile("1", "late.py", "exec"), False)},
    )


def test_there_what_the_client_said_counts() -> None:
    """Also where this process would have decided in another way."""
    process_view = there()
    assert process_view.is_local("json")
    assert not process_view.is_local("theirs")
    assert process_view.package("optax.losses") is PACKAGE
    assert process_view.package("numpy") is None
    assert process_view.carries(json, "dumps", json.dumps)
    assert not process_view.carries(json, "loads", lambda x: x)


def test_there_what_the_client_did_not_meet_is_looked_at_here() -> None:
    """Objects of the server's own libraries may lead to more modules."""
    process_view = there()
    assert not process_view.is_local("numpy.linalg")
    assert process_view.is_local(__name__)


def test_there_local_modules_are_those_that_came() -> None:
    """Never those of this process: two clients have two of the same name."""
    process_view = there()
    assert process_view.module("mine") is process_view.modules["mine"]
    assert process_view.module("json") is None
    assert process_view.module("math") is sys.modules["math"]
    assert process_view.source("late") is process_view.sources["late"]
    assert process_view.source("world_alone") is None
