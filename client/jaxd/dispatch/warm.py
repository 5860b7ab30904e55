"""Building programs ahead of calls: `f.warm(...)`, `f.clear()`, `jaxd warm`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from jaxd.dispatch.caller import Caller, OpenCall
from jaxd.request.array_specs import describe_call
from jaxd.request.call_request import CallRequest
from jaxd.results.exceptions import exception_of
from jaxd.results.reader import ResultForm, ResultReader
from jaxd_protocol.errors import NoServer
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.transforms import display_name
from jaxd_protocol.messages.calls import FAILED, WARM
from jaxd_protocol.messages.function_manifest import FunctionDescriptor, FunctionManifest
from jaxd_protocol.messages.recipes import Recipe, RecordedCall, load_recipes

if TYPE_CHECKING:
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.request.process_answers import NamedTexts
    from jaxd_protocol.messages.recorded_reads import ProcessRead


_MOST_RESULTS: Final = 1 << 20

Verdict = Literal["hit", "load", "compile"]


@dataclass(frozen=True, slots=True)
class Warmed:
    """What was done to have a program ready.

    Attributes:
        verdict: `hit`: it was ready; `load`: it was on disk; `compile`: it was made.
        seconds: how long that took.
        kept: whether it is on disk, for later servers; None: not known.
    """

    verdict: Verdict
    seconds: float
    kept: bool | None = None


class WarmRequest(CallRequest):
    """A request to build a program for a call, without running it."""

    __slots__ = ()

    @property
    def flags(self) -> int:
        """As those of any call, and that it is not to be run."""
        return super().flags | WARM


def encode_warm_request(
    caller: Caller, spec: FunctionSpec, args: tuple[Any, ...], kwargs: dict[str, Any], strict: bool
) -> WarmRequest:
    """What warms a function for calls with such arguments, ready to be sent.

    Raises:
        ArgumentError, TracerError, PackingError: when an argument cannot travel.
    """
    caller.register(spec)
    snapshot = spec.snapshot
    skeleton, buffers = describe_call(snapshot, args, kwargs, spec.statics)
    snapshot.admit(skeleton)
    return WarmRequest(spec, skeleton, b"", buffers, None, "auto", strict)


def warm(caller: Caller, call: CallRequest) -> Warmed:
    """Has the server build a program, or load it; returns when it can be called.

    Raises:
        BaseException: what the function raised while it was traced.
        JaxdError: when the server could not be reached.
    """
    report = warm_report(caller, call)
    caller.warmed(call)
    return Warmed(report["verdict"], report["seconds"], report.get("kept"))


def warm_report(
    caller: Caller, call: CallRequest, kind: type[OpenCall] = OpenCall
) -> dict[str, Any]:
    """As `warm`: the whole report of the server; see `jaxd_protocol.messages.calls`.

    Args:
        caller: asks the server.
        call: the request.
        kind: of the call that it is for this process.
    """
    report: dict[str, Any] = json.loads(_reply(caller, call, kind)[1])
    return report


def result_form_of(caller: Caller, call: CallRequest) -> ResultForm:
    """The form of what such a call returns. The program is ready then.

    Raises:
        BaseException, JaxdError: as `warm`.
    """
    _, report, skeleton = _reply(caller, call)
    found = json.loads(report)
    return ResultForm(skeleton, bool(found["program"]["calls_python"]), _inputs_of(found))


def _inputs_of(report: Mapping[str, Any]) -> tuple[int, ...]:
    runs = report.get("inputs", ())
    if sum(count for _, count in runs) > _MOST_RESULTS:
        return ()
    return tuple(chain.from_iterable((int(bits, 16),) * count for bits, count in runs))


def _reply(caller: Caller, call: CallRequest, kind: type[OpenCall] = OpenCall) -> tuple[Any, ...]:
    open_call = kind(caller.route(call.spec).session, call)
    value, _ = open_call.wait()
    if value[0] == FAILED:
        snapshot, address = call.spec.snapshot, open_call.opened.connection.address
        raise exception_of(value[1], snapshot.name, snapshot.reader, address)
    return value


def drop_programs(caller: Caller | None, spec: FunctionSpec) -> int:
    """Drops what the server has built of a function, on disk as well; returns how many programs.

    Raises:
        NoServer: with `JAXD_INLINE=1`, and when the server cannot be reached.
    """
    if caller is None:
        raise NoServer(
            "JAXD_INLINE=1 means that this process uses no server, so there is nothing to be "
            "cleared. What jax keeps in this process, jax.clear_caches() drops."
        )
    for each in specs_of(spec):
        each.local = None
    keys = sorted(known_keys(spec))
    return sum(
        each.session.ask("forget", key)["executables"]
        for each in caller.everywhere(also_draining=True)
        for key in keys
    )


def known_keys(spec: FunctionSpec) -> set[bytes]:
    """The keys under which this process has met the function, as it is now."""
    return {each.key for each in specs_of(spec)}


def specs_of(spec: FunctionSpec) -> list[FunctionSpec]:
    """The function as this process has met it, as it is now: one for each configuration."""
    snapshots = (spec.snapshot, *spec.snapshot.pinned.values())
    return [each for snapshot in snapshots for each in snapshot.specs.values()]


# what was recorded ------------------------------------------------------------------------------


def recipe_mark(caller: Caller) -> str:
    """A mark for `recipes_since`: this moment of the server."""
    return str(_ask_recipes(caller, "")[0]["mark"])


class Recording(NamedTuple):
    """What was called since a mark.

    Attributes:
        recipes: what builds it again.
        left_out: functions of which there is none, each with `name`, `key` and `reason`.
    """

    recipes: list[Recipe]
    left_out: list[Mapping[str, str]]


def recipes_since(caller: Caller, mark: str) -> Recording:
    """What was called, by anybody, since that mark.

    Raises:
        JaxdError: when the server no longer knows, such as after a restart.
    """
    report, recipes = _ask_recipes(caller, mark)
    return Recording(recipes, report["left_out"])


def _ask_recipes(caller: Caller, mark: str) -> tuple[dict[str, Any], list[Recipe]]:
    value, frame = caller.session.request("recipes", (mark,))
    return json.loads(value[0]), load_recipes(value[1:], frame.buffers)


class RecordedFunction:
    """A function known only by its recipe; used in place of a `FunctionSpec`.

    Its code stays packed: this process sends it to a server that requests it.

    Attributes:
        recipe: what is known.
        key, snapshot, options: as those of a `FunctionSpec`.
        name, manifest, fingerprint, code, reader, calls_back: as those of a `FunctionSnapshot`.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.key = recipe.key
        self.options = recipe.options
        self.snapshot = self
        self.name = recipe.name
        self.manifest = FunctionManifest.from_message(recipe.manifest)
        self.fingerprint = self.manifest.recorded_fingerprint
        self.code = recipe.code
        self.reader = ResultReader({})
        self.calls_back = False

    @cached_property
    def named_texts(self) -> NamedTexts:
        """What its code names."""
        from jaxd.request.process_answers import NamedTexts  # few functions read their process

        return NamedTexts(self.code)

    def learn(self, reads: tuple[ProcessRead, ...]) -> None:
        """Its key is that of the recipe, whatever it reads besides."""

    def call(self, caller: Caller, call: RecordedCall) -> WarmRequest:
        """What warms it for one of its calls."""
        spec = cast("FunctionSpec", self)
        caller.register(spec)
        buffers: Sequence[memoryview] = call.buffers()
        return WarmRequest(spec, call.skeleton, b"", buffers, None, "auto")

    def verdict(self, caller: Caller, call: RecordedCall) -> Verdict:
        """What such a call would find; builds nothing."""
        spec = cast("FunctionSpec", self)
        report = ask_why(caller, spec, self.recipe.parameters, call.skeleton)
        verdict: Verdict = report["verdict"]
        return verdict


def ask_why(
    caller: Caller, spec: FunctionSpec, parameters: tuple[str, ...], skeleton: bytes | None
) -> dict[str, Any]:
    """The server's report of what a call would do; builds nothing.

    Args:
        caller: of the server.
        spec: the function.
        parameters: the names of its parameters.
        skeleton: the structure of the arguments; None: the report is about all calls.

    Raises:
        NoServer: when the server cannot be reached.
    """
    manifest, options = spec.snapshot.manifest, Options.from_bytes(spec.options)
    described = FunctionDescriptor(
        display_name(spec.snapshot.name, options.transformations),
        manifest.recorded_fingerprint,
        options,
        manifest.all_parts,
        parameters,
        manifest.shared,
    )
    return caller.route(spec).session.ask("why", spec.key, skeleton, described.to_message())
