"""The process of a client, as a walk on the server sees it."""

from __future__ import annotations

import json
import sys
from types import ModuleType

from jaxd_protocol.fingerprint.client_view import There
from jaxd_protocol.fingerprint.model import Source
from jaxd_protocol.packages.packages import Package

PACKAGE = Package("optax", "1.0", b"d" * 16)


def there() -> There:
    """A client that has said this much."""
    return There(
        salt=b"salt",
        packages={"optax": PACKAGE},
        local={"json": True, "mine": True, "theirs": False},
        carried=frozenset({"json:dumps"}),
        modules={"mine": ModuleType("mine")},
        sources={"late": Source(compile("1", "late.py", "exec"), False)},
    )


def test_there_what_the_client_said_counts() -> None:
    """Also where this process would have decided in another way."""
    world = there()
    assert world.is_local("json")
    assert not world.is_local("theirs")
    assert world.package("optax.losses") is PACKAGE
    assert world.package("numpy") is None
    assert world.carries(json, "dumps", json.dumps)
    assert not world.carries(json, "loads", lambda x: x)


def test_there_what_the_client_did_not_meet_is_looked_at_here() -> None:
    """Objects of the server's own libraries may lead to more modules."""
    world = there()
    assert not world.is_local("numpy.linalg")
    assert world.is_local(__name__)


def test_there_local_modules_are_those_that_came() -> None:
    """Never those of this process: two clients have two of the same name."""
    world = there()
    assert world.module("mine") is world.modules["mine"]
    assert world.module("json") is None
    assert world.module("math") is sys.modules["math"]
    assert world.source("late") is world.sources["late"]
    assert world.source("world_alone") is None
