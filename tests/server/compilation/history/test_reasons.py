"""The nearest thing that was built, and what differs from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxd_protocol.explain.argument_shapes import argument_shapes
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_server.compilation.history.build_history import BuildHistory
from jaxd_server.compilation.history.reasons import Reason, reason_for, versions_of
from tests.server.builds import (
    PARAMETERS,
    built,
    described,
    executable,
    function_part,
    key_of,
    skeleton_of,
    value_part,
)

PROGRAM = executable()
STEPS = StaticArgs(frozenset({1}))
X = np.zeros((128, 8), np.float32)


def build_history_of(*known: tuple[FunctionDescriptor, tuple[Any, ...]]) -> BuildHistory:
    """One in which those functions were built for those arguments."""
    build_history = BuildHistory()
    for description, args in known:
        build_history.add(key_of(description), description, built(PROGRAM, *args, statics=STEPS))
    return build_history


def why(build_history: BuildHistory, description: FunctionDescriptor, *args: Any) -> Reason:
    """The reason for a call."""
    arguments = argument_shapes(skeleton_of(*args, statics=STEPS), PARAMETERS)
    return reason_for(build_history.records(), key_of(description), description, arguments)


def version(lr: str, n: str) -> FunctionDescriptor:
    """A function with two globals."""
    return described(value_part("LR", lr), value_part("N", n))


STEP = described()
HELPERS = [function_part(name, name, "u.py:1") for name in "abcd"]
MOVED = described(*HELPERS, where="new.py:1")._replace(
    parts=(function_part("step", "new", "new.py:1"), *HELPERS)
)
Called = tuple[FunctionDescriptor, tuple[Any, ...]]
TOLD: dict[str, tuple[list[Called], Called, str]] = {
    "a first call": ([], (STEP, (X,)), "first call of this function on this server"),
    "other arguments of a known key, also when another key is as like": (
        [(STEP, (X,)), (described(value_part("LR", "1")), (X[:3],))],
        (STEP, (X[:3],)),
        "argument x: float32[128,8] → float32[3,8]",
    ),
    "the arguments that differ least, of equals the last": (
        [(STEP, (X, 3)), (STEP, (X, 4)), (STEP, (X[:5], 9))],
        (STEP, (X, 5)),
        "argument steps (static): 4 → 5",
    ),
    "the version with the fewest differences, of equals the last": (
        [(version(lr, n), (X,)) for lr, n in (("0.1", "1"), ("0.2", "2"), ("0.3", "1"))],
        (version("0.4", "1"), (X,)),
        "global LR: 0.3 → 0.4",
    ),
    "a new version with other arguments, the code first": (
        [(version("0.1", "1"), (X,))],
        (version("0.2", "1"), (X[:1],)),
        "global LR: 0.1 → 0.2; argument x: float32[128,8] → float32[1,8]",
    ),
    "other options of the same code, and no more": (
        [(STEP, (X,))],
        (STEP._replace(options=Options(config=(("jax_enable_x64", True),))), (X,)),
        "jax_enable_x64: False → True",
    ),
    "a function that moved, of which most is the same": (
        [(described(*HELPERS, where="old.py:1"), (X,))],
        (MOVED, (X,)),
        "function step (new.py:1): code changed",
    ),
    "what no two processes share, though every part is the same": (
        [(STEP, (X,))],
        (STEP._replace(fingerprint=b"another" * 2, shared=False), (X,)),
        "it reaches something that has no content to compare, so every process compiles its own",
    ),
    "nothing of a namesake from another file": (
        [
            (
                STEP._replace(fingerprint=b"n" * 16, parts=(function_part("step", "e", "o.py:1"),)),
                (X,),
            )
        ],
        (STEP, (X,)),
        "first call of this function on this server",
    ),
}


@pytest.mark.parametrize("what", TOLD)
def test_what_is_told(what: str) -> None:
    """Of a call, in comparison with what was built before."""
    known, (description, args), text = TOLD[what]
    reason = why(build_history_of(*known), description, *args)
    assert reason.text == text
    assert (reason.nearest is None) is text.startswith("first call")


def test_what_was_dropped_says_so() -> None:
    """It was built for exactly these arguments before."""
    assert "dropped to make room" in why(build_history_of((STEP, (X,))), STEP, X).text


def test_a_function_that_was_renamed_is_near() -> None:
    """If most of it is the same; a new one that shares little is none."""
    helpers = [function_part(name, name, "u.py:1") for name in "abcd"]
    before, after = described(*helpers, name="old"), described(*helpers, name="new")
    reason = why(build_history_of((before, (X,))), after, X)
    assert reason.nearest is not None
    assert "now uses function new" in reason.text
    assert (
        why(build_history_of((before, (X,))), described(helpers[0], name="new"), X).nearest is None
    )


def test_functions_without_known_parts_are_near_by_name() -> None:
    """Lambdas are not: there are many."""
    for name, near in (("step", True), ("<lambda>", False)):
        known = FunctionDescriptor(name, b"1" * 16, Options())
        asked = FunctionDescriptor(f"make.{name}", b"2" * 16, Options())
        assert (why(build_history_of((known, (X,))), asked, X).nearest is not None) is near


def test_without_arguments_functions_are_compared() -> None:
    """And nothing is said about what they were called with."""
    build_history = build_history_of((described(value_part("LR", "0.1")), (X,)))
    step = described(value_part("LR", "0.2"))
    reason = reason_for(build_history.records(), key_of(step), step, None)
    assert (reason.text, reason.built) == ("global LR: 0.1 → 0.2", None)


def test_what_a_server_doubts_says_so() -> None:
    """It stands under a key of its own there."""
    step = described()
    build_history = BuildHistory()
    build_history.add(b"private", step, built(PROGRAM, X))
    assert "could not confirm the key of its client" in why(build_history, step, X).text


def test_versions_are_those_of_one_name_the_last_one_first() -> None:
    """Wherever they are nested."""
    steps = [described(value_part("LR", lr), name=f"make{lr}.step") for lr in "12"]
    build_history = build_history_of(*((step, (X,)) for step in [*steps, described(name="other")]))
    found = versions_of(build_history.records(), described())
    assert [record.description.name for record in found] == ["make2.step", "make1.step"]
