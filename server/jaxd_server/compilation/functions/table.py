"""The table of known functions: from the key on the wire to the unpacked function."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final, Protocol

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import InternalError, PackingError, ProtocolError
from jaxd_protocol.jit.options import function_key
from jaxd_protocol.jit.static_args import infer_static_args
from jaxd_protocol.messages.function_manifest import FunctionManifest, parameter_names
from jaxd_protocol.messages.recorded_reads import ProcessRead, RecordedRead
from jaxd_protocol.pickling.unpack.archives import forget_archive
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.compilation.functions.package_skew import compare, refuse_missing
from jaxd_server.compilation.functions.receive import UnpackedFunction, receive_function
from jaxd_server.runtime.threads.executors import SingleFlight
from jaxd_server.user_code.client_process import ProcessReads, reading

_MAX_READ_SETS: Final = 10_000
_MAX_DEADLY: Final = 10_000

WHAT_ENDS_PROCESSES: Final = (
    "Does the function, or a library of its, call os._exit() or crash while it is traced or "
    "compiled, or need more memory than there is?"
)
"""For the message of an error: what to look for."""

Receive = Callable[[str, FunctionManifest | None, bytes, bytes | memoryview], UnpackedFunction]
"""See `receive_function`."""

PermissionCheck = Callable[[Described], None]
"""Raises when a function may not be compiled with its client's options."""


class FunctionSource(Protocol):
    """The source of the function of a key: the client whose call is open."""

    @property
    def owner(self) -> bytes:
        """Identifies the client, for functions that no other client may share."""

    def describe(self, key: bytes) -> Described:
        """What a key stands for."""

    def code(self, fingerprint: bytes) -> bytes | memoryview:
        """The packed function."""

    def read(self, fingerprint: bytes, read: ProcessRead) -> Any:
        """What the client's process has, for a function of this walk's fingerprint: a literal.

        Raises:
            PackingError: when the function does not name it.
        """

    def confirm(
        self, fingerprint: bytes, reads: tuple[ProcessRead, ...]
    ) -> tuple[RecordedRead, ...]:
        """Digests of what the client's process has, for a function of this walk's fingerprint.

        Raises:
            PackingError: when the function does not name one of them.
        """

    def waiting(self) -> AbstractContextManager[None]:
        """Within it the call waits for an answer of its client, or of another call's client."""


class Clientless:
    """A `FunctionSource` without a client: what is not here already cannot be had.

    Args:
        refusal: what is raised where a client would be asked.
    """

    owner = b""

    def __init__(self, refusal: Exception) -> None:
        self._refusal = refusal

    def describe(self, key: bytes) -> Described:
        """Raises the refusal, as the next three."""
        raise self._refusal

    def code(self, fingerprint: bytes) -> bytes | memoryview:
        """See `describe`."""
        raise self._refusal

    def read(self, fingerprint: bytes, read: ProcessRead) -> Any:
        """See `describe`."""
        raise self._refusal

    def confirm(
        self, fingerprint: bytes, reads: tuple[ProcessRead, ...]
    ) -> tuple[RecordedRead, ...]:
        """See `describe`."""
        raise self._refusal

    def waiting(self) -> AbstractContextManager[None]:
        """Nobody is waited for."""
        return nullcontext()


class FunctionCache(Protocol):
    """The functions that earlier processes have kept on disk."""

    def function(self, key: bytes) -> Function | None:
        """What a key stands for, not unpacked."""

    def code(self, fingerprint: bytes) -> bytes | None:
        """The packed function."""

    def keep_code(self, fingerprint: bytes, code: bytes) -> None:
        """Takes the packed function of a fingerprint that was checked."""

    def reads(self, fingerprint: bytes) -> tuple[ProcessRead, ...]:
        """What functions of a walk's fingerprint are known to read of their clients' processes."""

    def keep_reads(self, fingerprint: bytes, reads: tuple[ProcessRead, ...]) -> None:
        """Takes what functions of a walk's fingerprint read of their clients' processes."""

    def keep_function(self, function: Function) -> None:
        """Takes what a key stands for."""

    def forget_function(self, function: Function) -> None:
        """Removes a function whose content is not what its record says."""


