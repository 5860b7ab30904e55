"""What to do about a function that is compiled too often."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd_protocol.fingerprint.data_model import Part
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_server.compilation.history.advice import Advice, advice_for
from jaxd_server.compilation.history.build_history import BuildHistory
from jaxd_server.compilation.history.reasons import versions_of
from tests.server.builds import built, described, executable, key_of, value_part

PROGRAM = executable()
STEPS = StaticArgs(frozenset({1}))


def advice_after(*calls: tuple[FunctionDescriptor, tuple[Any, ...]]) -> list[Advice]:
    """What is said when those functions were built for those arguments, in that order."""
    build_history = BuildHistory()
    for description, args in calls:
        note = built(PROGRAM, *args, statics=STEPS)
        record = build_history.add(key_of(description), description, note)
    return advice_for(record, versions_of(build_history.records(), description))


def with_values(*values: str) -> list[Advice]:
    """For a function whose global had those values."""
    return advice_after(*((described(value_part("LR", value)), (1.0,)) for value in values))


def test_a_number_with_many_values_is_to_be_an_argument() -> None:
    """From the fifth on."""
    assert with_values("0.1", "0.2", "0.3", "1e-4") == []
    (found,) = with_values("0.1", "0.2", "0.3", "1e-4", "-5")
    assert (found.kind, found.subject) == ("scalar", "global LR")
    assert found.text == (
        "global LR has had 5 values in 5 keys of step, each compiled again: pass it as an "
        "argument, then one program serves all."
    )


def test_text_with_many_values_is_not() -> None:
    """It could be no argument."""
    assert with_values(*(f"'{name}'" for name in "abcdef")) == []


def test_a_number_is_blamed_only_when_it_is_all_that_differs() -> None:
    """Somebody who edits code changes several things."""
    versions = [described(value_part("LR", n), value_part("N", n)) for n in "123456"]
    assert advice_after(*((version, (1.0,)) for version in versions)) == []


def test_an_argument_of_many_shapes_is_to_be_padded() -> None:
    """From the eighth on; names the place in a tree."""
    step = described()
    batches = [({"images": np.zeros((n, 2), np.float32)},) for n in range(1, 9)]
    assert advice_after(*((step, batch) for batch in batches[:7])) == []
    (found,) = advice_after(*((step, batch) for batch in batches))
    assert (found.kind, found.subject) == ("shapes", "argument x['images']")
    assert found.text.startswith(
        "step has been compiled for 8 shapes of argument x['images'] (float32[1,2], float32[2,2], …"
    )


def test_a_static_number_with_many_values_is_to_be_an_ordinary_argument() -> None:
    """Text that is declared static is not: jax could not take it."""
    step = described(options=Options(static_argnums=(1,)))
    (found,) = advice_after(*((step, (1.0, n)) for n in range(8)))
    assert (found.kind, found.subject) == ("static", "argument steps")
    assert "8 values of its static argument steps (0, 1, …)" in found.text
    assert advice_after(*((step, (1.0, f"mode{n}")) for n in range(8))) == []


def test_what_is_static_without_being_declared_is_told_when_it_changes() -> None:
    """From the eighth value on, with the place in a tree; objects count by their content."""
    step = described()
    modes = [({"mode": f"m{n}", "lr": float(n)}, 0) for n in range(8)]
    assert advice_after(*((step, args) for args in modes[:7])) == []
    (found,) = advice_after(*((step, args) for args in modes))
    assert (found.kind, found.subject) == ("undeclared", "argument x['mode']")
    assert found.text.startswith(
        "step has been compiled for 8 values of argument x['mode'] ('m0', 'm1', …), which jax "
    )
    (found,) = advice_after(*((step, (frozenset({n}), 0)) for n in range(8)))
    assert "8 values of argument x (an object of frozenset, …)" in found.text


@pytest.mark.parametrize(
    ("shown", "size"),
    [("float32[512,512]", "1.0 MB"), ("bfloat16[1048576]", "2.1 MB"), ("uint8[1024,1024]", "1.0")],
)
def test_a_large_array_is_to_be_an_argument(shown: str, size: str) -> None:
    """From a megabyte on."""
    table = Part("array", "closure table", b"12345678", shown, "")
    (found,) = advice_after((described(table), (1.0,)))
    assert found.kind == "array"
    assert f"step reads closure table ({shown}, {size}" in found.text


@pytest.mark.parametrize(
    "part",
    [
        Part("array", "closure table", b"12345678", "float32[511,512]", ""),
        Part("array", "closure table", b"12345678", "no such thing", ""),
        Part("array", "closure table", b"12345678", "record99[1000000]", ""),
        Part("value", "closure table", b"12345678", "float32[512,512]", ""),
    ],
)
def test_others_are_not(part: Part) -> None:
    """Smaller ones, and what is no array."""
    assert advice_after((described(part), (1.0,))) == []
