"""What was called since a mark, as recipes from which another server builds it again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from jaxd_protocol.errors import ConfigurationError, ProtocolError, WorkerLost
from jaxd_protocol.messages.recipes import Recipe, RecordedCall
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.execution.pipeline import Pipeline

_UNSHARED: Final = (
    "it reads something without a content, such as a generator, so its key is good for one "
    "process only. Pass that as an argument, or ignore= it."
)
_NO_CODE: Final = (
    "its code is not on disk: it, or what it was called with, means something to its own client "
    "only, or it could not be written (see the server's log)."
)


class SkippedFunction(NamedTuple):
    """A function that was called, and of which there is no recipe.

    Attributes:
        name: what people call it.
        key: in hex digits.
        reason: why, for people.
    """

    name: str
    key: str
    reason: str


class Recorder:
    """Lists what was called since a mark. Safe from any thread.

    It lists all that was made since a mark. It misses what was made before, called since, and then
    dropped from memory.

    Args:
        pipeline: has what was called, in memory and on disk.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._executables = pipeline.executables
        self._build_log = pipeline.build_log
        self._program_cache = pipeline.program_cache
        self._id = os.urandom(8).hex()

    def mark(self) -> str:
        """This moment.

        Raises:
            ConfigurationError: when nothing is kept on disk, so that recording is of no use.
        """
        self._require_cache()
        return f"{self._id} {time.monotonic()!r} {time.time()!r}"

    def since(self, mark: str, principal: str = "") -> tuple[list[Recipe], list[SkippedFunction]]:
        """Recipes for all that was called since a mark, and the functions that have none.

        Args:
            mark: what `mark` returned.
            principal: of the client; what only others have called is left out.

        Raises:
            ConfigurationError: when nothing is kept on disk.
            WorkerLost: when the mark is another worker's.
            ProtocolError: when it is no mark.
        """
        program_cache = self._require_cache()
        moment, wall = self._read(mark)
        program_cache.flush()
        calls: dict[bytes, list[RecordedCall]] = {}
        names: dict[bytes, str] = {}
        sees = self._build_log.known_functions.visibility(principal)
        for name, key, call in self._called(program_cache, moment, wall):
            if sees(key):
                names[key] = name
                calls.setdefault(key, []).append(call)
        recipes = {
            key: _recipe(program_cache, key, tuple(dict.fromkeys(recorded)))
            for key, recorded in calls.items()
        }
        left_out = [
            SkippedFunction(names[key], key.hex(), self._reason(key))
            for key, recipe in recipes.items()
            if recipe is None
        ]
        return [recipe for recipe in recipes.values() if recipe is not None], left_out

    def _require_cache(self) -> ProgramCache:
        if self._program_cache is None:
            raise ConfigurationError(
                "this server keeps nothing on disk, so it does not have the code that a lockfile "
                "needs. Start it with a cache folder (see its log for why there is none)."
            )
        return self._program_cache

    def _read(self, mark: str) -> tuple[float, float]:
        try:
            worker, moment, wall = mark.split(" ")
            read = float(moment), float(wall)
        except (AttributeError, ValueError) as error:
            raise ProtocolError("a mark for recipes cannot be read.") from error
        if worker != self._id:
            raise WorkerLost(
                "the server's worker was replaced since the recording began, and what was called "
                "before that is not known any more. Record again."
            )
        return read

    def _called(
        self, program_cache: ProgramCache, moment: float, wall: float
    ) -> Iterator[tuple[str, bytes, RecordedCall]]:
        ready = self._executables.all()
        for executable in ready:
            if executable.last_use >= moment:
                yield executable.name, executable.key, executable.recorded
        here = {executable.kept_as for executable in ready}
        for name, kept in program_cache.calls().items():
            if kept.created >= wall and name not in here:
                yield kept.name, kept.key, kept.recorded

    def _reason(self, key: bytes) -> str:
        record = self._build_log.build_history.find(key)
        return _UNSHARED if record and not record.description.shared else _NO_CODE


def _recipe(
    program_cache: ProgramCache, key: bytes, calls: tuple[RecordedCall, ...]
) -> Recipe | None:
    function = program_cache.function(key)
    manifest = function.described.manifest if function else None
    if function is None or manifest is None:
        return None
    code = program_cache.code(manifest.fingerprint)
    if code is None:
        return None
    return Recipe(
        name=function.described.name,
        key=key,
        options=function.options.to_bytes(),
        manifest=manifest.to_message(),
        parameters=function.parameters,
        code=code,
        calls=calls,
    )
