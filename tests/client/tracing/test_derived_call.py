"""Calls that jax asks for: what they are sent as, and which are the same."""

from __future__ import annotations

from typing import Any, cast

import jax
import numpy as np
import pytest

from jaxd.dispatch.caller import Caller
from jaxd.interop.jax_runtime import PRNGKeys
from jaxd.request.call_request import CallSettings
from jaxd.request.function_snapshot import FunctionSnapshot, FunctionSpec
from jaxd.tracing.derived_call import Aval, CallOutline, TracedCall, last_error, record_last_error
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.transforms import decode_transformation

X = np.ones(3, "f4")
VECTOR, NUMBER = Aval((3,), "float32"), Aval((), "int32")


class FakeCaller:
    """Notes what is called, and answers with what it was given."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.reply: Any = {"b": X, "a": PRNGKeys("rbg", X)}

    def encode(self, *call: Any) -> Any:
        self.sent.append(call)
        return call

    def call(self, call: Any) -> Any:
        if isinstance(self.reply, BaseException):
            raise self.reply
        return self.reply


def _loss(mode: str, tree: Any, kind: Any = None) -> Any:
    return tree["x"]


def outline_of(caller: FakeCaller, name: Any = "one", results: Any = "auto") -> CallOutline:
    """A call of `_loss("up", {"k": key, "s": "text", "x": array}, kind="k")`."""
    options = Options(static_argnums=(0,), static_argnames=("kind",))
    spec = FunctionSpec(FunctionSnapshot(_loss, options), options)
    structure = jax.tree.structure(([{"k": 0, "s": 0, "x": 0}], {}))
    return CallOutline(
        cast("Caller", caller),
        spec,
        CallSettings((), results, 9.0, True),
        structure,
        (None, "text", None),
        ("rbg", None, ""),
        ("up", None),
        {"kind": "k"},
        name,
    )


def call_of(caller: FakeCaller, **more: Any) -> TracedCall:
    return TracedCall(outline_of(caller, **more), (VECTOR, NUMBER), (0, 1))


def test_the_arguments_are_put_together_again() -> None:
    """Inputs, what stays, and what is static."""
    filled = outline_of(FakeCaller()).filled(["key", X])
    assert filled == (("up", {"k": "key", "s": "text", "x": X}), {"kind": "k"})


def test_the_call_itself_is_an_ordinary_one() -> None:
    """Of the function's own key; leaves come back in jax's order, of keys the numbers."""
    caller = FakeCaller()
    call = call_of(caller)
    found = call.eager([X, X])
    ((spec, args, _, timeout_s, results, strict),) = caller.sent
    assert spec is call.outline.spec
    assert (args[1]["k"].impl, timeout_s, results, strict) == ("rbg", 9.0, "auto", True)
    assert [one is X for one in found] == [True, True]


def test_what_jax_goes_on_with_is_no_numpy_array() -> None:
    """And what a program goes on with is one, whatever the function's own results are to be."""
    caller = FakeCaller()
    call_of(caller, results="numpy").eager([X, X])
    call_of(caller, results="jax").callback([X, X], [False, False])
    assert [call[4] for call in caller.sent] == ["jax", "numpy"]


def test_what_is_derived_has_a_key_of_its_own() -> None:
    """Over the same fingerprint; what comes behind stands before the arguments."""
    caller = FakeCaller()
    call = call_of(caller).differentiated((False, True))
    assert (call.outputs, call.sent) == ((VECTOR,), (0, 1))
    call.eager([X, X, X])
    ((spec, (behind, mode, tree), kwargs, *_),) = caller.sent
    assert (len(behind), mode, tree["s"], kwargs) == (1, "up", "text", {"kind": "k"})
    options = Options.from_bytes(spec.options)
    assert spec.snapshot is call.outline.spec.snapshot
    assert spec.key != call.outline.spec.key
    assert (options.static_argnums, options.static_argnames) == ((1,), ("kind",))
    assert spec.statics.positions == {1}
    assert [decode_transformation(one)[0] for one in options.transformations] == [
        "flat",
        "flat_jvp",
    ]
    assert decode_transformation(options.transformations[0])[1]["static_argnums"] == (0,)


def test_outputs_follow_from_the_steps() -> None:
    """So that nobody has to be asked for them."""
    call = call_of(FakeCaller())
    mapped = call.mapped((None, 0), 4)
    assert mapped.outputs == (Aval((4, 3), "float32"), Aval((4,), "int32"))
    reverse = call.differentiated((False, True)).transposed(
        (False, True, True), (VECTOR, VECTOR), (True,)
    )
    assert (reverse.outputs, reverse.sent) == ((VECTOR, VECTOR), (0,))


def test_what_is_not_sent_has_something_in_its_place() -> None:
    """The arguments look as they always do."""
    caller = FakeCaller()
    call = call_of(caller).transposed((False, True), (VECTOR,), (True, False))
    call.eager([X, X])
    ((_, (behind, _, tree), *_),) = caller.sent
    assert (len(behind), tree["x"]) == (1, False)


def test_a_weak_type_is_not_lost_in_a_program() -> None:
    """numpy has none."""
    from jaxd.request.arguments import encode_arguments
    from jaxd_protocol.jit.static_args import NO_STATIC_ARGS
    from jaxd_protocol.pytree import parse_skeleton

    caller = FakeCaller()
    call_of(caller).callback([X, X], [False, True])
    ((_, args, *_),) = caller.sent
    encoded = encode_arguments((args[1]["x"],), {}, NO_STATIC_ARGS, {})
    (leaf,) = parse_skeleton(encoded.skeleton, lambda *_: object).leaves
    assert (leaf.weak, leaf.shape) == (True, (3,))


def test_equal_calls_are_one_to_jax() -> None:
    """It keeps what it has made of one; of the same steps, or none of its tables would end."""
    caller = FakeCaller()
    one, same = call_of(caller), call_of(caller)
    assert (one, hash(one)) == (same, hash(same))
    assert one.mapped((0, 0), 2) == same.mapped((0, 0), 2)
    others = [call_of(caller, name="two"), one.mapped((0, 0), 2), one.mapped((0, 0), 3)]
    assert len({one, *others}) == 4
    assert one != "one"


def test_people_see_the_steps() -> None:
    """In a jaxpr."""
    call = call_of(FakeCaller()).differentiated((True, True)).mapped((0, 0, 0, 0), 2)
    assert repr(call) == "vmap(jvp(_loss))"


def test_what_fails_in_a_program_is_kept() -> None:
    """And raised, for jax to report it."""
    caller = FakeCaller()
    caller.reply = LookupError("there is none")
    with pytest.raises(LookupError):
        call_of(caller).callback([X, X], [False, False])
    assert last_error() is caller.reply


def test_the_last_error_is_that_of_the_call_that_failed_last() -> None:
    """Itself, whatever thread asks."""
    first, second = ValueError("a"), LookupError("b")
    record_last_error(first)
    assert last_error() is first
    record_last_error(second)
    assert last_error() is second


def test_the_last_error_holds_nothing_of_the_program() -> None:
    """Frames hold arrays, whose memory was the program's."""
    with pytest.raises(ValueError, match="c") as caught:
        int("c")
    assert caught.value.__traceback__ is not None
    record_last_error(caught.value)
    found = last_error()
    assert found is not None
    assert found.__traceback__ is None
