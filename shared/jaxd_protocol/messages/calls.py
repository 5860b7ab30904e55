"""The wire on one screen: the requests of each end.

Each line is an rpyc request to the peer's root; `[…]` is sent as buffers beside it.

    client → server
      call(key, skeleton, blob, timeout_s, flags, stay, elsewhere, drops) [arrays]
            → (OK, skeleton, blob) [arrays]  or  (FAILED, failure)
            with `stay`: (OK, skeleton, blob, donated, away) [arrays]
              or  (FAILED, failure, donated)
              skeleton: empty when it is the one whose hash is in `stay`;
              donated: leaves of the call that were donated; away: leaves of the result that are
              not in the reply; then ids, if some values were not kept as requested; of a call that
              is TIMED and leaves values, these, or b"", and the seconds that it ran
      call(key, skeleton, b"", timeout_s, flags | WARM, b"", b"", b"") [pickles]
            → (OK, JSON {verdict, seconds, kept, program, inputs}, skeleton)  or  (FAILED, failure)
              builds or loads, runs nothing; kept: it is on disk; program: what a client compares
              with the one that it lowers itself; the skeleton is the result's; inputs: which
              arguments each leaf of it may be computed from: [bits in hexadecimal, for how many]
      put(number, skeleton, blob, elsewhere, config) [arrays] → (OK, skeleton)
              a flat tuple of arrays becomes values, which the skeleton describes
      fetch(ids, places) → (OK,) [arrays]     or into the client's blocks at `places`
      part(id, index, above, number) → (OK, skeleton) [array]
              `[array]` unless it has more bytes than `above`: then it becomes a value
      offer(ids) → (OK, ticket, member)       values that another member of the pool may take, once
      take(member, ticket, config, ids) → (OK, skeleton)
              has the server take what that member has offered; it becomes values
      hold(secret, number, ids) → (OK,)       keeps a snapshot of values that outlives the worker
      held(secret, number, ids) → (OK, skeleton)        makes values of it again, under these ids
      unhold(secret, numbers)                 these can go, or all of that secret; no reply
      drop(ids)                               releases values; no reply
      adopt(contents, ids) → (OK, a byte for each)      1: cached content is a value now
      share(number, nbytes) <descriptor> → (OK, its first bytes)      shared memory, as a block
      unshare(numbers)                        releases blocks; no reply
      cancel(number)                          cancels a call; no reply of its own, but the call is
                                              answered all the same
      fell_back(calls, functions)             so many ran in the client's process; no reply
      kept(report)                     what is kept to make arrays again, JSON; no reply
      verified(programs, stale, incomparable)           so many were compared there; no reply
      bye()                                   ends the client's session; no reply
      name(name, skeleton, ids, ttl_s) → (OK,)          named(name, number) → (OK, skeleton)
      unname(name) → (OK, did it exist)       values() → JSON {holders, totals, kept}
      save(token, path, names, ids, overwrite) → (OK, is it complete)
              writes values as a checkpoint; names: JSON, for each value a list of texts
      saved(token, path) → (OK, True)         when that is complete
      restore(path, like, number, token, [ids]) → (OK, skeleton, names, token)
              makes values of a checkpoint: of this token, where one is given; like: empty, or
              JSON, for each value its name, dtype (empty: any) and shape; ids: by default those
              that follow the first one of the number
      statistics() → JSON                     info() → JSON
      use() → JSON                            what the session has had, see `SessionUse`
      why(key, skeleton or None, description) → JSON    what a call would do, and why
      stages(key, skeleton, stage, dialect, places) [pickles] → JSON
              a stage of a function: its `jaxpr`, `lowered`, `program` or `compiled`, derived anew
      program(key, skeleton, most) → (OK, JSON {id, bytes, inputs, outputs, devices, order, jax,
              jaxlib}, skeleton) [program]  or  (OK, JSON {refused, again}, b"")
              what answers such calls, for the client to run, without its bytes where these are
              more than `most`; the skeleton is the result's
      ready(key, skeleton, fingerprint) → JSON {ready}   whether such a call is answered untraced
      compile(name, options) [lowered program] → (OK, JSON, b"") [program]      as `program`:
              what the client has traced and lowered, under a name that is its content
      devices() → JSON                        the devices, and that of this session
      recent(count) → JSON                    the last builds, and why each was made
      functions() → JSON {functions, totals}  known functions, what they cost and have saved
      report() → JSON                         a `Report`: what was saved, and for whom
      view(sequence, source) → JSON {view or change, source, more}
              what there is to see, or what has changed since; see `server_view`
      detail(key, program, stage) → JSON      a function looked at closely; or with a stage {text}:
              the `jaxpr` or `hlo` of one of its programs in memory
      cancel_call(id) → JSON {cancelled}      cancels a call of the same principal, whoever made it
      recipes("") → (JSON {mark},)            a mark; later, with that mark:
      recipes(mark) → (JSON {mark, left_out}, recipe…) [codes and pickles]
                                              the calls since the mark, see `recipes`
      profile("start", seconds) → JSON {clock_ns, clock, pid}      of the worker, by jax; then
      profile("stop", 0) → (JSON {files},) [files]   only for the user who runs the server
      trace(name, label) → JSON {clock_ns, clock, pid}  records what follows on this connection in
                                              the trace of that name; an empty one: nothing
      traced(name) → JSON {spans, threads, left_out, clock_ns, clock, pid}
              the spans of that trace since the last time, see `jaxd_server.runtime.call_trace`
      forget(key) → JSON {executables}        removes the builds of a key, on disk as well

    server → client, while a call or `stages` of the client's is open
      describe(key) → (name, options, manifest)         a function, without its code
      code(fingerprint) → () [packed function]          its call waits meanwhile
      event(number, kind, JSON)               progress of the request `number`, and prints,
                                              warnings and log records of its function; no reply
      callback(number, skeleton, blob, wanted) [arrays] → (skeleton, blob) [arrays]
              calls a function of the client for the program that answers the request `number`;
              as in a result: (callback target, args, kwargs), see
              jaxd_server.user_code.callback_targets; back as in arguments:
              (result,)

An end that cannot answer sends (FAILED, failure) instead. `[pickles]` are the buffers of the
skeleton's `P` leaves alone: of each its pickle, then the buffers beside it.

A call names its function by `key`, sixteen bytes that stand for code, options and configuration.
Only a server that does not know the key requests the manifest and the code.

`stay`, `elsewhere`, `ids` and `donated` are described in `data_locations`: `stay` is a
`ResultPolicy`, `elsewhere` the data locations. A value is named by a number that its client derives
from the call's `number`, so that it can be used before it exists.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import JaxdError

OK: Final = 0
FAILED: Final = 1


def is_failure(failure: tuple[Any, ...], kind: type[JaxdError]) -> bool:
    """Whether the failure of a call is exactly this one of jaxd's own errors.

    Args:
        failure: as `jaxd_protocol.messages.failures` describes it.
        kind: the error.
    """
    return bool(failure[:2] == (kind.__module__, kind.__name__))


class FailureOrigin(NamedTuple):
    """Where a call has failed. A plain tuple on the wire.

    Attributes:
        phase: `packing`: before it was sent; `building`: before it ran, while its function or its
            arguments were unpacked, or while it was traced, lowered or compiled; `running`; or
            `reading`: its result cannot be read, or lacks what its Python has changed, and it had
            no effect. Empty where none of this is known, or it had effects.
        raised_in: the module whose `raise` or `assert` it was; empty when Python itself, or code
            in C, has raised it.
        call: the id of the call, which stands in the server's log; empty where there was none.
    """

    phase: str = ""
    raised_in: str = ""
    call: str = ""


ORIGIN: Final = "_jaxd_origin"
"""The attribute of an exception that has it."""


def origin_of(error: BaseException) -> FailureOrigin:
    """Where the call has failed that raised this exception."""
    found = vars(error).get(ORIGIN)
    return found if isinstance(found, FailureOrigin) else FailureOrigin()


def set_origin(error: BaseException, origin: FailureOrigin) -> None:
    """Records where the call has failed that raises this exception."""
    vars(error)[ORIGIN] = origin


CLOCK_MARK: Final = "jaxd clock "
"""So begins an event of XLA's profile whose name ends in `time.monotonic_ns` of its start."""

