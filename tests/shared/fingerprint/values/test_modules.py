"""Modules, and references to what is installed."""

from __future__ import annotations

import math
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from jaxd_protocol.fingerprint.dispatch import HANDLERS
from jaxd_protocol.fingerprint.process_view import LocalProcess
from jaxd_protocol.fingerprint.values.modules import IGNORED_ATTRIBUTES, emit_reference
from jaxd_protocol.fingerprint.walk import Walk
from tests.shared.fingerprint.defining import define, digest_of, part_names, walk_of

HELPERS = "RATE = 1\ndef scale(x): return x * RATE\ndef shift(x): return x + 1"


def test_a_module_that_is_a_value_counts_whole() -> None:
    """All that is in it can be reached."""
    one, other = define(HELPERS), define(HELPERS + "2")
    assert digest_of(one) == digest_of(define(HELPERS)) != digest_of(other)
    assert walk_of(one).reach.part_of(one) is None
    assert "value: global RATE" in part_names(one)


def test_where_a_module_lies_does_not_count() -> None:
    """Nor how it was loaded, nor what pytest has put there."""
    one, other = define(HELPERS), define(HELPERS)
    other.__file__, other.__doc__ = "/elsewhere.py", "Says."
    vars(other)["@pytest_ar"] = object()
    assert digest_of(one) == digest_of(other)
    assert {"__file__", "__doc__", "__spec__", "__builtins__"} <= IGNORED_ATTRIBUTES


def test_a_change_of_a_module_is_noticed() -> None:
    """One that counts whole: also a new name."""
    module = define(HELPERS)
    guards = walk_of(module).guards
    vars(module)["NEW"] = 1
    assert not guards.hold()


def test_an_installed_module_counts_by_its_name_and_package() -> None:
    """Nothing in it is looked at."""
    import numpy as np

    walked = walk_of(np.linalg)
    assert [part.name for part in walked.fingerprint.parts] == ["package numpy"]
    assert digest_of(np.linalg) != digest_of(np.fft) != digest_of(math)


def test_an_extension_counts_by_the_bytes_of_its_file(tmp_path: Path) -> None:
    """It cannot travel: whoever touches it on a server is told so."""

    def made(content: bytes) -> bytes:
        file = tmp_path / f"fast{EXTENSION_SUFFIXES[0]}"
        file.write_bytes(content)
        module = define("", name="fast")
        module.__file__ = str(file)
        walked = walk_of(module)
        assert walked.reach.unpicklable[id(module)].reason == "it is a compiled extension module"
        assert walked.fingerprint.unshared == ()
        return walked.fingerprint.digest

    assert made(b"one") == made(b"one") != made(b"other")


@pytest.mark.parametrize(("name", "notes"), [("time", 1), ("sleep", 0)])
def test_a_reference_to_what_reads_the_clock_is_noted(name: str, notes: int) -> None:
    """Wherever the reference comes from."""
    walk = Walk(HANDLERS, LocalProcess())
    walked = walk.run(1, "f")
    assert walked.fingerprint.notes == ()
    again = Walk(HANDLERS, LocalProcess())
    again._trail = ("f",)
    emit_reference(again, "time", name)
    assert len(again._notes) == notes
