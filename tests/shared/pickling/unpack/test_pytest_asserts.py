"""Asserts that pytest has rewritten work where there is no pytest."""

from __future__ import annotations

import base64
import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from _pytest.assertion import rewrite

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack import pytest_asserts
from tests.shared.fingerprint.defining import define
from tests.shared.pickling.processes import round_trip, run

if TYPE_CHECKING:
    import pytest

LIMIT = 3


def doubled(x: int) -> int:
    assert x < LIMIT and isinstance(x, int), "too\nlarge"  # noqa: PT018
    assert doubled is not None
    assert x * 2 == x + x
    assert [x] != [LIMIT, {"a": x}], f"{x}"
    return x * 2


CALL = """
import base64, json, sys
sys.modules["_pytest"] = None
from jaxd_protocol.pickling.unpack.unpickler import unpack_function
function = unpack_function(base64.b64decode(json.load(sys.stdin))).function
print(function(2))
try:
    function(5)
except AssertionError as error:
    print(error)
"""


helpers = define(
    "import threading\nRATE, OTHER, LOCK = 2, 3, threading.Lock()", name="made_helpers"
)


def scaled(x: int) -> int:
    assert helpers.RATE > 0
    assert isinstance(x, int), helpers.RATE
    return int(x * helpers.RATE)


def test_a_module_that_an_assert_names_counts_by_what_is_read_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message of the assert has its name alone; so what else is in it need not travel."""
    found = walk(scaled, "it")
    assert found.reach.part_of(helpers) == {"RATE"}
    assert round_trip(scaled)(2) == 4
    monkeypatch.setattr(helpers, "OTHER", 4)
    assert found.guards.hold()
    assert walk(scaled, "it").fingerprint.digest == found.fingerprint.digest
    monkeypatch.setattr(helpers, "RATE", 5)
    assert not found.guards.hold()
    assert walk(scaled, "it").fingerprint.digest != found.fingerprint.digest


def test_an_assert_works_without_pytest(tmp_path: Path) -> None:
    """It passes, and fails with a message that shows the values."""
    data = pack_function(doubled, "it", walk(doubled, "it").reach)
    text = run(CALL, cwd=tmp_path, given=json.dumps(base64.b64encode(data).decode()))
    assert text.startswith("4\n")
    assert "large" in text
    assert "assert (5 < 3" in text


def test_pytest_itself_does_not_travel() -> None:
    """A stand-in does."""
    assert round_trip(doubled).__globals__["@pytest_ar"] is pytest_asserts


def test_all_helpers_of_pytest_are_there() -> None:
    """Those that its rewriter puts into code; this notices when there is another."""
    source = inspect.getsource(rewrite)
    called = set(re.findall(r'self\.helper\(\s*"(\w+)"', source))
    assert called
    assert {name for name in called if not hasattr(pytest_asserts, name)} == set()


def test_a_long_value_is_cut() -> None:
    """And one whose `repr` fails is named."""

    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert len(pytest_asserts._saferepr("x" * 10_000)) < 300
    assert "Broken whose repr fails" in pytest_asserts._saferepr(Broken())


def test_the_failing_comparison_is_shown() -> None:
    """Of several in a row; arrays have no truth value."""
    assert pytest_asserts._call_reprcompare(("<", "<"), (True, False), ("a", "b"), (1, 2, 0)) == "b"
    assert pytest_asserts._call_reprcompare(("<",), (np.ones(2),), ("a",), (1, 2)) == "a"


def test_an_explanation_is_laid_out() -> None:
    """Its marks are gone."""
    text = pytest_asserts._format_explanation("assert 1 == 2\n{2 = f()\n}\n~more")
    assert text.splitlines() == ["assert 1 == 2", " +  where 2 = f()", "  more"]