MAX_PROFILE_S: Final = 600
"""A profile ends by itself after so many seconds."""

MAY_REPEAT: Final = 1
"""Flag of a call: it is idempotent."""

STRICT: Final = 2
"""Flag of a call: a package that is not the same on both sides is an error."""

WARM: Final = 4
"""Flag of a call: it is built or loaded, and not run; it has no data."""

ON_VALUES: Final = 8
"""Flag of a call: it refers to values, so it runs in order with its session's others, and once."""

FROM_CALLBACK: Final = 16
"""Flag of a call: it is made by a callback of a program of the same client."""

LOST_ONCE: Final = 32
"""Flag of a call: a worker died while it ran, perhaps because of it. It is repeated alone."""

LOST_AGAIN: Final = 64
"""Flag of a call: another worker died when it was repeated."""

SILENT: Final = 128
"""Flag of a call: no events of it are sent, for its client would show none."""

TIMED: Final = 256
"""Flag of a call: where it leaves values, its reply says how long it ran."""

FIRST: Final = 512
"""Flag of a call: `jax.jit` would trace here, so what the trace has put out is sent, if not now."""

ON_ONE_DEVICE: Final = 1024
"""Flag of a call: it is refused where its program computes on several devices, for its client has
several as well, and arrays of its own jax lie on them as that program has spread its results."""
