"""Every technique of the five tutorials gives through the server what it gives in plain jax."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from unittest import mock

import pytest

from tests.examples.loading import (
    EXAMPLES,
    assert_equal,
    in_plain_jax,
    techniques_of,
)
from tests.live_server import LiveServer

FILES = {file.stem: file for file in sorted((EXAMPLES / "seeds").glob("*.py"))}
EVERY_TIME = "jax_notes"
"""The file whose techniques are run with every test; those of the others with `make soak`."""

CASES = [
    pytest.param(name, technique, marks=[] if name == EVERY_TIME else pytest.mark.soak)
    for name, file in FILES.items()
    for technique in techniques_of(file)
]

Load = Callable[[str], Mapping[str, Any]]


@pytest.fixture(scope="module")
def load(live: LiveServer) -> Iterator[Load]:
    """An example by its name, with its functions on the common server; each is loaded once.

    Functions look for their server when they are called first, so it is there as long as these are.
    """
    with mock.patch.dict("os.environ", {"JAXD_SERVER": live.unix}):
        yield cache(lambda name: runpy.run_path(str(FILES[name]), run_name=name))


@cache
def _in_plain_jax(name: str) -> Mapping[str, Any]:
    return in_plain_jax(FILES[name])


def test_there_is_a_file_for_each_tutorial() -> None:
    """Five tutorials; what one of them says of foreign code has a file of its own."""
    assert sorted(FILES) == [
        "advanced_foreign_code",
        "advanced_techniques",
        "introduction_to_jax",
        "jax_for_the_impatient",
        "jax_for_the_impatient_zh",
        "jax_notes",
    ]


@pytest.mark.parametrize(("name", "technique"), CASES)
def test_a_technique_gives_what_plain_jax_gives(name: str, technique: str, load: Load) -> None:
    """Bit for bit, in the same containers, with the same dtypes, and with the same errors."""
    if name == "introduction_to_jax":
        pytest.importorskip("flax")
    assert_equal(load(name)[technique](), _in_plain_jax(name)[technique]())


PRINTED: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("jax_for_the_impatient", "regression"): lambda column: [
        (column["true"], 0.023639796),
        (column["step 0"], 10.971408),
        (column["step 50"], 0.0137539385),
        (column["step 100"], 0.011576906),
    ],
    ("jax_for_the_impatient", "regression_with_trees"): lambda result: [
        (result[0][1]["W"][0, 0], -1.1769425),
        (result[0][1]["b"][4], 0.66766924),
        (result[1]["step 0"], 10.971408),
        (result[1]["step 100"], 0.011576906),
        (result[2]["step 0"], 0.011576906),
        (result[2]["step 100"], 0.011568364),
    ],
    ("jax_for_the_impatient_zh", "regression_with_trees"): lambda column: [
        (column["step 0"], 11.096583),
        (column["step 50"], 0.013420242),
        (column["step 100"], 0.011575883),
    ],
    ("jax_for_the_impatient", "random_numbers"): lambda result: [
        (result[0][0][0], -0.20584226),
        (result[2][0][0], 0.14389051),
        (result[2][1][0], -1.2515389),
        (result[4][2][1], 1939998335),
    ],
    ("introduction_to_jax", "backward_pass"): lambda result: [
        (result[0][0, 0], -0.0397228),
        (result[0][2, 1], 0.06558497),
        (result[1][0][0, 1], -6.3839216),
        (result[1][1][0, 0], 6.5335693),
    ],
    ("introduction_to_jax", "update_step"): lambda kernels: [
        (kernels[0][0, 0], 8.9361610),
        (kernels[1][1, 0], -10.063839),
    ],
}
"""What the tutorials print, beside what stands at that place."""


@pytest.mark.soak
@pytest.mark.parametrize(("name", "technique"), PRINTED)
def test_the_numbers_are_those_that_are_printed(name: str, technique: str, load: Load) -> None:
    """To four digits: the losses, the draws, and the slopes of a network."""
    if name == "introduction_to_jax":
        pytest.importorskip("flax")
    for found, printed in PRINTED[name, technique](load(name)[technique]()):
        assert float(found) == pytest.approx(printed, rel=5e-5)


@pytest.mark.slow
def test_one_of_them_needs_no_jax(live: LiveServer) -> None:
    """The Chinese edition's file runs to its end in a process that never imports jax."""
    program = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
print(sorted({"jax", "jaxlib"} & set(sys.modules)))
"""
    done = live.run(program, str(FILES["jax_for_the_impatient_zh"]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "regression_with_trees: 11.10" in done.stdout
