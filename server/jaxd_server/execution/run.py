"""One call on one executable: dispatched, so that the device works, and delivered when it is done.

And what is done about it when that fails.

In between the next call can be dispatched; jax's arrays are there before their content is.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol.errors import CallbackError
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.data_locations import (
    KEEP_ALL,
    KEEP_NONE,
    VALUE,
    ResultPolicy,
    call_number_of,
    first_value_id,
    leaves_located_in,
    pack_ids,
    pack_leaf_spans,
    spans_of,
    value_ids_of,
)
from jaxd_protocol.pytree import Leaf
from jaxd_server.codec.arguments import build_arguments, jax_arrays
from jaxd_server.codec.results import (
    RetainedLeaves,
    pack_result,
    retained_leaves,
    wait_for,
)
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.executables import Executables
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.functions.table import FunctionReplaced, Functions, FunctionSource
from jaxd_server.compilation.program_source import ProgramSource
from jaxd_server.execution.call import Call, Reply
from jaxd_server.execution.memory_room import MemoryReservations, OutOfMemoryHandler
from jaxd_server.jax_compat.config import configured
from jaxd_server.jax_compat.programs import (
    is_nan_error,
    is_out_of_memory,
    is_runtime_error,
    lost_update_in,
)
from jaxd_server.runtime.events import SILENT
from jaxd_server.runtime.logs import log_event
from jaxd_server.user_code.jax_callbacks import callbacks_disabled
from jaxd_server.user_code.output import CallOutput, output_to
from jaxd_server.values.references import ReferencedData
from jaxd_server.values.value import Batch

_NO_EVENT: Final = threading.Event()
"""For runs that take nothing of others that are not done: making an event takes a microsecond."""

_MAX_RETAINED: Final = 16

_TIME_AT: Final = 6
"""Where the time is in a reply; what is not there before it is empty."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Run:
    """A call on its executable.

    Attributes:
        call: the request.
        executable: what answers it.
        leaves: the arrays that the executable takes, until the run is delivered.
        results: what it returns, once it is dispatched.
        consumer: a later run that was given what this one returns, while this one was not done.
        dispatched: set once it is dispatched, of one that takes what others return.
        output: what its Python prints, while it runs beside others.
    """

    call: Call
    executable: Executable
    leaves: Sequence[Any]
    results: Sequence[Any] = ()
    consumer: Run | None = None
    dispatched: threading.Event = _NO_EVENT
    output: CallOutput | None = None
    _batch: Batch | None = None
    _retained: RetainedLeaves | None = None

    def dispatch(self) -> None:
        """Starts it; values that it makes and takes are in their place from now on.

        Raises:
            ValuesFull: when there is no room for what is to stay; nothing has happened then.
            Exception: what jax raises.
        """
        kept = self._retained = self._find_retained()
        referenced_data = self.call.referenced_data
        if kept is None or not kept.present or referenced_data is None:
            self._start()
        else:
            with referenced_data.values.room(
                referenced_data.own, kept.nbytes, [given.ids for given in self.call.given]
            ):
                self._start()
                self._keep(kept, referenced_data)

    def _start(self) -> None:
        if self.call.given:
            self._link_producers()
        try:
            self.results = self.executable(self.leaves)
        finally:
            self.dispatched.set()
        if self.call.given:
            self.give_up()

    def _link_producers(self) -> None:
        """Registers this run as consumer of results of runs that are not delivered."""
        if self.call.referenced_data is None:
            return
        own = self.call.referenced_data.own
        for maker in own.makers(given.ids for given in self.call.given):
            if self.dispatched is _NO_EVENT:
                self.dispatched = threading.Event()
            maker.consumer = self

    def _find_retained(self) -> RetainedLeaves | None:
        """What stays of the result; found once for all calls that take the same from the server."""
        call, stay = self.call, self.call.stay
        if stay is None:
            return None
        taken: tuple[range, ...] = ()
        if stay.above == KEEP_ALL and call.elsewhere and call.layout is not None:
            taken = leaves_located_in(call.rows(call.layout), (VALUE,))
        key, executable = (stay.above, stay.home, taken, call.skeleton), self.executable
        found = executable.retained.get(key)
        if found is None:
            found = retained_leaves(executable.form.layout, stay, self._taken_leaves(stay, taken))
            if len(executable.retained) < _MAX_RETAINED:
                executable.retained[key] = found
        return found

    def _taken_leaves(self, stay: ResultPolicy, values: Sequence[range]) -> list[Leaf]:
        """What the arrays look like that may be the state of a loop."""
        leaves = self.call.layout.leaves if self.call.layout else ()
        if stay.above == KEEP_ALL:
            return [leaves[number] for number in itertools.chain.from_iterable(values)]
        return [] if stay.above == KEEP_NONE else [leaf for leaf in leaves if leaf.tag in "AK"]

    def _keep(self, kept: RetainedLeaves, referenced_data: ReferencedData) -> None:
        """Makes a batch of the results that stay; once more, of those not dropped meanwhile."""
        stay, form = self.call.stay, self.executable.form
        assert stay is not None
        arrays = kept.arrays(form.by_leaf(self.results))
        if self._batch is not None:  # dispatched again
            return referenced_data.own.refill(self._batch, arrays)
        first, leaves, name = first_value_id(stay.number), form.layout.leaves, self.executable.name
        here = weakref.ref(self)
        batch = self._batch = Batch(first, arrays, leaves, kept.present, kept.ends, name, here)
        return referenced_data.values.add_batch(referenced_data.own, batch)

    def give_up(self) -> None:
        """Takes the values that the call was given for good out of the session."""
        call = self.call
        if call.given and call.referenced_data is not None:
            gone = [given.ids for given in call.given]
            call.referenced_data.values.drop(call.referenced_data.own, gone)
            call.given_up = tuple([given.leaves for given in call.given])

    def deliver(self) -> Reply:
        """The reply, once the device is done.

        Raises:
            Exception: what jax raises when the computation failed.
        """
        if self.call.trace is not None:
            self._wait()  # to tell the device from the encoding
            self.call.trace.stage("encode")
        value, buffers = self._delivered()
        self.leaves = ()  # free from now on, not only when a slow client has read the reply
        if self.call.not_kept:
            content = value if self._retained else (*value, b"", b"")
            return (*content, pack_ids(self.call.not_kept)), buffers
        return value, buffers

    def repeat(self) -> Reply:
        """Dispatches it once more; the reply, as `deliver`."""
        self.dispatch()
        return self.deliver()

    def _delivered(self) -> Reply:
        kept, stay = self._retained, self.call.stay
        if kept is None or stay is None:
            return self.call.deliver(self.results, self.executable)
        form = self.executable.form
        if kept.present:
            self._wait()
        blob, buffers, gone = pack_result(self.results, form, kept.home, kept.placement)
        away = kept.packed_away
        if gone:
            away = pack_leaf_spans(spans_of(sorted((*kept.away, *gone))))
        given_up = pack_leaf_spans(self.call.given_up)
        is_known = stay.knows and stay.knows == form.hash  # the client expects just this one
        skeleton = b"" if is_known else form.skeleton
        return (OK, skeleton, blob, given_up, away), buffers

    def _wait(self) -> None:
        """Returns when the device is done: only then can what the call has read be used again.

        When a later call has taken all results, it is done when that one is.
        """
        run: Run | None = self
        while run is not None and not wait_for(run.pending_results()):
            run = run.consumer
            if run is not None:
                run.dispatched.wait()

    def pending_results(self) -> Iterable[Any]:
        """Its results; first those sent to the client, which no later call of a loop takes."""
        results, order = self.results, self.executable.form.order
        home = self._retained.home if self._retained and results else ()  # it may have been undone
        return itertools.chain((results[order[number]] for number in home), results)

    def timed(self, reply: Reply) -> Reply:
        """Its reply; where results stay, with the seconds that it ran.

        Without those in which a call before it ran: each second counts once.
        """
        session, now = self.call.session, time.monotonic()
        begun, session.ran_until = max(self.call.timed_from, session.ran_until), now
        if not (self._retained and self._retained.present):
            return reply
        value, buffers = reply
        return (*value, *[b""] * (_TIME_AT - len(value)), max(0.0, now - begun)), buffers

    def undo(self) -> None:
        """Takes back the values that a call made which then failed."""
        if self._batch is not None and self.call.referenced_data is not None:
            data = self.call.referenced_data
            data.values.drop(data.own, [value_ids_of(call_number_of(self._batch.first))])
        self.results = ()


