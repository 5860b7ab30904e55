"""Gives the program that has just answered a call to its client, which runs the next ones itself.

Only to a process of the very user who runs this server, beside it on the same machine: the client
checks that with the system's help, and this end does not help anybody else. The bytes are those
that the disk cache keeps: a program that was loaded is never written again.
"""

from __future__ import annotations

import json
import os
from typing import Any

from jaxd_protocol.messages.calls import OK
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.call import Reply
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.jax_compat.lowered import VERSIONS
from jaxd_server.jax_compat.placement import index_of
from jaxd_server.jax_compat.programs import NotSerializable


def offered_program(
    pipeline: Pipeline, options: ServerOptions, principal: str, device: int, args: tuple[Any, ...]
) -> Reply:
    """The answer to `program`: what answers such calls, as bytes, or why a client cannot have it.

    Args:
        pipeline: what answers calls.
        options: those of the server.
        principal: who asks.
        device: on which the calls of the client run.
        args: key, skeleton, and how many bytes the program may have: the client asks again for
            one that has more.
    """
    key, skeleton, most = args
    if options.allow_uids or principal != f"uid:{os.getuid()}":
        return _refused("the server has other users than the one who runs it")
    plan = pipeline.executables.plan(key, skeleton, device)
    executable = None if plan is None else plan.executable
    if executable is None:
        return _refused("an argument travels as a pickle, or the server has made room", again=True)
    obstacle = _obstacle(executable)
    if obstacle:
        return _refused(obstacle)
    with pipeline.operation("(program)"):
        executable.hold()
        try:
            written = pipeline.bytes_of(executable.program)
        except NotSerializable as error:
            return _refused(f"its program cannot be written: {error}")
        finally:
            executable.release()
    if written.devices != executable.program.devices:
        return _refused("its program was compiled for another device")
    report = {
        "id": executable.program.id.hex(),
        "bytes": len(written.data),
        "inputs": written.inputs,
        "outputs": written.outputs,
        "devices": written.devices,
        "order": executable.form.order,
        **VERSIONS,
    }
    buffers = (memoryview(written.data),) if len(written.data) <= most else ()
    return (OK, json.dumps(report), executable.form.skeleton), buffers


def _obstacle(executable: Executable) -> str:
    """Why a program runs nowhere but here; empty when it may."""
    program = executable.program
    if program.calls_python:
        return "its program calls back into Python"
    if not program.is_written:
        return "its program is like no other: it has effects, or calls what only the server has"
    if len(program.devices) != 1 or index_of(program.devices[0]):
        return "its program runs on several devices, or not on the first"
    counting = [name for name, _ in executable.config if name != "jax_enable_x64"]
    if counting:
        return f"settings count while its program runs: {', '.join(counting)}"
    return "" if executable.form.is_lasting else "its result holds objects that only the server has"


def _refused(reason: str, *, again: bool = False) -> Reply:
    return (OK, json.dumps({"refused": reason, "again": again}), b""), ()
