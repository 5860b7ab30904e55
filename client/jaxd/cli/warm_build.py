"""Builds or checks many recorded calls: several at a time; a failure does not stop the others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable
from queue import SimpleQueue
from typing import Final, NamedTuple

from jaxd.api.client import Client
from jaxd.dispatch.caller import Caller
from jaxd.dispatch.warm import RecordedFunction, Verdict, warm
from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.explain.argument_shapes import argument_shapes
from jaxd_protocol.messages.recipes import Recipe, RecordedCall

_MAX_CONCURRENT: Final = 8
"""Builds that are requested at the same time; how many run at once is decided by the server."""


class BuildOutcome(NamedTuple):
    """The outcome for one recorded call.

    Attributes:
        function: its name with the arguments, for people.
        verdict: how its program was made ready, or would be; None after an error.
        seconds: how long that took.
        error: why it failed, in one line.
        kept: whether it is on disk now; None: unknown.
    """

    function: str
    verdict: Verdict | None = None
    seconds: float = 0.0
    error: str | None = None
    kept: bool | None = None


def build_all(
    client: Client, recipes: Iterable[Recipe], *, check: bool = False
) -> Generator[BuildOutcome, None, None]:
    """Has the server build all that is not ready; yields the outcome of each when it is done.

    Closed early, it starts no further builds and closes the client's connection.

    Args:
        client: of the server.
        recipes: of the recorded calls.
        check: build nothing; the verdicts say what would be done.
    """
    functions = [RecordedFunction(recipe) for recipe in recipes]
    calls = [(function, call) for function in functions for call in function.recipe.calls]
    left, results = deque(calls), SimpleQueue[BuildOutcome]()
    work = client.caller, left, results, check
    try:
        for _ in calls[:_MAX_CONCURRENT]:  # daemons: Ctrl-C must not wait for them
            start_thread(
                threading.Thread(target=_build_each, args=work, name="jaxd-warm", daemon=True)
            )
        for _ in calls:
            yield results.get()
    except BaseException:
        left.clear()
        client.close()  # ends the waiting of those that are under way
        raise


def _build_each(
    caller: Caller,
    left: deque[tuple[RecordedFunction, RecordedCall]],
    results: SimpleQueue[BuildOutcome],
    check: bool,
) -> None:
    """Builds one recorded call after the other until none is left."""
    while True:
        try:
            recorded, call = left.popleft()
        except IndexError:
            return
        results.put(_build(caller, recorded, call, check=check))


def _build(
    caller: Caller, recorded: RecordedFunction, call: RecordedCall, *, check: bool
) -> BuildOutcome:
    name = _call_text(recorded, call)
    try:
        if check:
            return BuildOutcome(name, recorded.verdict(caller, call))
        warmed = warm(caller, recorded.call(caller, call))
    except Exception as error:  # noqa: BLE001  whatever the function raises; the others go on
        text = " ".join(str(error).split())
        is_own = isinstance(error, JaxdError)
        return BuildOutcome(name, error=text if is_own else f"{type(error).__name__}: {text}")
    return BuildOutcome(name, warmed.verdict, warmed.seconds, kept=warmed.kept)


def _call_text(recorded: RecordedFunction, call: RecordedCall) -> str:
    """``train_step(x=float32[128,8], batch=dict of 3, steps=10)``."""
    try:
        forms = argument_shapes(call.skeleton, recorded.recipe.parameters)
    except JaxdError:
        return recorded.name
    given = ", ".join(f"{name}={argument.form}" for name, argument in forms.items())
    return f"{recorded.name}({given})"
