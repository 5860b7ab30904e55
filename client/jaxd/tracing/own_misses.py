"""Misses of a process that computes by itself: with `place="here"` it traces its own functions.

What jax makes of a function here is what `jax.jit` would make of it: with this process's
environment, libraries, contexts and objects; nothing of the code is packed. The lowered program
goes to the server, which compiles it once for all who ask, and keeps it under a name that is its
content.

No key leads to it. A trace can see what no key counts, such as a library that was patched; so what
a key stands for is said by the server's own trace alone, which follows in the background where the
code can be packed. Where that makes another program, this process is warned, and keeps its own.
See docs/decisions/0036-a-callers-trace-names-no-key.md.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.dispatch.caller import OpenCall
from jaxd.dispatch.compiled_call import ask_stage
from jaxd.dispatch.warm import WarmRequest, warm_report
from jaxd.interop.local_programs import Jitted, Taken
from jaxd.results.exceptions import line_of
from jaxd.tracing.second_trace import Arguments, LoweredHere, jitted_here, lower_here, run_jitted
from jaxd_protocol.base.process import reset_after_fork, start_thread
from jaxd_protocol.errors import Busy, UnsharedWarning
from jaxd_protocol.jax_objects.lowered_bytes import NotTransferable, devices_of, pack_lowered
from jaxd_protocol.jit.program_identity import first_difference, program_text
from jaxd_protocol.messages.calls import FAILED, SILENT
from jaxd_protocol.messages.failures import decode_failure

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.dispatch.caller import Caller
    from jaxd.interop.local_programs import LocalProgram
    from jaxd.request.function_snapshot import FunctionSpec

_MAX_REASON: Final = 300


class OwnMiss(NamedTuple):
    """A function that was traced in this process, for calls with one skeleton.

    Attributes:
        spec: the function.
        skeleton: of the calls.
        found: what jax has made of it.
        program: the name of its program, in hex; empty where no server has compiled it.
        is_settled: set once it is known what the function reads of this process, and whether the
            key leads to the same program.
    """

    spec: FunctionSpec
    skeleton: bytes
    found: LoweredHere
    program: str
    is_settled: threading.Event


def _compiled(
    connection: ClientConnection | None, spec: FunctionSpec, found: LoweredHere
) -> tuple[dict[str, Any], bytes]:
    """The compiled program: what the server says of it, and its bytes.

    Raises:
        NotTransferable: when it is for this process alone.
        BaseException: what the server answers.
    """
    if connection is None:
        raise NotTransferable("devices that the server has no compiler for")
    if devices_of(found.lowered) != [0]:
        raise NotTransferable("other devices than the first")
    data = memoryview(pack_lowered(found.lowered))
    message = (spec.snapshot.name, spec.options)
    value, frame = connection.request("compile", message, (data,))
    if value[0] == FAILED:
        raise decode_failure(value[1])
    report = json.loads(value[1])
    if "refused" in report:
        raise NotTransferable(report["refused"])
    return report, bytes(frame.buffers[0])


# what the key stands for -------------------------------------------------------------------------


class SilentCall(OpenCall):
    """A request of which the user notices nothing: what is printed has been printed here."""

    is_silent = True


class SilentRequest(WarmRequest):
    """What has the server build a key, and tell nothing of it: its events would be read in vain."""

    __slots__ = ()

    @property
    def flags(self) -> int:
        """As those of any such request, and that no events are sent."""
        return super().flags | SILENT


class OwnMisses:
    """Traces the misses of one caller, and has the server build their keys. Thread-safe.

    Args:
        caller: asks the server.
        load: loads a program, of what the server says of it and its bytes.
        note: called with each, and why its program is for this process alone; empty: it is not.
    """

    def __init__(
        self,
        caller: Caller,
        load: Callable[[dict[str, Any], bytes], LocalProgram],
        note: Callable[[OwnMiss, str], None],
    ) -> None:
        self._caller = caller
        self._load = load
        self._note = note
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: the parent does it."""
        self._lock = threading.Lock()  # guards all of these
        self._waiting: deque[OwnMiss] = deque()
        self._is_idle = threading.Event()
        self._is_idle.set()

    def is_answered(
        self, connection: ClientConnection, spec: FunctionSpec, skeleton: bytes
    ) -> bool:
        """Whether the server answers such a call untraced, or has to ask what it reads.

        Raises:
            JaxdError: when it cannot be reached.
        """
        question = (spec.key, skeleton, spec.snapshot.manifest.fingerprint)
        value, _ = connection.request("ready", question)
        return isinstance(value, str) and bool(json.loads(value)["ready"])

    def answer(
        self,
        connection: ClientConnection | None,
        spec: FunctionSpec,
        skeleton: bytes,
        arguments: Arguments,
    ) -> tuple[Taken, OwnMiss] | Jitted:
        """What answers calls with such arguments here, and the trace that it comes from.

        Args:
            connection: to a server from which programs are taken; None: it has no compiler for
                the devices of this process.
            spec: the function.
            skeleton: of the arguments.
            arguments: as jax takes them.

        Raises:
            Exception: what the function raises while it is traced, and jax's own errors.
        """
        found = lower_here(spec, arguments)
        try:
            report, data = _compiled(connection, spec, found)
            taken = Taken(self._load(report, data), found.lowered.out_tree)
        except NotTransferable as error:
            reason = f"its program has what only this process has ({error})"
        except Exception as error:  # noqa: BLE001  whatever it is, jax compiles it here
            reason = line_of(error)
        else:
            return taken, OwnMiss(spec, skeleton, found, str(report["id"]), threading.Event())
        return Jitted(partial(run_jitted, found.jitted, spec.statics), reason)

    def jitted(self, spec: FunctionSpec) -> Jitted:
        """What answers calls here whose arguments nobody else could be told of."""
        call = partial(run_jitted, jitted_here(spec), spec.statics)
        return Jitted(call, "an argument that cannot travel")

    def warm(self, spec: FunctionSpec, skeleton: bytes) -> dict[str, Any]:
        """Has the server build such calls, or load them; its report.

        Raises:
            BaseException: what the function raises there.
            JaxdError: when it cannot be reached.
        """
        request = SilentRequest(spec, skeleton, b"", (), None, "auto")
        self._caller.register(spec)
        return warm_report(self._caller, request, SilentCall)

    def build_key(self, miss: OwnMiss) -> None:
        """Has the server build the key of what was traced here, in the background."""
        with self._lock:
            self._waiting.append(miss)
            if not self._is_idle.is_set():
                return
            self._is_idle.clear()
        try:
            start_thread(threading.Thread(target=self._work, name="jaxd-keys", daemon=True))
        except Busy:  # the system has no thread for it
            self._work()

    def wait(self, seconds: float | None = None) -> None:
        """Returns when all keys are built, or after so many seconds."""
        self._is_idle.wait(seconds)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_idle.set()
                    return
                miss = self._waiting.popleft()
            try:
                reason = self._built(miss)
            except BaseException as error:  # noqa: BLE001  there is no key then, nothing is lost
                reason = line_of(error)
            self._note(miss, reason)
            miss.is_settled.set()

    def _built(self, miss: OwnMiss) -> str:
        """Why only this process has the program of a miss; empty where the key leads to it.

        Raises:
            BaseException: why the server cannot build the key.
        """
        if miss.spec.snapshot.settings:
            return "it was traced under settings of libraries that a server does not have"
        request = WarmRequest(miss.spec, miss.skeleton, b"", (), None, "auto")
        there = self.warm(miss.spec, miss.skeleton)["program"]["id"]
        return "" if there in (miss.program, "", None) else self._compared(miss, request)

    def _compared(self, miss: OwnMiss, request: WarmRequest) -> str:
        """Why a program differs from the server's; empty where its text does not."""
        text = str(ask_stage(self._caller, request, "program")["text"])
        found = first_difference(text, program_text(miss.found.lowered, miss.found.options))
        if found is None or not miss.spec.snapshot.guards.hold():
            return ""
        number, left, right = found
        _warn(
            f"{miss.spec.snapshot.name} is another program in this process than the server makes "
            f"of the same code, so this process keeps its own, and all others get the server's. In "
            f"line {number} of its text the server has {left[:_MAX_REASON]!r}, and this process "
            f"{right[:_MAX_REASON]!r}. Was a library patched here, or something set in it? Have "
            "the function call your own code instead, or pass the value as an argument. See "
            "docs/place.md."
        )
        return "the server makes another program of the same code"


def _warn(text: str) -> None:
    with suppress(UnsharedWarning):  # no thread waits for it
        warnings.warn(text, UnsharedWarning, stacklevel=2)
