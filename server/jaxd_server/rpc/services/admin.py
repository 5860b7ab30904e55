"""Answers `functions`, `report`, `recipes`, `forget`, `why`, `recent` and `detail`; shows views.

All of them read files, build or collect something: not for a thread that others wait for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, Protocol

from jaxd_protocol.errors import NotPermitted
from jaxd_protocol.jit.options import function_key
from jaxd_protocol.messages.recipes import dump_recipes
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.history.advice import advice_for
from jaxd_server.compilation.history.reasons import versions_of
from jaxd_server.execution.call import Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.jax_compat.programs import analysed
from jaxd_server.rpc.services.inventory import arguments_text, inventory, report
from jaxd_server.rpc.services.recipes import Recorder
from jaxd_server.rpc.services.stages import Stages
from jaxd_server.rpc.services.why import why


class Views(Protocol):
    """What there is to see of the worker."""

    def news_for(self, principal: str, since: int, source: str) -> dict[str, Any]:
        """What has changed, as far as a principal may see it."""

    def cancel(self, call: str, principal: str) -> bool:
        """Cancels a call for a principal; whether it could be cancelled."""


class AdminService:
    """Safe from any thread.

    Args:
        pipeline: what answers calls.
        stages: shows the stages of a function.

    Attributes:
        views: what there is to see; set before the first client comes.
    """

    def __init__(self, pipeline: Pipeline, stages: Stages | None = None) -> None:
        self.views: Views
        self._pipeline = pipeline
        self._stages = stages
        self._recorder = Recorder(pipeline)

    def answer(self, verb: str, args: tuple[Any, ...], principal: str = "") -> Reply:
        """Answers a request; those about builds also while the server drains.

        Args:
            verb: `functions`, `report`, `recipes`, `forget`, `why`, `recent`, `view`, `detail` or
                `cancel_call`.
            args: see `jaxd_protocol.messages.calls`.
            principal: of the client, which may not see everything.

        Raises:
            JaxdError: when there is no answer.
        """
        if verb == "recent":
            (count,) = args
            found = self._pipeline.build_log.recent(count, principal)
            return json.dumps({"decisions": [decision.to_dict() for decision in found]}), ()
        if verb == "view":
            return json.dumps(self.views.news_for(principal, *args)), ()
        if verb == "cancel_call":
            (call,) = args
            return json.dumps({"cancelled": self.views.cancel(call, principal)}), ()
        if verb == "detail":
            return self._detail(principal, *args)
        if verb == "why":
            key, skeleton, message = args
            return json.dumps(why(self._pipeline, key, skeleton, message, principal)), ()
        with self._pipeline.operation(f"({verb})"):
            if verb == "functions":
                return json.dumps(inventory(self._pipeline, principal)), ()
            if verb == "report":
                return json.dumps(report(self._pipeline, principal).to_dict()), ()
            return (self._recipes if verb == "recipes" else self._forget)(principal, *args)

    def _detail(self, principal: str, key: bytes, program: str, stage: str) -> Reply:
        build_log = self._pipeline.build_log
        if not build_log.known_functions.visibility(principal)(key):
            raise NotPermitted(_UNKNOWN)
        here = [each for each in self._pipeline.executables.all() if each.key == key]
        if stage:
            found = next((each for each in here if each.id == program), None)
            if found is None:
                raise NotPermitted(
                    "no such program is in memory. Call the function, and take its program of the "
                    "view then."
                )
            return self._text(principal, found, stage)
        record = build_log.build_history.find(key)
        use = self._pipeline.counters.functions.get(key)
        history = [one for one in build_log.recent(_MANY, principal) if one.key == key]
        advice = []
        if record is not None:
            records = build_log.build_history.records(
                build_log.known_functions.visibility(principal)
            )
            advice = advice_for(record, versions_of(records, record.description))
        name = record.description.name if record else use.name if use else ""
        detail = {
            "key": key.hex(),
            "name": name,
            "where": record.description.where if record else use.where if use else "",
            "history": [one.to_dict() for one in history],
            "advice": [one.text for one in advice],
            "programs": [
                _program_detail(each, use.parameters if use else ()) for each in here[:_MANY]
            ],
        }
        return json.dumps(detail), ()

    def _text(self, principal: str, executable: Executable, stage: str) -> Reply:
        """The text of a program; its jaxpr is made anew of the code that is here."""
        if stage == "hlo" or self._stages is None:
            return json.dumps({"text": analysed(executable.program.compiled)["text"]}), ()
        recorded = executable.recorded
        args = (executable.key, recorded.skeleton, "jaxpr", "", False)
        pickles = [memoryview(each) for each in recorded.pickles]
        return self._stages.answer(_NobodyToAsk(), args, pickles, principal)

    def _recipes(self, principal: str, mark: str) -> Reply:
        now = self._recorder.mark()
        if not mark:
            return (json.dumps({"mark": now}),), ()
        recipes, left_out = self._recorder.since(mark, principal)
        messages, buffers = dump_recipes(recipes)
        report = {"mark": now, "left_out": [one._asdict() for one in left_out]}
        return (json.dumps(report), *messages), buffers

    def _forget(self, principal: str, key: bytes) -> Reply:
        if not self._pipeline.build_log.known_functions.visibility(principal)(key):
            return json.dumps({"executables": 0}), ()  # as for an unknown key
        program_cache, executables = self._pipeline.program_cache, self._pipeline.executables
        here = {executable.kept_as for executable in executables.all() if executable.key == key}
        own = {each.key for each in executables.all() if self._is_private_of(each.key, key)}
        count = sum(map(executables.forget, {key, *own}))
        if program_cache is not None:
            program_cache.flush()  # else what is being written would be there again
            calls = program_cache.calls()
            gone = {name: kept for name, kept in calls.items() if kept.key == key}
            for name, kept in gone.items():
                program_cache.store.remove("calls", name)
                count += kept.obstacle is None and name not in here
            named = {kept.program for name, kept in calls.items() if name not in gone}
            for program in {kept.program for kept in gone.values() if kept.program} - named:
                program_cache.store.remove("programs", program)  # else the next call would load it
            program_cache.store.remove("functions", key)
        return json.dumps({"executables": count}), ()

    def _is_private_of(self, own: bytes, key: bytes) -> bool:
        """Whether one client has `own` in place of `key`, because the fingerprint is in doubt."""
        record = None if own == key else self._pipeline.build_log.build_history.find(own)
        if record is None:
            return False
        described = record.description
        return function_key(described.fingerprint, described.options) == key


_MANY: Final = 200
_UNKNOWN: Final = (
    "there is no function of that key that you have called. Call it first, or ask as the user that "
    "the server belongs to."
)


def _program_detail(executable: Executable, parameters: tuple[str, ...]) -> dict[str, Any]:
    found = analysed(executable.program.compiled, with_text=False)
    arguments = arguments_text(executable.recorded.skeleton, parameters)
    return {"name": executable.id, "arguments": arguments, **found}


class _NobodyToAsk:
    """The source of a function that no open call is about: all has to be here already."""

    @property
    def owner(self) -> bytes:
        """No client."""
        return b""

    def describe(self, key: bytes) -> NoReturn:
        """Asks nobody."""
        self._refuse()

    def code(self, fingerprint: bytes) -> NoReturn:
        """Asks nobody."""
        self._refuse()

    def read(self, fingerprint: bytes, read: Any) -> NoReturn:
        """Asks nobody."""
        self._refuse()

    def confirm(self, fingerprint: bytes, reads: Any) -> NoReturn:
        """Asks nobody."""
        self._refuse()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Waits for nobody."""
        yield

    def _refuse(self) -> NoReturn:
        raise NotPermitted(
            "the code of the function is not on the server any more, or it reads what only its "
            "client has. Use f.jaxpr() in a program that has the function."
        )
