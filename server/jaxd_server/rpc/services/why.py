"""Answers `why` from what is known; runs, builds, keeps and counts nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from jaxd_protocol.explain.argument_differences import argument_differences
from jaxd_protocol.explain.argument_shapes import Argument, argument_shapes
from jaxd_protocol.explain.key_differences import dependency_difference
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_server.compilation.history.advice import advice_for
from jaxd_server.compilation.history.build_history import BuildEntry, KeyHistory, Verdict
from jaxd_server.compilation.history.reasons import Reason, reason_for, versions_of
from jaxd_server.execution.pipeline import Pipeline

_TEXTS: Final[dict[Verdict, tuple[str, str]]] = {
    "hit": (
        "a compiled program for these arguments is ready",
        "compiled programs are ready, and calls with their arguments compile nothing",
    ),
    "load": (
        "a compiled program for these arguments is on disk",
        "compiled programs are on disk, and calls with their arguments compile nothing",
    ),
}
"""What is said of a verdict: when there are arguments, and when there are none."""

_OBSTACLES: Final = {
    "callbacks": "calls back into Python",
    "effects": "has ordered effects",
    "constants": "takes constants as arguments",
    "references": "has mutable references",
    "targets": "calls native code that is not jax's own",
    "types": "has element types that are not jax's own",
    "unknown": "holds something that this version of jax does not let jaxd look at",
    "tokens": "returns objects that only its own worker has",
    "unwritten": "is one that jax cannot write (the server's log says why)",
}
_PICKLED = (
    "An argument holds an object that travels as a pickle. Whether the program fits it shows only "
    "when a call brings it."
)


def why(
    pipeline: Pipeline, key: bytes, skeleton: bytes | None, message: Any, principal: str = ""
) -> dict[str, Any]:
    """The answer to `why`, for JSON: whether a call would compile, and the reason.

    Args:
        pipeline: what answers calls.
        key: of the function.
        skeleton: of the arguments; None: any.
        message: the description of the function.
        principal: of the client, which may not see everything.

    Raises:
        ProtocolError: when the description or the skeleton cannot be read.
    """
    program_cache, build_log = pipeline.program_cache, pipeline.build_log
    plan = None if skeleton is None else pipeline.executables.plan(key, skeleton)
    is_planned = plan is not None and plan.executable is not None
    visibility = build_log.known_functions.visibility(principal)
    records = build_log.build_history.records(visibility)
    described = FunctionDescriptor.from_message(message)
    arguments = None if skeleton is None else argument_shapes(skeleton, described.parameters)
    record = records.get(key)
    fitting = _fitting(record, arguments)
    ready = [built for built in fitting if built.warm]
    kept = (
        []
        if ready or program_cache is None
        else [one for one in fitting if one.name and program_cache.has(one.name)]
    )
    verdict: Verdict = "hit" if ready or is_planned else "load" if kept else "compile"
    reason = Reason() if verdict != "compile" else reason_for(records, key, described, arguments)
    if not reason.differences:
        changes = [change for built in ready if (one := built.warm) for change in one.outdated]
        if verdict == "compile" and program_cache is not None:
            kept_as = [built.name for built in fitting if built.name]
            changes = [change for name in kept_as for change in program_cache.changes_since(name)]
        found = tuple(dependency_difference(*change) for change in dict.fromkeys(changes))
        reason = replace(reason, differences=found)
    text = reason.text
    if verdict != "compile" and not reason.differences:
        text = _TEXTS[verdict][arguments is None]
    about = record or reason.nearest
    advice = advice_for(about, versions_of(records, described)) if about else []
    texts = [one.text for one in advice]
    if verdict == "compile":
        texts += _not_kept(fitting)
    elif _pickled(arguments):
        texts.append(_PICKLED)
    return {
        "verdict": verdict,
        "function": described.name,
        "key": key.hex(),
        "fingerprint": described.fingerprint.hex(),
        "reason": text,
        "nearest": _nearest(reason, key),
        "differences": [each.to_dict() for each in reason.differences],
        "advice": texts,
        "programs": [_program(built) for built in ready or kept],
    }


def _fitting(
    record: KeyHistory | None, arguments: Mapping[str, Argument] | None
) -> list[BuildEntry]:
    """The programs that were made for these arguments, or for any."""
    return [
        built
        for built in (record.built if record else ())
        if arguments is None or not argument_differences(built.arguments, arguments)
    ]


def _not_kept(fitting: list[BuildEntry]) -> list[str]:
    """Why programs that were made before have to be made again."""
    obstacles = dict.fromkeys(built.obstacle for built in fitting if built.obstacle)
    return [
        f"Its program {_OBSTACLES.get(obstacle, obstacle)}, so it cannot be kept on disk: each "
        "new worker makes it again."
        for obstacle in obstacles
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


def _program(built: BuildEntry) -> dict[str, Any]:
    warm = built.warm
    return {
        "arguments": {
            name: f"{argument.form}{' (static)' if argument.form.kind == 'static' else ''}"
            for name, argument in built.arguments.items()
        },
        "seconds": round(built.seconds, 3),
        "age_s": round(max(0.0, time.time() - built.at), 3),
        "calls": warm.calls if warm else 0,
    }
