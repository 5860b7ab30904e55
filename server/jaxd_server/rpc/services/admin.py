"""Answers `functions`, `report`, `recipes`, `forget`, `why`, `recent`, `profile`, `view`, `detail`.

And `cancel_call`.
All of them read files, build or collect something: not for a thread that others wait for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from jaxd_protocol.errors import NotPermitted, ProtocolError
from jaxd_protocol.jit.options import function_key
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_protocol.messages.recipes import dump_recipes
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.functions.table import Clientless
from jaxd_server.compilation.history.advice import advice_for
from jaxd_server.compilation.history.build_history import KeyHistory, Visibility
from jaxd_server.compilation.history.reasons import versions_of
from jaxd_server.execution.call import Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.jax_compat.profiler import Profiler
from jaxd_server.jax_compat.programs import analysed
from jaxd_server.rpc.services.inventory import arguments_text, inventory, report
from jaxd_server.rpc.services.recipes import Recorder
from jaxd_server.rpc.services.stages import Stages
from jaxd_server.rpc.services.why import why
from jaxd_server.runtime.call_trace import clock
from jaxd_server.runtime.logs import log_event


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
        self._profiler = Profiler()
        self._beside: Mapping[str, Callable[..., Any]] = {
            "recent": self._recent,
            "why": self._why,
            "view": self._view,
            "detail": self._detail,
            "cancel_call": self._cancel,
        }  # answered also while the server drains, and no work
        self._operations: Mapping[str, Callable[..., Reply]] = {
            "functions": self._functions,
            "report": self._report,
            "recipes": self._recipes,
            "forget": self._forget,
        }

    def answer(self, verb: str, args: tuple[Any, ...], principal: str = "") -> Reply:
        """Answers a request; those about builds also while the server drains.

        Args:
            verb: one of those above.
            args: see `jaxd_protocol.messages.calls`.
            principal: of the client, which may not see everything.

        Raises:
            JaxdError: when there is no answer.
        """
        if verb in self._beside:
            return json.dumps(self._beside[verb](principal, *args)), ()
        if verb == "profile":
            return self._profile(principal, *args)
        with self._pipeline.operation(f"({verb})"):
            return self._operations[verb](principal, *args)

    def _recent(self, principal: str, count: int) -> dict[str, Any]:
        found = self._pipeline.build_log.recent(count, principal)
        return {"decisions": [decision.to_dict() for decision in found]}

    def _why(self, principal: str, key: bytes, skeleton: bytes | None, message: Any) -> Any:
        return why(self._pipeline, key, skeleton, message, principal)

    def _view(self, principal: str, since: int, source: str) -> dict[str, Any]:
        return self.views.news_for(principal, since, source)

    def _cancel(self, principal: str, call: str) -> dict[str, Any]:
        return {"cancelled": self.views.cancel(call, principal)}

    def _functions(self, principal: str) -> Reply:
        return json.dumps(inventory(self._pipeline, principal)), ()

    def _report(self, principal: str) -> Reply:
        return json.dumps(report(self._pipeline, principal).to_dict()), ()

    def _detail(self, principal: str, key: bytes, program: str, stage: str) -> dict[str, Any]:
        sees = self._pipeline.build_log.known_functions.visibility(principal)
        record = self._pipeline.build_log.build_history.find(key) if sees(key) else None
        use = self._pipeline.counters.functions.get(key) if sees(key) else None
        if record is None and use is None:
            raise NotPermitted(_UNKNOWN)
        here = [each for each in self._pipeline.executables.all() if each.key == key]
        if stage:
            return self._text(principal, here, program, stage)
        detail = _described(record.description) if record else {"name": "", "where": ""}
        if use is not None:
            detail = {"name": use.name, "where": use.where}
        parameters = use.parameters if use else ()
        return {
            "key": key.hex(),
            **detail,
            "history": self._history(principal, key),
            "advice": [] if record is None else self._advice(record, sees),
            "programs": [_program_detail(each, parameters) for each in here[:_MANY]],
        }

    def _history(self, principal: str, key: bytes) -> list[dict[str, Any]]:
        recent = self._pipeline.build_log.recent(_MANY, principal)
        return [one.to_dict() for one in recent if one.key == key]

    def _advice(self, record: KeyHistory, sees: Visibility) -> list[str]:
        records = self._pipeline.build_log.build_history.records(sees)
        found = advice_for(record, versions_of(records, record.description))
        return [one.text for one in found]

    def _text(
        self, principal: str, here: Sequence[Executable], program: str, stage: str
    ) -> dict[str, Any]:
        """The text of a program; its jaxpr is made again of the code that is here."""
        executable = next((each for each in here if each.id == program), None)
        if executable is None:
            raise NotPermitted(
                "no such program is in memory. Call the function, and take its program of the view "
                "then."
            )
        if stage == "hlo" or self._stages is None:
            return {"text": analysed(executable.program.compiled)["text"]}
        recorded = executable.recorded
        args = (executable.key, recorded.skeleton, "jaxpr", "", False)
        pickles = [memoryview(each) for each in recorded.pickles]
        nobody = Clientless(NotPermitted(_NOT_HERE))
        text, _ = self._stages.answer(nobody, args, pickles, principal)
        return {"text": json.loads(text)["text"]}

    def _profile(self, principal: str, action: str, seconds: int) -> Reply:
        """Starts a profile of the whole worker, or ends it and sends its files."""
        if not self._pipeline.build_log.known_functions.is_owner(principal):
            raise NotPermitted(
                "a profile shows what all clients of the server run, so it is made only for the "
                "user who runs the server. Ask them for it: jaxd profile"
            )
        if action == "start":
            self._profiler.start(seconds)
            log_event("profile_started", principal=principal or None)
            return json.dumps(clock()), ()
        if action != "stop":
            raise ProtocolError(f"a profile is started or stopped; {action!r} is neither.")
        files = self._profiler.stop()
        report = {"files": [file.name for file in files]}
        return (json.dumps(report),), [memoryview(file.data) for file in files]

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
_NOT_HERE: Final = (
    "the code of the function is not on the server any more, or it reads what only its client has. "
    "Use f.jaxpr() in a program that has the function."
)


def _described(description: FunctionDescriptor) -> dict[str, Any]:
    return {"name": description.name, "where": description.where}


def _program_detail(executable: Executable, parameters: tuple[str, ...]) -> dict[str, Any]:
    found = analysed(executable.program.compiled, with_text=False)
    arguments = arguments_text(executable.recorded.skeleton, parameters)
    return {"name": executable.id, "arguments": arguments, **found}
