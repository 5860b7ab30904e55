"""Chains from installed modules."""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from types import ModuleType
from typing import Any

import jax
import pytest

from jaxd_protocol.errors import PackingError
from tests.fake_packages import FakeSite
from tests.ids import stable_id
from tests.shared.fingerprint.defining import digest_of, function, walk_of


@pytest.mark.parametrize("value", [10, [1, 2], {"a": 1}, lambda x: x], ids=stable_id)
def test_what_somebody_has_put_there_counts_and_travels(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data, and functions of the user's; a change is noticed."""
    made = function("return JSON.limit", JSON=json)
    before = walk_of(made)
    monkeypatch.setattr(json, "limit", value, raising=False)
    assert not before.guards.hold()
    walked = walk_of(made)
    assert walked.fingerprint.digest != before.fingerprint.digest
    assert walked.reach.carried == {"json": {"limit": value}}
    assert walked.fingerprint.carried == {"json:limit"}


def test_a_module_below_another_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """To what somebody has put into it."""
    monkeypatch.setattr(jax.numpy, "limit", 10, raising=False)
    walked = walk_of(function("return JAX.numpy.limit", JAX=jax))
    assert walked.reach.carried == {"jax.numpy": {"limit": 10}}


def test_a_module_of_the_user_s_that_somebody_put_there_counts_by_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of it what is read."""
    mine = ModuleType("made_mine")
    vars(mine)["RATE"] = 1
    monkeypatch.setattr(json, "mine", mine, raising=False)
    made = function("return JSON.mine.RATE", JSON=json)
    walked = walk_of(made)
    assert walked.reach.part_of(mine) == {"RATE"}
    vars(mine)["RATE"] = 2
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


def test_a_setting_of_an_installed_class_counts_and_does_not_travel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server compares it with that of its own class."""
    made = function("return JSON.JSONEncoder.limit", JSON=json)
    monkeypatch.setattr(json.JSONEncoder, "limit", 1, raising=False)
    walked = walk_of(made)
    monkeypatch.setattr(json.JSONEncoder, "limit", 2)
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest
    (part,) = [part for part in walked.fingerprint.parts if part.kind == "installed"]
    assert (part.name, part.shown) == ("json.JSONEncoder.limit", "1")
    assert walked.reach.carried == {}
    assert walked.fingerprint.carried == {"json:JSONEncoder.limit"}


@pytest.mark.parametrize(
    "body",
    [
        "import importlib\nreturn importlib.import_module(x)",
        "from importlib import import_module\nreturn import_module(x)",
        "import importlib\nreturn importlib.import_module('made_mine')",
        "import sys\nreturn sys.modules[x]",
        "import sys\nreturn sys.modules",
    ],
)
def test_an_import_that_is_computed_is_refused(body: str) -> None:
    """It cannot be followed; the message says how to write it."""
    with pytest.raises(PackingError, match=r"cannot be seen which module.*import statement"):
        walk_of(function(body))


@pytest.mark.parametrize(
    "body",
    [
        "import importlib\nreturn importlib.import_module('json')",
        "import sys\nreturn sys.modules['json.decoder']",
    ],
)
def test_an_installed_module_may_be_named_by_text(body: str) -> None:
    """The server has it."""
    assert walk_of(function(body)).fingerprint.unshared == ()


def test_a_logger_s_methods_are_nobody_s_patch() -> None:
    """What it holds is not looked at."""
    body = "LOGGING.getLogger('a').info(x)"
    assert walk_of(function(body, LOGGING=logging)).reach.carried == {}


@pytest.mark.parametrize("body", ["return JSON.now.tm_year", "return JSON.now[0]"])
def test_of_a_struct_sequence_the_field_that_is_read_counts(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `sys.version_info.minor`: another field that differs makes no other key."""
    made, digests = function(body, JSON=json), []
    for year, month in ((2020, 1), (2020, 2), (2021, 1)):
        now = time.struct_time((year, month, 0, 0, 0, 0, 0, 0, 0))
        monkeypatch.setattr(json, "now", now, raising=False)
        digests.append(digest_of(made))
    assert digests[0] == digests[1] != digests[2]


def test_a_package_within_a_namespace_counts(site: FakeSite) -> None:
    """Its distribution, where code reads it as an attribute; the server imports the module."""
    site.install("shared-space-one", "1.5", {"shared_space/one/__init__.py": "RATE = len\n"})
    space = importlib.import_module("shared_space.one")
    made = function("return SPACE.one.RATE(x)", SPACE=sys.modules["shared_space"])
    walked = walk_of(made)
    assert space is not None
    assert walked.fingerprint.packages["shared_space.one"].version == "1.5"
    assert walked.reach.submodules == {"shared_space.one"}