def unpacked_function(functions: Functions, key: bytes, source: FunctionSource) -> Function:
    """The function with that key and its callable.

    Raises:
        Exception: as `Functions.obtain` and `Functions.unpack`.
    """
    function = functions.obtain(key, source)
    try:
        functions.unpack(function, source)
    except FunctionReplaced:
        function = functions.obtain(key, source)
        functions.unpack(function, source)
    return function


def find_nan(call: Call, functions: Functions, executables: Executables) -> FloatingPointError:
    """Runs the function step by step, so that the line is seen that makes the first NaN.

    Its output is not sent again, and no callback of the client is called again.

    Returns:
        The error for when no NaN is found that way.

    Raises:
        FloatingPointError: at that line.
    """
    function = unpacked_function(functions, call.key, call.source)
    layout = executables.layout(call.key, call.skeleton)
    arguments = build_arguments(layout, call.leaves(layout), function.statics)
    why_not = (
        "but not when it is run step by step: the compiler has put steps together. Look at values "
        "that are nearly too large."
    )
    assert function.unpacked is not None
    with (
        configured(function.options.config),
        output_to(CallOutput(SILENT)),
        callbacks_disabled(),
        function.unpacked.traced_for(call.source.read),
    ):
        args, kwargs = jax_arrays(arguments, function.statics)
        try:
            function.traceable(*args, **kwargs)
        except CallbackError:
            why_not = (
                "and it cannot be run step by step to find the line, because its io_callback must "
                "not run twice. Leave that out, or look with JAXD_INLINE=1."
            )
        finally:
            function.captured.restore()
    return FloatingPointError(
        f"invalid value (nan or inf) in the result of {function.name}, {why_not}"
    )


