"""Builds or checks many recorded calls: several at a time; a failure does not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from jaxd.api.client import Client
from jaxd.dispatch.caller import Caller
from jaxd.dispatch.warm import RecordedFunction, Verdict, warm
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.explain.argument_shapes import argument_shapes
from jaxd_protocol.messages.recipes import Recipe, RecordedCall

_MAX_CONCURRENT: Final = 8
"""Builds that are asked for at the same time; how many run at once is decided by the server."""


class BuildOutcome(NamedTuple):
    """The outcome for one recorded call.

    Attributes:
        function: its name with the arguments, for people.
        verdict: how its program was come by, or would be; None when it cannot be.
        seconds: how long that took.
        error: why it cannot be, in one line.
        kept: whether it is on disk now; None: unknown.
    """

    function: str
    verdict: Verdict | None = None
    seconds: float = 0.0
    error: str | None = None
    kept: bool | None = None


def build_all(client: Client, recipes: Iterable[Recipe]) -> Generator[BuildOutcome, None, None]:
    """Has the server build all that is not ready; what became of each, as they get done.

    Closed early, it starts no more of them, and ends the client's connection.
    """
    return _run_all(client, _build, recipes)


def check_all(client: Client, recipes: Iterable[Recipe]) -> Generator[BuildOutcome, None, None]:
    """What each would find; builds nothing."""
    return _run_all(client, _check, recipes)


_BuildItem = tuple[RecordedFunction, RecordedCall]


def _run_all(
    client: Client, one: Callable[[Caller, _BuildItem], BuildOutcome], recipes: Iterable[Recipe]
) -> Generator[BuildOutcome, None, None]:
    functions = [RecordedFunction(recipe) for recipe in recipes]
    works = [(function, call) for function in functions for call in function.recipe.calls]
    left, results = SimpleQueue[_BuildItem](), SimpleQueue[BuildOutcome]()
    stopped = threading.Event()

    def run() -> None:
        with suppress(Empty):
            while not stopped.is_set():
                results.put(one(client.caller, left.get_nowait()))

    for work in works:
        left.put(work)
    try:
        for _ in works[:_MAX_CONCURRENT]:  # daemons: after Ctrl-C nobody waits for them
            threading.Thread(target=run, name="jaxd-warm", daemon=True).start()
        for _ in works:
            yield results.get()
    except BaseException:
        stopped.set()
        client.close()  # ends the waiting of those that are under way
        raise


def _build(caller: Caller, work: _BuildItem) -> BuildOutcome:
    recorded, call = work
    name = _call_text(recorded, call)
    try:
        warmed = warm(caller, recorded.call(caller, call))
    except Exception as error:  # noqa: BLE001  whatever the function raises; the others go on
        return BuildOutcome(name, error=_one_line(error))
    return BuildOutcome(name, warmed.verdict, warmed.seconds, kept=warmed.kept)


def _check(caller: Caller, work: _BuildItem) -> BuildOutcome:
    recorded, call = work
    name = _call_text(recorded, call)
    try:
        return BuildOutcome(name, recorded.verdict(caller, call))
    except Exception as error:  # noqa: BLE001  each call has an answer, or its error for one
        return BuildOutcome(name, error=_one_line(error))


def _call_text(recorded: RecordedFunction, call: RecordedCall) -> str:
    """``train_step(x=float32[128,8], batch=dict of 3, steps=10)``."""
    try:
        forms = argument_shapes(call.skeleton, recorded.recipe.parameters)
    except JaxdError:
        return recorded.name
    given = ", ".join(f"{name}={argument.form}" for name, argument in forms.items())
    return f"{recorded.name}({given})"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, JaxdError) else f"{type(error).__name__}: {text}"
