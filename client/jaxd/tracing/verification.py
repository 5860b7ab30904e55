"""Compares the programs that answer calls with what this process makes of the same functions.

With `verify=True` or `JAXD_VERIFY=1`: after the first call of each key and signature the function
is traced and lowered once more, here. The program of the server must be the same one.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Literal, NamedTuple, cast

from jaxd.connection.call_future import CallFuture, complete
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller
from jaxd.dispatch.compiled_call import ask_stage
from jaxd.dispatch.warm import encode_warm_request, warm_report
from jaxd.interop.jax_runtime import import_jax, loaded_jax
from jaxd.request.call_request import CallRequest
from jaxd.request.function_snapshot import FunctionSpec
from jaxd.results.exceptions import line_of
from jaxd.tracing.inline import lowering_name
from jaxd.tracing.second_trace import Arguments, lower_again, without_data
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import PerProcess, start_thread
from jaxd_protocol.errors import ConfigurationError, JaxdError, StaleProgramError
from jaxd_protocol.jit.program_identity import first_difference, program_digest, program_text

Outcome = Literal["verified", "stale", "incomparable"]

REPORT_VARIABLE: Final = "JAXD_VERIFY_REPORT"
"""Names a file to which each comparison adds a line: for `jaxd verify`."""

_NO_JAX: Final = "this process has no jax. Run: pip install 'jaxd[server]'"
_NEITHER: Final = "\n  (What the server runs is neither of them: it was built from something else.)"
_MAX_KNOWN: Final = 100_000
_MAX_PARTS: Final = 30


class VerifiedRequest(CallRequest):
    """A call whose program is to be compared.

    Attributes:
        given: its arguments, without their data.
    """

    given: Arguments

    def _replace(self, **changes: Any) -> VerifiedRequest:
        made = super()._replace(**changes)
        made.given = self.given
        return made


class Incomparable(Exception):
    """Why a program is not compared."""


class VerifyingCaller(Caller):
    """Makes calls, and raises what comparing their programs finds.

    Args:
        settings: as of any caller.
        other: the caller whose session is used, where there is one already.
    """

    def __init__(self, settings: Settings, other: Caller | None = None) -> None:
        super().__init__(settings, other)
        self._known: BoundedDict[tuple[bytes, bytes], None] = BoundedDict(_MAX_KNOWN)
        self._lock = PerProcess(threading.Lock)  # guards _known
        with suppress(ConfigurationError):  # then nothing can be compared, which is counted
            import_jax(ConfigurationError, _NO_JAX)

    def encode(
        self,
        spec: FunctionSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *how: Any,
        **named: Any,
    ) -> CallRequest:
        """As of any caller; of a call that is the first of its kind its arguments are noted."""
        call = super().encode(spec, args, kwargs, *how, **named)
        if (spec.key, call.skeleton) in self._known:
            return call
        noted = VerifiedRequest(*call)
        noted.given = (args, kwargs) if loaded_jax() is None else _noted(args, kwargs, spec)
        return noted

    def call(self, call: CallRequest) -> Any:
        """As of any caller.

        Raises:
            StaleProgramError: when the program that has answered is another one than it should be.
        """
        result = super().call(call)
        if isinstance(call, VerifiedRequest):
            self.verify(call)
        return result

    def submitted(self, call: CallRequest, future: Future[Any]) -> Future[Any]:
        """A future that has the result once its program was compared."""
        if not isinstance(call, VerifiedRequest):
            return future
        outer: CallFuture[Any] = CallFuture()
        outer.add_inline_callback(lambda given: given.cancelled() and future.cancel())
        add = getattr(future, "add_inline_callback", future.add_done_callback)
        left = cast("VerifiedRequest", call.without_data())
        verify = partial(copy_context().run, self.verify, left)
        add(lambda done: _settle(done, outer, verify))
        return outer

    def sends_ahead(self, call: CallRequest) -> bool:
        """As of any caller, unless its program is compared afterwards."""
        return super().sends_ahead(call) and not isinstance(call, VerifiedRequest)

    def verify(self, call: VerifiedRequest) -> None:
        """Compares the program of a call, unless that was done before or is being done.

        Raises:
            StaleProgramError: when it is another one than it should be; it is dropped.
        """
        identity = call.spec.key, call.skeleton
        with self._lock():
            if identity in self._known:
                return
            self._known[identity] = None
        try:
            difference = _difference(self, call)
        except Incomparable as reason:
            self._count("incomparable", call, str(reason))
            return
        if difference is None:
            self._count("verified", call)
            return
        with self._lock():
            self._known.pop(identity, None)  # what is built in its place is compared again
        self._count("stale", call, difference)
        _drop(self, call.spec)
        raise _stale_error(call.spec, difference)

    def _count(self, outcome: Outcome, call: CallRequest, reason: str = "") -> None:
        kinds = ("verified", "stale", "incomparable")
        if self.session.store is not None:
            counts = [int(kind == outcome) for kind in kinds]
            self.session.notify(self.session.store, "verified", *counts)
        path = os.environ.get(REPORT_VARIABLE)
        if path:
            line = {"outcome": outcome, "function": call.spec.snapshot.name, "reason": reason}
            with suppress(OSError), open(path, "ab", buffering=0) as file:
                file.write(json.dumps(line).encode() + b"\n")  # one write: no other comes between


def _noted(args: tuple[Any, ...], kwargs: Mapping[str, Any], spec: FunctionSpec) -> Arguments:
    try:
        return without_data(args, kwargs, spec.statics)
    except Exception:  # noqa: BLE001  jax finds that again where it is to trace them
        return args, dict(kwargs)


def _settle(done: Future[Any], outer: Future[Any], verify: Any) -> None:
    """In the thread that reads: it must not wait."""
    if done.cancelled():
        outer.cancel()
        return
    if done.exception() is not None:
        complete(outer, done.result)
        return

    def verified() -> Any:
        verify()
        return done.result()

    work = (outer, verified)
    start_thread(threading.Thread(target=complete, args=work, name="jaxd-verify", daemon=True))


# the comparison ----------------------------------------------------------------------------------


class _Row(NamedTuple):
    """What answers such calls on the server.

    Attributes:
        request: asks about it.
        program: the digest of its program.
        devices: how many it runs on.
    """

    request: CallRequest
    program: bytes
    devices: int


def _difference(caller: Caller, call: VerifiedRequest) -> str | None:
    """Where the server's program and this process's differ; None where they are the same.

    Raises:
        Incomparable: when they cannot be compared.
    """
    row = _row(caller, call)
    if row.devices > 1 and call.values:
        raise Incomparable("its arrays on the server may lie on several devices")
    platform = caller.session.platform
    is_other = platform != str(loaded_jax().default_backend())
    wanted = lowering_name(platform) if is_other else None
    guards = call.spec.snapshot.guards
    try:
        lowered, options = lower_again(call.spec, call.given, wanted)
        if program_digest(lowered, options) == row.program:
            return None
        here = program_text(lowered, options)
    except Exception as error:
        raise Incomparable(f"tracing it here raised {line_of(error)}") from error
    try:
        there = ask_stage(caller, row.request, "program")
        again, text = str(there["id"]), str(there["text"])
    except Exception as error:
        raise Incomparable(f"the server cannot lower it again ({type(error).__name__})") from error
    found, is_steady = first_difference(text, here), again == row.program.hex()
    if found is not None:
        if not guards.hold():
            raise Incomparable("what it reads has changed in this process meanwhile")
        return _described(found, is_steady=is_steady)
    if not is_steady:
        _drop(caller, call.spec)
        raise Incomparable("the server, which lowers it again, makes another program than it runs")
    return None


def _row(caller: Caller, call: VerifiedRequest) -> _Row:
    jax = loaded_jax()
    if jax is None:
        raise Incomparable(_NO_JAX)
    if type(call.spec) is not FunctionSpec:
        raise Incomparable("the server runs a program that was exported here")
    try:
        request = encode_warm_request(caller, call.spec, *call.given, call.strict)
        report = warm_report(caller, request)
    except Exception as error:
        raise Incomparable(f"asking the server raised {line_of(error)}") from error
    if request.skeleton != call.skeleton and report["verdict"] != "hit":
        raise Incomparable("its arguments cannot be described without their data")
    ours = {"jax": jax.__version__, "jaxlib": _jaxlib_version()}
    try:
        found = report["program"]
        theirs = {name: found[name] for name in ours}
        program = bytes.fromhex(found["id"] or "")
        row = _Row(request, program, int(found["devices"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Incomparable("the server does not say what it runs") from error
    if ours != theirs:
        raise Incomparable(
            f"the server has jax {theirs['jax']} with jaxlib {theirs['jaxlib']}, and this process "
            f"{ours['jax']} with {ours['jaxlib']}"
        )
    if not program:
        what = "calls back into Python" if found.get("calls_python") else "is like no other"
        raise Incomparable(f"its program {what}")
    return row


def _jaxlib_version() -> str:
    from importlib import import_module

    return str(import_module("jaxlib").__version__)


def _described(difference: tuple[int, str, str], *, is_steady: bool) -> str:
    number, left, right = difference
    text = f"line {number} of its text:\n    server: {left}\n    here:   {right}"
    return text if is_steady else text + _NEITHER


def _drop(caller: Caller, spec: FunctionSpec) -> None:
    """Has the server forget the programs of a function."""
    with suppress(JaxdError):
        caller.session.ask("forget", spec.key)


def _stale_error(spec: FunctionSpec, difference: str) -> StaleProgramError:
    parts = spec.snapshot.manifest.parts
    seen = [f"{part.name} {part.shown}".rstrip() for part in parts]
    more = f", and {len(seen) - _MAX_PARTS} more" if len(seen) > _MAX_PARTS else ""
    listed = ", ".join(seen[:_MAX_PARTS]) + more
    return StaleProgramError(
        f"{spec.snapshot.name} was answered by another program than this process makes of it. The "
        f"first difference is {difference}\n  The key holds: {listed}.\nSomething else decides "
        'about the program. Find it under "What is not seen" in docs/the-key.md, and pass it as '
        "an argument or put it into extra_key=; what is not in that table is a bug that we want to "
        "hear of. The server has dropped the program, and the next call builds it again.",
        difference,
        tuple(seen),
    )
