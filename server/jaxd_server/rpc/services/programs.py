"""Programs for clients that run their calls themselves: those that answer calls here, and theirs.

Only for a process of the very user who runs this server, beside it on the same machine: the client
checks that with the system's help, and this end does not help anybody else. The bytes are those
that the disk cache keeps: a program that was loaded is never written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import NotPermitted
from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_server.codec.arguments import empty_arguments
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import received
from jaxd_server.compilation.compiling.executable import Executable, obstacle_elsewhere
from jaxd_server.compilation.disk_cache.records import call_name
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.compilation.functions.table import FunctionSource
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.call import Client, Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.jax_compat.lowered import VERSIONS, program_id
from jaxd_server.jax_compat.lowered_transfer import unpack_lowered
from jaxd_server.jax_compat.placement import index_of
from jaxd_server.jax_compat.programs import NotSerializable

PROGRAM_VERBS: Final = frozenset({"program", "ready", "compile"})
"""What `ProgramService` answers."""


class ProgramService(NamedTuple):
    """Answers one client.

    Attributes:
        pipeline: what answers calls.
        options: those of the server.
        session: of the client.
        source: the client, as a source of functions.
    """

    pipeline: Pipeline
    options: ServerOptions
    session: Client
    source: FunctionSource

    def answer(self, verb: str, args: tuple[Any, ...], buffers: Sequence[memoryview]) -> Reply:
        """The answer to one of `PROGRAM_VERBS`.

        Raises:
            NotPermitted: when the client may not have a program compiled.
            Exception: whatever compiling raises.
        """
        if verb == "program":
            return self._offered(*args)
        if verb == "ready":
            return json.dumps({"ready": self._is_ready(*args)}), ()
        name, options = args
        return self._compiled(name, options, buffers)

    def _is_own_user(self) -> bool:
        """Whether the client is a process of the user who runs the server."""
        return not self.options.allow_uids and self.session.principal == f"uid:{os.getuid()}"

    # what answers calls here -------------------------------------------------------------------

    def _offered(self, key: bytes, skeleton: bytes, most: int) -> Reply:
        """What answers such calls, as bytes, or why a client cannot have it.

        Args:
            key: of the function.
            skeleton: of the arguments.
            most: bytes that the program may have: the client asks again for one that has more.
        """
        if not self._is_own_user():
            return _refused("the server has other users than the one who runs it")
        plan = self.pipeline.executables.plan(key, skeleton, self.session.device)
        executable = None if plan is None else plan.executable
        if executable is None:
            reason = "an argument travels as a pickle, or the server has made room"
            return _refused(reason, again=True)
        obstacle = _obstacle(executable)
        if obstacle:
            return _refused(obstacle)
        with self.pipeline.operation("(program)"):
            executable.hold()
            try:
                written = self.pipeline.source.programs.bytes_of(executable.program)
            except NotSerializable as error:
                return _refused(f"its program cannot be written: {error}")
            finally:
                executable.release()
        if written.devices != executable.program.devices:
            return _refused("its program was compiled for another device")
        report = {"bytes": len(written.data), "order": executable.form.order}
        form, program = executable.form.skeleton, executable.program.id
        return _handed_over(program, written, report, form, len(written.data) <= most)

    def _is_ready(self, key: bytes, skeleton: bytes, fingerprint: bytes) -> bool:
        """Whether a call would be answered without a trace, or has to be asked what it reads.

        Args:
            key: of the function.
            skeleton: of the arguments.
            fingerprint: that of the walk over the function.
        """
        pipeline = self.pipeline
        if pipeline.executables.plan(key, skeleton, self.session.device) is not None:
            return True
        function = pipeline.functions.kept(key)
        if pipeline.functions.reads_more(function, fingerprint):
            return True
        if function is None or pipeline.program_cache is None:
            return False
        name = call_name(function, empty_arguments(skeleton, function.statics))
        return name is not None and pipeline.program_cache.has(name)

    # what the client has lowered ---------------------------------------------------------------

    def _compiled(self, name: str, options: bytes, buffers: Sequence[memoryview]) -> Reply:
        """A program that the client has lowered, as the compiler's bytes.

        It gets its name here, from what it is. No key leads to it: the client's process may have
        made it of something that no key counts.

        Args:
            name: of the function, for people.
            options: packed `Options`.
            buffers: the lowered program.

        Raises:
            NotPermitted: when the client is not of this user, or the server takes no code.
            Exception: whatever compiling raises.
        """
        if not self._is_own_user() or self.options.accept != "code":
            raise NotPermitted(
                "this server compiles lowered programs only for the user who runs it, and only "
                "where it takes code. Use place='server', or a server of your own."
            )
        self.session.has_called = True
        with self.pipeline.operation("(compile)"):
            settings = Options.from_bytes(options)
            lowered = unpack_lowered(b"".join(buffers))
            program, obstacle = program_id(lowered, settings)
            if obstacle is not None:
                return _refused(f"its program has what only its own process has: {obstacle}")
            function = Function(program, Described(program, name, settings))
            request = BuildRequest.without_data(  # only the function's name and options count
                *(function, ((), {}), RecordedCall(b""), self.source),
                principal=self.session.principal,
                counts=self.session.counts,
            )
            written = self.pipeline.source.compiled(request, received(program, lowered))
        if len(written.devices) != 1 or index_of(written.devices[0]):
            return _refused("its program was compiled for another device")
        return _handed_over(program, written, {"bytes": len(written.data)}, b"", True)


def _handed_over(
    program: bytes, written: Serialized, more: dict[str, Any], form: bytes, is_whole: bool
) -> Reply:
    report = {
        "id": program.hex(),
        "inputs": written.inputs,
        "outputs": written.outputs,
        "devices": written.devices,
        **more,
        **VERSIONS,
    }
    buffers = (memoryview(written.data),) if is_whole else ()
    return (OK, json.dumps(report), form), buffers


def _obstacle(executable: Executable) -> str:
    """Why a program runs nowhere but here; empty when it may."""
    program = executable.program
    if program.calls_python:
        return "its program calls back into Python"
    if not program.is_written:
        return "its program is like no other: it has effects, or calls what only the server has"
    return obstacle_elsewhere(executable.config, program.devices, executable.form)


def _refused(reason: str, *, again: bool = False) -> Reply:
    return (OK, json.dumps({"refused": reason, "again": again}), b""), ()
