"""Answers `why` and `recent`: looks at what there is; runs, builds, keeps and counts nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jaxd_protocol.argument_differences import argument_differences
from jaxd_protocol.descriptions import Description
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.trees.forms import Argument, argument_forms
from jaxd_server.advice import advice_for
from jaxd_server.decisions import Decisions
from jaxd_server.executables import Executables
from jaxd_server.ledger import Built, Record, Verdict
from jaxd_server.reasons import Reason, reason_for, versions_of

__all__ = ["answer_inquiry"]

_WARM = "a compiled program for these arguments is ready"
_ANY_WARM = "compiled programs are ready, and calls with their arguments compile nothing"
_PICKLED = (
    "An argument holds an object that travels as a pickle. Whether the program fits it shows only "
    "when a call brings it."
)


def answer_inquiry(
    decisions: Decisions, executables: Executables, verb: str, args: tuple[Any, ...]
) -> dict[str, Any]:
    """The answer to `why` or `recent`, for JSON.

    Raises:
        ProtocolError: when the question cannot be read.
    """
    try:
        if verb == "recent":
            (count,) = args
            return {"decisions": [decision.to_dict() for decision in decisions.recent(count)]}
        key, skeleton, message = args
    except (TypeError, ValueError) as error:
        raise ProtocolError("a question about builds cannot be read.") from error
    if type(key) is not bytes or type(skeleton) not in (bytes, type(None)):
        raise ProtocolError("a question about builds has other types.")
    return _why(decisions, executables, key, skeleton, Description.from_message(message))


def _why(
    decisions: Decisions,
    executables: Executables,
    key: bytes,
    skeleton: bytes | None,
    described: Description,
) -> dict[str, Any]:
    ledger = decisions.ledger
    arguments = None if skeleton is None else argument_forms(skeleton, described.parameters)
    record = ledger.find(key)
    ready = _ready(record, arguments)
    plan = None if skeleton is None else executables.plan(key, skeleton)
    is_warm = bool(ready) or (plan is not None and plan.executable is not None)
    verdict: Verdict = "hit" if is_warm else "compile"
    reason = Reason() if is_warm else reason_for(ledger, key, described, arguments)
    text = (_ANY_WARM if arguments is None else _WARM) if is_warm else reason.text
    about = record or reason.nearest
    advice = advice_for(about, versions_of(ledger, described)) if about else []
    texts = [one.text for one in advice] + ([_PICKLED] if is_warm and _pickled(arguments) else [])
    return {
        "verdict": verdict,
        "function": described.name,
        "key": key.hex(),
        "fingerprint": described.fingerprint.hex(),
        "reason": text,
        "nearest": _nearest(reason, key),
        "differences": [each.to_dict() for each in reason.differences],
        "advice": texts,
        "programs": [_program(built) for built in ready],
    }


def _ready(record: Record | None, arguments: Mapping[str, Argument] | None) -> list[Built]:
    """The programs that the server still has, for these arguments or for any."""
    return [
        built
        for built in (record.built if record else ())
        if built.is_warm
        and (arguments is None or not argument_differences(built.arguments, arguments))
    ]


def _pickled(arguments: Mapping[str, Argument] | None) -> bool:
    """Whether the arguments hold something that only unpickling would show."""
    return any(
        leaf.kind == "leaf" and leaf.text.startswith("pickled")
        for argument in (arguments or {}).values()
        for _, leaf in argument.form.leaves()
    )


def _nearest(reason: Reason, key: bytes) -> dict[str, Any] | None:
    nearest = reason.nearest
    if nearest is None:
        return None
    built = reason.built or nearest.built[-1]
    same = nearest.key == key
    return {"function": nearest.description.name, "key": nearest.key.hex(), "same_key": same} | (
        _program(built)
    )


def _program(built: Built) -> dict[str, Any]:
    return {
        "arguments": {name: _told(argument) for name, argument in built.arguments.items()},
        "seconds": round(built.seconds, 3),
        "age_s": round(max(0.0, time.time() - built.at), 3),
        "calls": built.calls,
    }


def _told(argument: Argument) -> str:
    static = " (static)" if argument.form.kind == "static" else ""
    return f"{argument.form}{static}"
