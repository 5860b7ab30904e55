"""Answers `functions`, `report`, `recipes`, `forget`, `why`, `recent`, `profile`: administrators.

All of them read files or build something, so they are not for a thread that others wait for.
"""

from __future__ import annotations

import json
from typing import Any

from jaxd_protocol.errors import NotPermitted, ProtocolError
from jaxd_protocol.jit.options import function_key
from jaxd_protocol.messages.recipes import dump_recipes
from jaxd_server.execution.call import Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.jax_compat.profiler import Profiler
from jaxd_server.rpc.services.inventory import inventory, report
from jaxd_server.rpc.services.recipes import Recorder
from jaxd_server.rpc.services.why import why
from jaxd_server.runtime.call_trace import clock
from jaxd_server.runtime.logs import log_event


class AdminService:
    """Safe from any thread.

    Args:
        pipeline: what answers calls.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._recorder = Recorder(pipeline)
        self._profiler = Profiler()

    def answer(self, verb: str, args: tuple[Any, ...], principal: str = "") -> Reply:
        """Answers a request; those about builds also while the server drains.

        Args:
            verb: one of those above.
            args: see `jaxd_protocol.messages.calls`.
            principal: of the client, which may not see everything.

        Raises:
            JaxdError: when there is no answer.
        """
        if verb == "recent":
            (count,) = args
            found = self._pipeline.build_log.recent(count, principal)
            return json.dumps({"decisions": [decision.to_dict() for decision in found]}), ()
        if verb == "why":
            key, skeleton, message = args
            return json.dumps(why(self._pipeline, key, skeleton, message, principal)), ()
        if verb == "profile":
            return self._profile(principal, *args)
        with self._pipeline.operation(f"({verb})"):
            if verb == "functions":
                return json.dumps(inventory(self._pipeline, principal)), ()
            if verb == "report":
                return json.dumps(report(self._pipeline, principal).to_dict()), ()
            return (self._recipes if verb == "recipes" else self._forget)(principal, *args)

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
