"""Starts the process of a worker, with its environment, channels and inherited sockets.

jax and the libraries below it read the variables for devices and their memory once, at their
start, so they are set in the environment of the worker.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from jaxd_server.auth.listeners import Listener
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.output_relay import OutputRelay
from jaxd_server.processes.supervision.tenant_settings import Tenant
from jaxd_server.runtime.child_startup import in_a_file
from jaxd_server.runtime.flight_recorder import FlightRecorder
from jaxd_server.runtime.system_memory import MemoryLoss

_FRACTION: Final = "XLA_CLIENT_MEM_FRACTION"
_FRACTION_BEFORE: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
"""Its older name; jax refuses to start when both are set."""

_PREALLOCATE: Final = "XLA_PYTHON_CLIENT_PREALLOCATE"

_OF_LIBRARIES: Final = ("EQX_", "FLAX_", "JAXTYPING_", "NUMPYRO_")
"""What variables begin with that equinox, flax, jaxtyping and numpyro read when they are imported.

They change what is traced. A server traces for clients that have none, and those that have some
trace for themselves: docs/the-key.md, "Settings of libraries".
"""


def _without_settings(inherited: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in inherited.items() if not name.startswith(_OF_LIBRARIES)}


def worker_environment(options: ServerOptions, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: from the options, otherwise inherited, without `_OF_LIBRARIES`.

    A server that was started automatically, or whose workers share a device, preallocates only
    where `inherited` demands it.
    """
    modest = {_PREALLOCATE: "false"} if options.auto or options.worker_per_principal else {}
    environment = modest | _without_settings(inherited)
    if options.device_memory_fraction is not None:
        environment.pop(_FRACTION_BEFORE, None)
        environment[_FRACTION] = str(options.device_memory_fraction)
    if options.preallocate is not None:
        environment[_PREALLOCATE] = "true" if options.preallocate else "false"
    if options.devices is not None:
        # The numbers of nvidia-smi; CUDA's own order is by speed.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": options.devices}
    if options.no_device:
        environment.pop("JAX_PLATFORM_NAME", None)
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return environment


SuspectRows = Sequence[Mapping[str, Any]]
"""See `Quarantine.for_worker`."""


class History(NamedTuple):
    """What a worker has to know of those before it.

    Attributes:
        suspects: which functions have ended them.
        memory_loss: where the system has ended one for want of memory.
    """

    suspects: SuspectRows = ()
    memory_loss: MemoryLoss | None = None

    def to_message(self) -> dict[str, Any]:
        """The fields as JSON values; see `Worker.begin`."""
        loss = None if self.memory_loss is None else self.memory_loss._asdict()
        return {"suspects": list(self.suspects), "memory_loss": loss}


NO_HISTORY: Final = History()


class LaunchedWorker(NamedTuple):
    """A worker that was started, and the host's ends.

    Attributes:
        process: the process.
        host_channel: for messages in both directions.
        relay: copies its output.
        recorder: its flight recorder, in shared memory.
    """

    process: subprocess.Popen[bytes]
    host_channel: socket.socket
    relay: OutputRelay
    recorder: FlightRecorder


def launch(
    command: Sequence[str],
    options: ServerOptions,
    listeners: Sequence[Listener],
    epoch: int = 0,
    history: History = NO_HISTORY,
    tenant: Tenant | None = None,
) -> LaunchedWorker:
    """Starts `command` with one JSON argument, as `read_argument` expects it.

    The process has a session of its own, so that Ctrl-C in a terminal reaches only the host.

    Args:
        command: the program and its first arguments.
        options: of the server.
        listeners: which it inherits.
        epoch: its generation; 0: it stands by, without a device, until `begin`.
        history: of earlier workers.
        tenant: whose worker it is, where not all clients share it.

    Raises:
        OSError: when no process can be made, or no file opened; nothing is left open then.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        recorder = FlightRecorder.create()
        theirs.callback(recorder.close)
        host_channel, other_end = (ours.enter_context(one) for one in socket.socketpair())
        theirs.callback(other_end.close)
        output, output_end = os.pipe()
        theirs.callback(os.close, output_end)
        relay = _relaying(output)
        inherited = {"tether_fd": other_end.fileno(), "black_box_fd": recorder.descriptor}
        environment = worker_environment(options, os.environ)
        argument = {
            "options": options.to_json(),
            "listeners": [
                {"fd": one.socket.fileno(), "address": str(one.address)} for one in listeners
            ],
            **inherited,
            **({"epoch": epoch, **history.to_message()} if epoch else {"stands_by": True}),
            **({} if tenant is None else {"principal": tenant.principal}),
        }
        passed = [*inherited.values(), *(one.socket.fileno() for one in listeners)]
        if tenant is not None:  # other users can read a command line
            argument, file = in_a_file(argument)
            theirs.callback(os.close, file)
            passed.append(file)
        process = subprocess.Popen(  # noqa: S603  our own process
            [*command, json.dumps(argument)],
            stdin=subprocess.DEVNULL,
            stdout=output_end,
            stderr=output_end,
            env=environment if tenant is None else tenant.environment(environment),
            pass_fds=passed,
            start_new_session=True,
            **(tenant.process() if tenant is not None else {}),
        )
        ours.pop_all()
    return LaunchedWorker(process, host_channel, relay, recorder)


def _relaying(output: int) -> OutputRelay:
    """Starts copying the output; the copy ends by itself when no process is started."""
    relay = OutputRelay(output)
    try:
        relay.start()
    except RuntimeError as error:
        relay.discard()
        raise OSError(errno.EAGAIN, "no thread can be started") from error
    return relay