class DeadlyFunctions:
    """Functions that ended the processes that built them. Thread-safe.

    They are known by their code: what else is compiled of it, and with which options, may well
    do the same.
    """

    def __init__(self) -> None:
        self._fingerprints = BoundedDict[bytes, None](_MAX_DEADLY)

    def add(self, described: Described) -> None:
        """Adds one."""
        self._fingerprints[described.code_fingerprint] = None

    def __contains__(self, described: Described) -> bool:
        return described.code_fingerprint in self._fingerprints

    def check(self, function: Function) -> None:
        """Checks that a function may be traced or compiled in this process.

        Raises:
            InternalError: when it may not.
        """
        if function.described in self:
            raise InternalError(
                f"{function.name} has ended the processes that built it, so it is built only in a "
                "process of its own, and that was not possible now: the server's log says why. "
                f"Call it again later, or correct it. {WHAT_ENDS_PROCESSES}"
            )


class FunctionReplaced(Exception):
    """What was kept of a function is in doubt; the next `Functions.obtain` has another one.

    Or it was found to read more of its client's process than was known.
    """


def permit_all(described: Described) -> None:
    """Permits everything: to clients that may run code here anyway."""


class Functions:
    """The functions that were used last; safe from any thread.

    One that was dropped is requested again. Its executables do not need this table.

    Args:
        limit: how many to keep.
        program_cache: what is kept of functions on disk; None where nothing is.
        receiving: opens what a client sends.
        permitting: checks the description of a function before anything else is done.
        confirming: whether clients are asked for what their functions are known to read.

    Attributes:
        deadly: those that are not traced in this process.
    """

    def __init__(
        self,
        limit: int = 1000,
        program_cache: FunctionCache | None = None,
        receiving: Receive = receive_function,
        permitting: PermissionCheck = permit_all,
        confirming: bool = True,
    ) -> None:
        self.deadly = DeadlyFunctions()
        self._open = receiving
        self._permit = permitting
        self._program_cache = program_cache
        self._confirming = confirming
        self._functions = BoundedDict[bytes, Function](limit)
        self._reads = BoundedDict[bytes, tuple[ProcessRead, ...]](_MAX_READ_SETS)
        self._arrivals = BoundedDict[bytes, UnpackedFunction](limit)
        self._single_flight: SingleFlight[bytes, Function] = SingleFlight()
        self._receiving: SingleFlight[bytes, tuple[bytes, UnpackedFunction]] = SingleFlight()

    def __len__(self) -> int:
        return len(self._functions)

    def obtain(self, key: bytes, source: FunctionSource) -> Function:
        """The function with that key; `source` is used only for what is not in the table.

        Its own key is another one where it is known to read of its client's process what the key
        does not count, and where it is in doubt.

        Raises:
            ProtocolError: when what the source sends does not have the requested key.
            MissingPackage: when it needs a package that is not installed here.
            Exception: whatever unpacking raises, such as ImportError.
        """
        known = self._known(key, source)
        if known is None:
            with source.waiting():  # the answer may be behind its client's next message
                known = self._single_flight.run(
                    _private(key, source.owner),
                    lambda: self._known(key, source),
                    lambda: self._fetch(key, source),
                )
        return self._confirmed(known, source) if self._confirming else known

    def kept(self, key: bytes) -> Function | None:
        """The function of a key, if it is in memory or on disk; asks no client."""
        found = self._functions.use(key)
        if found is not None or self._program_cache is None:
            return found
        return self._program_cache.function(key)

    def reads_more(self, function: Function | None, fingerprint: bytes) -> bool:
        """Whether functions of a walk's fingerprint are known to read more than this one counts."""
        manifest = None if function is None else function.described.manifest
        counted = () if manifest is None else [each.read for each in manifest.reads]
        return not {*self._known_reads(fingerprint)} <= {*counted}

    def adopt(self, function: Function, source: FunctionSource) -> Function:
        """A function of this very process, as it is with what it is known to read; not unpacked.

        Args:
            function: as its process describes it, which needs no check.
            source: whom to ask for what it reads.

        Raises:
            PackingError: when the function does not name what it is known to read.
        """
        known = self._functions.use(function.key)
        if known is None:
            known = self._functions[function.key] = function
        return self._confirmed(known, source)

    def _known(self, key: bytes, source: FunctionSource) -> Function | None:
        found = self._functions.use(key)
        return found or self._functions.use(_private(key, source.owner))

    def _fetch(self, key: bytes, source: FunctionSource) -> Function:
        kept = self._program_cache.function(key) if self._program_cache else None
        if kept is not None:
            function = self._functions[key] = self._compared(kept)
            return function
        return self._ask(key, source)

    def _ask(self, key: bytes, source: FunctionSource) -> Function:
        described = source.describe(key)
        if function_key(described.fingerprint, described.options) != key:
            raise ProtocolError(
                "the client described another function than the one it called. "
                "Install the same jaxd on both sides."
            )
        function = self._compared(Function(key, described))
        arrival = function.unpacked = self._arrival(described, source)
        function.statics = infer_static_args(arrival.function, described.options)
        function.parameters = parameter_names(function.function)
        if arrival.doubt is not None:
            function.key = _private(key, source.owner)
        self._functions[function.key] = function
        return function

    def _compared(self, function: Function) -> Function:
        """With its differences; raises `MissingPackage` before unpacking stumbles over one."""
        self._permit(function.described)
        manifest = function.described.manifest
        function.differences = compare(function.name, manifest.packages if manifest else {})
        refuse_missing(function.differences)
        return function

    def unpack(self, function: Function, source: FunctionSource) -> None:
        """Fills in the callable of a function that `obtain` returned, which is to be traced here.

        Raises:
            FunctionReplaced: when what was kept of it is in doubt.
            InternalError: when it must not be traced in this process.
            Exception: whatever unpacking raises, such as ImportError.
        """
        self.deadly.check(function)
        manifest = function.described.manifest
        if function.unpacked is not None and function.unpacked.fits(manifest):
            return
        with source.waiting():
            is_doubted = function.doubt is not None
            arrival = self._arrival(function.described, source)
            if arrival.doubt is None or is_doubted:
                function.unpacked = arrival
                return
            self._functions.pop(function.key, None)
            if self._program_cache is not None:
                self._program_cache.forget_function(function)
            self._ask(function.key, source)
        raise FunctionReplaced(function.name)

    def _arrival(self, described: Described, source: FunctionSource) -> UnpackedFunction:
        """The code; requested once for all callers, unless it is in doubt."""
        name = described.fingerprint
        known = self._arrived(described)
        if known is not None:
            return known
        owner, arrival = self._receiving.run(
            name, lambda: None, lambda: self._receive(described, source)
        )
        is_others = owner != source.owner
        if is_others and (arrival.doubt is not None or not arrival.fits(described.manifest)):
            _, arrival = self._receive(described, source)  # ours may be right
        return arrival

    def _receive(
        self, described: Described, source: FunctionSource
    ) -> tuple[bytes, UnpackedFunction]:
        known = self._arrived(described)
        if known is not None:  # while this one waited for its turn
            return source.owner, known
        arrival = self._unpack_kept(described, source)
        if arrival is None:
            fingerprint = described.code_fingerprint
            data = source.code(fingerprint)
            arrival = self._opened(described, data, source)
            is_right = arrival.doubt is None and described.manifest and described.manifest.shared
            if self._program_cache and is_right:
                self._program_cache.keep_code(fingerprint, bytes(data))
        if arrival.doubt is None:
            self._arrivals[described.fingerprint] = arrival
        return source.owner, arrival

    def _arrived(self, described: Described) -> UnpackedFunction | None:
        """What has arrived under that name, and can be traced for this client."""
        found = self._arrivals.use(described.fingerprint)
        return None if found is None or not found.fits(described.manifest) else found

    def _unpack_kept(self, described: Described, source: FunctionSource) -> UnpackedFunction | None:
        """From the code on disk; None when there is none, or it can no longer be unpacked."""
        fingerprint = described.code_fingerprint
        kept = self._program_cache.code(fingerprint) if self._program_cache else None
        if kept is None:
            return None
        try:
            return self._opened(described, kept, source)
        except Exception:  # noqa: BLE001  its client sends it instead, and gets the error
            return None

    def _opened(
        self, described: Described, data: bytes | memoryview, source: FunctionSource
    ) -> UnpackedFunction:
        """Unpacks a function in the view of its client's process.

        Packages that came as source have run already, when another function has brought them: in
        the view of a process that may have been another one. Then they run anew.
        """
        fingerprint = described.code_fingerprint
        reads = ProcessReads(fingerprint, data)
        with reading(reads, source.read):
            arrival = self._open(described.name, described.manifest, fingerprint, data)
        archive = arrival.archive
        if archive is not None and not reads.agree(archive.found, source.read):
            forget_archive(archive)
            reads = ProcessReads(fingerprint, data)
            with reading(reads, source.read):
                arrival = self._open(described.name, described.manifest, fingerprint, data)
        if arrival.archive is not None:
            arrival.archive.found.update(reads.found)
        return replace(arrival, reads=reads)

    # what functions read of their clients' processes ------------------------------------------

    def _confirmed(self, function: Function, source: FunctionSource) -> Function:
        """The function as it is with what its client's process has now of what it reads."""
        manifest = function.described.manifest
        if manifest is None:
            return function
        counted = tuple(each.read for each in manifest.reads)
        self._learn(function, counted)  # of a lockfile, perhaps, or of another worker
        wanted = self._known_reads(manifest.fingerprint)
        if {*wanted} <= {*counted}:
            return function
        with source.waiting():
            found = source.confirm(manifest.fingerprint, wanted)
        return self._with_reads(function, found, source.owner)

    def reconsidered(self, function: Function, source: FunctionSource) -> Function:
        """The function as it is with what others have found it to read since it was obtained."""
        manifest = function.described.manifest
        if manifest is None or not self._confirming:
            return function
        self._reads.pop(manifest.fingerprint, None)
        return self._confirmed(function, source)

    def _known_reads(self, fingerprint: bytes) -> tuple[ProcessRead, ...]:
        known = self._reads.use(fingerprint)
        if known is None:
            known = self._program_cache.reads(fingerprint) if self._program_cache else ()
            self._reads[fingerprint] = known
        return known

    def _with_reads(
        self, function: Function, reads: tuple[RecordedRead, ...], owner: bytes
    ) -> Function:
        described = function.described.with_reads(reads)
        key = function_key(described.fingerprint, described.options)
        key = key if function.doubt is None else _private(key, owner)
        known = self._functions.use(key)
        if known is None:
            unpacked = function.unpacked
            if unpacked is not None and not unpacked.fits(described.manifest):
                unpacked = None
            known = replace(function, key=key, described=described, unpacked=unpacked)
            self._functions[key] = known
        return known

    def record(
        self, function: Function, reads: tuple[RecordedRead, ...], source: FunctionSource
    ) -> Function:
        """The function as it is with what a trace of it has read.

        Raises:
            PackingError: when its client's process has changed since its key was made.
        """
        manifest = function.described.manifest
        if manifest is None or {*reads} <= {*manifest.reads}:
            return function
        counted = {each.read: each for each in manifest.reads}
        for each in reads:
            if counted.setdefault(each.read, each) != each:
                raise PackingError(
                    f"{each.read.label}, which {function.name} reads, was changed during the call, "
                    "or is another one than it was recorded with. Call again."
                )
        self._learn(function, (*counted,))
        found = self._with_reads(function, (*counted.values(),), source.owner)
        unpacked = function.unpacked
        if unpacked is not None:
            self._arrivals.pop(function.described.fingerprint, None)
            if unpacked.doubt is None:
                self._arrivals[found.described.fingerprint] = unpacked
            found.unpacked = unpacked
        return found

    def _learn(self, function: Function, reads: tuple[ProcessRead, ...]) -> None:
        fingerprint = function.described.code_fingerprint
        known = self._known_reads(fingerprint)
        if {*reads} <= {*known}:
            return
        merged = self._reads[fingerprint] = tuple(sorted({*known, *reads}))
        if self._program_cache is not None and function.is_lasting:
            self._program_cache.keep_reads(fingerprint, merged)
            self._program_cache.keep_function(function)


def _private(key: bytes, owner: bytes) -> bytes:
    """The key of a function that only one client may call by it."""
    return hashlib.blake2b(key + owner, digest_size=16).digest()
