"""The nearest thing that was built, and what differs from it."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def test_a_first_call_says_so() -> None:
    """Nothing is near."""
    reason = why(BuildHistory(), described(), X)
    assert reason == Reason()
    assert reason.text == "first call of this function on this server"


def test_other_arguments_of_a_known_key_are_compared_first() -> None:
    """Even when another key is as like."""
    step, other = described(), described(value_part("LR", "1"))
    build_history = build_history_of((step, (X,)), (other, (X[:3],)))
    reason = why(build_history, step, X[:3])
    assert reason.text == "argument x: float32[128,8] → float32[3,8]"
    assert reason.nearest is not None
    assert reason.nearest.key == key_of(step)


def test_the_nearest_arguments_are_those_that_differ_least() -> None:
    """Not the last ones; of equals the last ones."""
    step = described()
    build_history = build_history_of((step, (X, 3)), (step, (X, 4)), (step, (X[:5], 9)))
    reason = why(build_history, step, X, 5)
    assert reason.text == "argument steps (static): 4 → 5"
    assert reason.built is not None
    assert reason.built.arguments["steps"].form.text == "4"


def test_an_earlier_version_is_compared_by_its_parts() -> None:
    """That with the fewest differences, and of those the last."""
    versions = [
        described(value_part("LR", lr), value_part("N", n))
        for lr, n in (("0.1", "1"), ("0.2", "2"), ("0.3", "1"))
    ]
    build_history = build_history_of(*((version, (X,)) for version in versions))
    reason = why(build_history, described(value_part("LR", "0.4"), value_part("N", "1")), X)
    assert reason.text == "global LR: 0.3 → 0.4"
    assert reason.nearest is not None
    assert reason.nearest.key == key_of(versions[2])


def test_a_new_version_with_other_arguments_says_both() -> None:
    """The code first."""
    build_history = build_history_of((described(value_part("LR", "0.1")), (X,)))
    reason = why(build_history, described(value_part("LR", "0.2")), X[:1])
    assert reason.text == ("global LR: 0.1 → 0.2; argument x: float32[128,8] → float32[1,8]")


def test_other_options_of_the_same_code_are_all_that_is_told() -> None:
    """The fingerprint says that nothing else differs."""
    step = described()
    build_history = build_history_of((step, (X,)))
    other = step._replace(options=Options(config=(("jax_enable_x64", True),)))
    assert why(build_history, other, X).text == "jax_enable_x64: False → True"


def test_what_was_dropped_says_so() -> None:
    """It was built for exactly these arguments before."""
    step = described()
    assert "dropped to make room" in why(build_history_of((step, (X,))), step, X).text


def test_a_namesake_from_another_file_is_not_near() -> None:
    """Everybody has a function called step."""
    namesake = described(value_part("A", "1"), where="other.py:1")
    namesake = namesake._replace(parts=(function_part("step", "else", "other.py:1"),))
    assert why(build_history_of((namesake, (X,))), described(), X).nearest is None


def test_a_function_that_moved_is_near() -> None:
    """Most of it is the same."""
    helpers = [function_part(name, name, "u.py:1") for name in "abcd"]
    before, after = (described(*helpers, where=where) for where in ("old.py:1", "new.py:1"))
    after = after._replace(parts=(function_part("step", "new", "new.py:1"), *helpers))
    reason = why(build_history_of((before, (X,))), after, X)
    assert reason.text == "function step (new.py:1): code changed"


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


def test_what_no_two_processes_share_says_so() -> None:
    """Its fingerprint is like no other, though every part is the same."""
    step = described()
    other = step._replace(fingerprint=b"another" * 2, shared=False)
    text = "it reaches something that has no content to compare, so every process compiles its own"
    assert why(build_history_of((step, (X,))), other, X).text == text


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