def _refuse_lost_update(run: Run, error: Exception) -> None:
    """Returns unless a function that the program called has changed what it captures.

    Raises:
        LostUpdateError: when it has. The client may make the call by itself then, where it has had
            no other effect.
    """
    lost = lost_update_in(error)
    if lost is None:
        return
    if not (run.executable.program.calls_back or run.call.given):
        run.call.phase = "reading"
    raise lost from None


class BrokenProgram(Exception):
    """A program that was read from disk does not run; it was dropped."""


class Executor:
    """Runs programs on the device, once more where memory could be freed. Thread-safe.

    Args:
        functions: where a function is found whose result is not a number.
        executables: where a broken program is dropped.
        oom_handler: makes room on the device.
        programs: where it is dropped as well.
    """

    def __init__(
        self,
        functions: Functions,
        executables: Executables,
        oom_handler: OutOfMemoryHandler,
        programs: ProgramSource,
    ) -> None:
        self._functions = functions
        self._executables = executables
        self._oom_handler = oom_handler
        self._programs = programs
        self._memory_reservations = MemoryReservations(oom_handler.spare)

    def dispatch(self, run: Run) -> None:
        """Hands a run to the device.

        Raises:
            BrokenProgram: when the call is to be answered anew.
            Exception: what jax raises.
        """
        program = run.executable.program
        if program.run_bytes:
            with self._memory_reservations.beside(
                run, program.run_bytes, calls_python=program.calls_python
            ):
                self._oom_handler.make_room_for(program.run_bytes)
                return self._dispatch(run)
        return self._dispatch(run)

    def _dispatch(self, run: Run) -> None:
        try:
            return run.dispatch()
        except Exception as error:  # noqa: BLE001  raised again but for one
            # and not the error itself, whose frames hold arrays
            failure = self._out_of_memory(run, error)
        return self._oom_handler.retry(run.dispatch, failure)

    def deliver(self, run: Run) -> Reply:
        """The reply, once the device is done.

        Raises:
            BrokenProgram: when the call is to be answered anew.
            Exception: what jax raises.
        """
        try:
            return run.deliver()
        except Exception as error:  # noqa: BLE001  as above
            failure = self._out_of_memory(run, error)
        return self._oom_handler.retry(run.repeat, failure)

    def _out_of_memory(self, run: Run, error: Exception) -> str:
        """jax's message when there is no room and making some may help; else raises the error."""
        if run.executable.calls_python:
            _refuse_lost_update(run, error)
        if self._oom_handler.are_gone(run.leaves):
            run.give_up()
            raise error
        if is_nan_error(error):
            raise find_nan(run.call, self._functions, self._executables) from error
        if run.executable.program.calls_back:
            raise error  # what it has called must not be called once more
        if not is_out_of_memory(error):
            self._discard_if_broken(run.executable, error)
            raise error
        return str(error)

    def _discard_if_broken(self, executable: Executable, error: Exception) -> None:
        """Drops a program that was read from disk and does not run; nothing in one is the user's.

        Raises:
            BrokenProgram: when it was one.
        """
        if executable.program.is_original or not is_runtime_error(error):
            return
        log_event("program_broken", function=executable.name, reason=str(error))
        self._executables.discard(executable)
        self._programs.discard(executable.program)
        raise BrokenProgram from error
