"""The cache of functions and programs on disk.

A call is found by its key and the lasting name of its signature. What that leads to is enough to
answer it: neither the function nor a class of its arguments or results is needed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_protocol.messages.recorded_reads import ProcessRead, to_reads
from jaxd_protocol.packages.distributions import Package, package_of
from jaxd_protocol.pytree import dump_literal
from jaxd_server.cache.record_file import Record
from jaxd_server.cache.shared_store import Lease, Waiting
from jaxd_server.cache.store import Store
from jaxd_server.cache.writer import Troubles
from jaxd_server.codec.arguments import structure_of
from jaxd_server.codec.results import result_layout
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.compilation.disk_cache.records import CallRecord
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.jax_compat import programs
from jaxd_server.jax_compat.placement import are_several, is_known_as_bound, read_program
from jaxd_server.jax_compat.programs import NotSerializable
from jaxd_server.runtime.imported_packages import Change, Dependencies, ImportedPackages
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.executors import SerialExecutor


class Environments:
    """The packages that builds depend on, as records named by their digest. Thread-safe.

    Args:
        store: the files.
        packages: what this process has imported.
        remove_invalid: called with the kind and name of a record of another form.
    """

    def __init__(
        self, store: Store, packages: ImportedPackages, remove_invalid: Callable[[str, bytes], None]
    ) -> None:
        self._store = store
        self._packages = packages
        self._remove_invalid = remove_invalid
        self._known: dict[bytes, Dependencies] = {}
        self._adopted: set[bytes] = set()

    def adopt(self, name: bytes) -> None:
        """Has this process watch the packages of a current one, as if it had imported them."""
        if name not in self._adopted:
            self._adopted.add(name)
            self._packages.adopt(self._known[name])

    def is_current(self, name: bytes) -> bool:
        """Whether the packages are the same now."""
        rows = self.dependencies(name)
        return rows is not None and all(package_of(root) == package for root, package in rows)

    def changes_since(self, name: bytes) -> tuple[Change, ...]:
        """What has become of the packages that are others now."""
        found = ((package, package_of(root)) for root, package in self.dependencies(name) or ())
        return tuple(dict.fromkeys(Change(old, new) for old, new in found if new != old))

    def dependencies(self, name: bytes) -> Dependencies | None:
        """The packages; None when it is not known which."""
        rows = self._known.get(name)
        if rows is None:
            record = self._store.read("environments", name)
            if record is None:
                return None
            try:
                rows = tuple((root, Package(*package)) for root, *package in record.content)
            except (TypeError, ValueError):
                self._remove_invalid("environments", name)
                return None
            self._known[name] = rows
        return rows

    def keep(self, dependencies: Dependencies) -> bytes:
        """The name of the record of these, which is written if it was not."""
        rows = tuple((root, *package) for root, package in dependencies)
        name = hashlib.blake2b(dump_literal(rows), digest_size=16).digest()
        if self._store.has("environments", name):
            self._store.publish("environments", name)
        else:
            self._store.write("environments", name, rows)
        return name


_WRITTEN_WITHIN_S: Final = 60.0


class NotStored(LookupError):
    """A program is not on disk, or what is there cannot be loaded."""


class ProgramCache:
    """Functions and programs in a store. Thread-safe; never raises for invalid files.

    Args:
        store: the files.
        packages: what this process has imported.
    """

    def __init__(self, store: Store, packages: ImportedPackages) -> None:
        self.store = store
        self._queue = SerialExecutor("jaxd-keep")
        self._environments = Environments(store, packages, self._remove_invalid)
        self._suspects: set[bytes] = set()  # programs that did not run; each step is atomic
        self._troubles = Troubles()

    # functions --------------------------------------------------------------------------------

    def function(self, key: bytes) -> Function | None:
        """The function of a key, not unpacked; None when it, or its code, is not here."""
        record = self.store.read("functions", key)
        if record is None:
            return None
        try:
            values: Mapping[str, Any] = dict(record.content)
            manifest = FunctionManifest.from_message(values["meaning"])
            options = Options.from_bytes(values["options"])
            described = Described(manifest.recorded_fingerprint, values["name"], options, manifest)
            positions, names = map(frozenset, values["statics"])
            statics = StaticArgs(positions, names, options.static == "jax")
            parameters = tuple(values["parameters"])
        except (KeyError, TypeError, ValueError, ProtocolError):
            self._remove_invalid("functions", key)
            return None
        if not self.store.has("code", manifest.fingerprint):
            return None
        return Function(key, described, statics, parameters)

    def keep_code(self, fingerprint: bytes, code: bytes) -> None:
        """Takes the packed function of a fingerprint that was checked."""
        self.store.write("code", fingerprint, (), code)

    def code(self, fingerprint: bytes) -> bytes | None:
        """The packed function."""
        record = self.store.read("code", fingerprint)
        return None if record is None else record.payload

    def reads(self, fingerprint: bytes) -> tuple[ProcessRead, ...]:
        """What functions of a fingerprint are known to read of their clients' processes."""
        found: set[ProcessRead] = set()
        for read in (self.store.read, self.store.read_other):  # another server may know of others
            record = read("reads", fingerprint)
            try:
                found.update(() if record is None else to_reads(record.content))
            except ProtocolError:
                self._remove_invalid("reads", fingerprint)
        return tuple(sorted(found))

    def keep_reads(self, fingerprint: bytes, reads: tuple[ProcessRead, ...]) -> None:
        """Takes what functions of a fingerprint read of their clients' processes."""
        merged = sorted({*reads, *self.reads(fingerprint)})
        self.store.write("reads", fingerprint, tuple(map(tuple, merged)))

    def forget_function(self, function: Function) -> None:
        """Removes a function whose content is not what its record says."""
        self.store.remove("functions", function.key)
        self.store.remove("code", function.described.code_fingerprint)

    def keep_function(self, function: Function) -> None:
        """Writes the record of a function, in the background, when it is missing."""
        self._queue.put(partial(self._keep_function, function))

    def _keep_function(self, function: Function) -> None:
        if self.store.has("functions", function.key):
            return
        described = function.described
        statics = function.statics
        assert described.manifest is not None
        content = {
            "name": described.name,
            "fingerprint": described.fingerprint,
            "options": described.options.to_bytes(),
            "meaning": described.manifest.to_message(),
            "statics": (tuple(sorted(statics.positions)), tuple(sorted(statics.names))),
            "parameters": function.parameters,
        }
        self.store.write("functions", function.key, tuple(content.items()))

    # programs ---------------------------------------------------------------------------------

    def program(self, id: bytes, device: int = 0) -> Program:  # noqa: A002
        """Loads a program, for the device of that index if it names none itself.

        Raises:
            NotStored: when it is not here, or cannot be loaded; one that cannot is removed.
            JaxRuntimeError: when the device has no room for it; it stays where it is.
        """
        record = None if id in self._suspects else self.store.read("programs", id)
        if record is None:
            raise NotStored(id.hex())
        try:
            inputs, outputs, compile_s, devices, *bound = record.content
            is_bound = is_known_as_bound(devices, bound)
            kept = Serialized(record.payload, inputs, outputs, devices)
            read = partial(read_program, kept, None if is_bound else device)
            return Program.loaded(id, compile_s, read, is_original=False, is_bound=is_bound)
        except Exception as error:
            if programs.is_out_of_memory(error):
                raise
            if not device or isinstance(error, ValueError):  # else it may run on another
                self.reject_program(id, f"{type(error).__name__}: {error}")
            raise NotStored(id.hex()) from error

    def bytes_of(self, id: bytes) -> Serialized:  # noqa: A002
        """The bytes of a program, once they are on disk.

        Raises:
            NotStored: when they are not, and will not be.
        """
        self._queue.flush()
        self.store.flush(_WRITTEN_WITHIN_S)
        return self.stored_bytes(id)

    def stored_bytes(self, id: bytes) -> Serialized:  # noqa: A002
        """As `bytes_of`, where nothing of this process waits to be written.

        Raises:
            NotStored: when there is no such program.
        """
        record = None if id in self._suspects else self.store.read("programs", id)
        if record is None:
            raise NotStored(id.hex())
        inputs, outputs, _, devices, *_ = record.content
        return Serialized(record.payload, inputs, outputs, tuple(devices))

    def reject_program(self, id: bytes, reason: str) -> None:  # noqa: A002
        """Removes a program whose bytes cannot be loaded; the next one takes its place."""
        self._troubles.warn("program_not_loaded", reason.partition(":")[0], reason=reason)
        self.store.remove("programs", id)

    def distrust_program(self, id: bytes) -> None:  # noqa: A002
        """Stops loading a program that failed to run; its file stays until a new one replaces it.

        The device may have been the cause: then the file is still good.
        """
        self._suspects.add(id)

    def has_program(self, id: bytes) -> bool:  # noqa: A002
        """Whether a program is on disk, and not known to fail."""
        return id not in self._suspects and self.store.has("programs", id)

    def keep_program(self, program: Program) -> None:
        """Writes a program that no call leads to, in the background."""
        self._queue.put(partial(self._keep_alone, program))

    def _keep_alone(self, program: Program) -> None:
        try:
            self._keep_program(program)
        except Exception as error:  # noqa: BLE001  the server goes on without
            log_event("program_not_kept", function=program.id.hex(), reason=str(error))

    def _keep_program(self, program: Program) -> None:
        """Raises `NotSerializable` when it cannot be written."""
        if self.has_program(program.id):
            self.store.publish("programs", program.id)
            return
        if not program.is_original:
            raise NotSerializable(
                "it was read from disk itself, and XLA writes only what it compiled."
            )
        bound = (program.is_bound,) if are_several() else ()
        written = program.written or programs.serialized(program.compiled, program.devices)
        content = (written.inputs, written.outputs, program.compile_s, program.devices, *bound)
        self.store.write("programs", program.id, content, written.data)
        program.written = None  # from now on it is read from here
        self._suspects.discard(program.id)

    # calls ------------------------------------------------------------------------------------

    def find(self, function: Function, name: bytes) -> CallRecord | None:
        """The record of a call, if it has a program and its packages are the same."""
        kept = self._usable(name)
        if kept is None or kept.key != function.key:
            return None
        self.store.touch("calls", name)
        self._environments.adopt(kept.environment)
        if self.is_shared:
            self._queue.put(partial(self._publish, name, kept))
        return kept

    def _publish(self, name: bytes, kept: CallRecord) -> None:
        """Adds to a shared store what was kept here before."""
        self.store.publish("environments", kept.environment)
        self.store.publish("programs", kept.program)
        self.store.publish("reads", kept.code)
        self.store.publish("calls", name)

    def has(self, name: bytes) -> bool:
        """Whether the program of a call is there, and its packages are the same."""
        kept = self._usable(name)
        return kept is not None and self.has_program(kept.program)

    def _usable(self, name: bytes) -> CallRecord | None:
        """The record of a call, if it has a program and its packages are the same."""
        kept = self._read_call(name)
        if kept is None:
            return None
        if self._environments.is_current(kept.environment):
            return kept if kept.obstacle is None else None
        other = self.store.read_other("calls", name)  # for the packages as they are now, perhaps
        kept = self._call_in(name, other)
        if other is None or kept is None or kept.obstacle is not None:
            return None
        if not self._environments.is_current(kept.environment):
            return None
        self.store.adopt("calls", name, other)
        return kept

    def _is_not_waited_for(self, name: bytes) -> bool:
        """Whether the program of a call is there, or cannot be kept by anybody."""
        return self.obstacle(name) is not None or self.has(name)

    def obstacle(self, name: bytes) -> str | None:
        """Why the program of a call cannot be kept, with the packages as they are now.

        None where it can, or nothing is known.
        """
        kept = self._read_call(name)
        if kept is None or kept.obstacle is None:
            return None
        return kept.obstacle if self._environments.is_current(kept.environment) else None

    def keep_obstacle(
        self, function: Function, name: bytes, call: RecordedCall, packages: Dependencies
    ) -> None:
        """Writes down that only the process that calls a function can build it for a call.

        Args:
            function: the function.
            name: of the call.
            call: the call.
            packages: those that it may depend on; it is tried again when they are others.
        """
        described = function.described
        kept = CallRecord(
            function.name,
            function.key,
            described.fingerprint,
            described.code_fingerprint,
            *call,
            function.parameters,
            b"",
            "only where it is called",
            result_layout([], structure_of(((), {}))),
            0.0,
            0.0,
            time.time(),
            self._environments.keep(packages),
            "",
        )
        self.store.write("calls", name, kept.to_content())

    def dependencies(self, kept: CallRecord) -> Dependencies:
        """The packages that a record of `find` depends on."""
        return self._environments.dependencies(kept.environment) or ()

    def changes_since(self, name: bytes) -> tuple[Change, ...]:
        """What has become of the packages that the record of a call depends on, if there is one."""
        kept = self._read_call(name)
        return () if kept is None else self._environments.changes_since(kept.environment)

    def keep(
        self,
        function: Function,
        name: bytes,
        executable: Executable,
        obstacle: str | None,
    ) -> None:
        """Writes an executable in the background; with an obstacle, only a record of that."""
        kept = CallRecord(
            function.name,
            function.key,
            function.described.fingerprint,
            function.described.code_fingerprint,
            *executable.recorded,
            function.parameters,
            executable.program.id,
            obstacle,
            executable.form,
            executable.costs.trace_s,
            executable.costs.compile_s,
            time.time(),
            self._environments.keep(executable.dependencies),
            executable.principal,
            executable.output,
        )
        self._queue.put(partial(self._keep, function, name, kept, executable))

    def _keep(
        self, function: Function, name: bytes, kept: CallRecord, executable: Executable
    ) -> None:
        program = executable.program
        try:
            self._keep_function(function)
            if kept.obstacle is None:
                self._keep_program(program)
        except NotSerializable as error:
            log_event("program_not_kept", function=kept.name, reason=str(error))
            executable.kept_as = b""
            if not program.is_original:
                return  # the next process may well be able to
            kept = replace(kept, program=b"", obstacle="unwritten")
        except Exception:  # noqa: BLE001  the server goes on without
            log_event("program_not_written", function=kept.name)
            return
        self.store.write("calls", name, kept.to_content())

    def calls(self) -> dict[bytes, CallRecord]:
        """All records of calls, by name; reads every file and keeps none in memory."""
        found = ((name, self._read_call(name)) for name in self.store.names("calls"))
        return {name: kept for name, kept in found if kept is not None}

    def recent_programs(self) -> Iterator[bytes]:
        """The programs of calls whose packages are the same now, those used last first."""
        found = set()
        for name in self.store.by_last_use("calls"):
            kept = self._usable(name)
            if kept is not None and kept.program not in found:
                found.add(kept.program)
                yield kept.program

    # builds that others wait for -----------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether other machines may build what is built here, so that there are leases."""
        return self.store.shared is not None and not self.store.shared.read_only

    @contextmanager
    def lease(self, name: bytes, on_wait: Callable[[Waiting], None]) -> Iterator[None]:
        """Within it, no other machine builds a call; ends when what was made is in the store.

        Args:
            name: of the call.
            on_wait: called again and again while another one builds it; may raise.
        """
        assert self.store.shared is not None
        with self.store.shared.lease(name, lambda: self._is_not_waited_for(name), on_wait) as lease:
            yield
            if lease is not None:
                lease.is_handed_on = True
                self._queue.put(partial(self._release, lease))

    def _release(self, lease: Lease) -> None:
        self.store.flush(_WRITTEN_WITHIN_S)
        lease.release()

    def _read_call(self, name: bytes) -> CallRecord | None:
        return self._call_in(name, self.store.read("calls", name, payload=False))

    def _call_in(self, name: bytes, record: Record | None) -> CallRecord | None:
        if record is None:
            return None
        try:
            return CallRecord.from_content(record.content)
        except (KeyError, TypeError, ValueError, ProtocolError):
            self._remove_invalid("calls", name)
            return None

    def _remove_invalid(self, kind: Any, name: bytes) -> None:
        """Removes a record that is complete but has another form."""
        self._troubles.warn("cache_spoilt", kind, kind=kind, name=name.hex())
        self.store.remove(kind, name)

    def mark_used(self, executables: Iterable[Executable], since: float) -> None:
        """Records on disk which executables in memory were used, so that these are swept last.

        Args:
            executables: those in memory.
            since: `time.monotonic()` of the last such note.
        """
        for executable in executables:
            if executable.kept_as and executable.last_use >= since:
                self.store.touch("calls", executable.kept_as)

    def flush(self) -> None:
        """Waits until everything is on disk."""
        self._queue.flush()
        self.store.flush(_WRITTEN_WITHIN_S)

    def close(self) -> None:
        """Writes what waits, and stops."""
        self._queue.flush()
        self.store.close()
