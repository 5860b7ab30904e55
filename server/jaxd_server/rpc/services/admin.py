"""Answers what people ask: `functions`, `recipes`, `forget`, and `why` and `recent`.

All of it reads files or builds something, so none of it is for a thread that others wait for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jit.options import function_key
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.messages.recipes import dump_recipes
from jaxd_server.execution.call import Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.rpc.services.inventory import inventory
from jaxd_server.rpc.services.recipes import Recorder
from jaxd_server.rpc.services.why import answer_inquiry

OPERATIONS: Final = frozenset({"functions", "recipes", "forget"})
"""What can be asked by those who look after a server."""

INQUIRIES: Final = frozenset({"why", "recent"})
"""What can be asked about builds; answered while the server drains as well."""


class AdminService:
    """Safe from any thread.

    Args:
        pipeline: what answers calls; an operation is admitted, and waited for, as one of them.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._recorder = Recorder(pipeline.executables, pipeline.build_log, pipeline.program_cache)
        self._verbs: Mapping[str, Callable[..., Reply]] = {
            "functions": self._functions,
            "recipes": self._recipes,
            "forget": self._forget,
        }

    def answer(self, verb: str, args: tuple[Any, ...], principal: str = "") -> Reply:
        """Does what was asked; never raises: an error comes back as that of a call does.

        Args:
            verb: one of `OPERATIONS` or `INQUIRIES`.
            args: see `jaxd_protocol.messages.calls`.
            principal: who asks, who may not see everything.
        """
        try:
            if verb in INQUIRIES:
                return self._inquire(verb, args, principal)
            running = self._pipeline.admission.acquire(f"({verb})", None)
            try:
                return self._verbs[verb](principal, *_checked(verb, args))
            finally:
                self._pipeline.admission.release(running)
                self._pipeline.counters.add()  # the server was not idle
        except BaseException as error:  # noqa: BLE001  all of it is the caller's to know
            return (FAILED, encode_failure(error)), ()

    def _inquire(self, verb: str, args: tuple[Any, ...], principal: str) -> Reply:
        pipeline = self._pipeline
        found = answer_inquiry(
            pipeline.build_log, pipeline.executables, pipeline.program_cache, verb, args, principal
        )
        return json.dumps(found), ()

    def _functions(self, principal: str) -> Reply:
        pipeline = self._pipeline
        found = inventory(
            pipeline.executables,
            pipeline.program_cache,
            pipeline.build_log,
            pipeline.counters,
            principal,
        )
        return json.dumps(found), ()

    def _recipes(self, principal: str, mark: str) -> Reply:
        now = self._recorder.mark()
        if not mark:
            return (json.dumps({"mark": now}),), ()
        recipes, left_out = self._recorder.since(mark, principal)
        messages, buffers = dump_recipes(recipes)
        said = {"mark": now, "left_out": [one._asdict() for one in left_out]}
        return (json.dumps(said), *messages), buffers

    def _forget(self, principal: str, key: bytes) -> Reply:
        if not self._pipeline.build_log.known_functions.visibility(principal)(key):
            return json.dumps({"executables": 0}), ()  # as of a key that nobody has
        program_cache, executables = self._pipeline.program_cache, self._pipeline.executables
        here = {executable.kept_as for executable in executables.all() if executable.key == key}
        own = {each.key for each in executables.all() if self._is_private_of(each.key, key)}
        count = sum(map(executables.forget, {key, *own}))
        if program_cache is not None:
            program_cache.flush()  # what is on its way there would come after us
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
        """Whether a key is what one client has for that key, as the fingerprint is in doubt."""
        record = None if own == key else self._pipeline.build_log.build_history.find(own)
        if record is None:
            return False
        described = record.description
        return function_key(described.fingerprint, described.options) == key


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "functions": (),
    "recipes": (str,),
    "forget": (bytes,),
}


def _checked(verb: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if tuple(map(type, args)) != _TYPES[verb]:
        raise ProtocolError(f"the arguments of {verb!r} are not those that it takes.")
    return args
