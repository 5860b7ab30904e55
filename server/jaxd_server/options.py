"""What a server is told at its start: one frozen record, the same for the host and its workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from jaxd_protocol.accounts import default_token_dir
from jaxd_protocol.addresses import Address
from jaxd_protocol.paths import LocalServerFiles
from jaxd_protocol.tokens import checked_token, read_token_file
from jaxd_server.memory import machine_bytes

__all__ = ["GIB", "SAME_USER", "ServerOptions"]

SAME_USER = (0, 0)
"""As `worker_uids`: all workers run as the server's own user, whoever that is."""

GIB = 1 << 30


def _local_socket() -> tuple[Address, ...]:
    return (Address.unix(LocalServerFiles.of_this_environment().socket),)


def _default_budget_bytes() -> int:
    return max(GIB, machine_bytes() // 4)


def _default_builds() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)) // 2)
    return max(1, (os.cpu_count() or 1) // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server listens, whom it admits, and how much it takes on.

    Attributes:
        listen: the addresses to open; by default the local socket of this environment.
        control: path of the control socket; None: derived from the first address.
        token_file: where the token is read from; None: from `JAXD_TOKEN`, or there is none.
        token_dir: folder of named tokens; `"none"`: there are none; None: the one where
            `jaxd token --name` puts them.
        allow_uids: users beside the server's own that may connect to its Unix sockets.
        tls_cert: PEM file with the certificate for TLS; None: the server makes one for itself.
        tls_key: PEM file with its key; None: it is in `tls_cert`.
        advertise: `HOST[:PORT]` by which clients elsewhere find this machine, for the line that is
            printed; None: the host name.
        insecure_plaintext: whether TCP beyond loopback is allowed without encryption.
        allow_unauthenticated_loopback: whether loopback TCP is open to every local user.
        idle_timeout_s: seconds without connection and call until the server stops; 0: never.
        rest_after_s: seconds without a call until the worker ends, and so gives its device back;
            the next client that connects starts another one. 0: never; None: ten minutes for an
            `auto` server on a GPU or TPU, else never.
        drain_timeout_s: seconds that a stopping worker may take when it reports no running call.
        recycle_after_calls: calls after which the worker is replaced, when it holds no arrays of
            clients; 0: never.
        recycle_after_s: the same for its age in seconds.
        recycle_above_bytes: the same for its memory.
        stuck_after_s: seconds without a word after which the host says that a worker is stuck.
        recycle_stuck_s: seconds without a word after which a worker is killed, when nobody else has
            arrays in it than whose call it hangs in; 0: never.
        standby: whether a second process has imported all that a worker needs, and takes over when
            that ends; None: except for an `auto` server.
        max_frame_bytes: the largest message that is received.
        max_result_bytes: the largest result that is sent.
        slots: calls in flight on one connection.
        budget_bytes: bytes of messages held in memory, over all connections.
        max_calls: calls that are held because they have to be built, or take long, over all
            connections; more are told to come again.
        call_share: of these, what one principal may have; and of `budget_bytes`, while others are
            connected.
        max_connections: clients that may be connected at the same time.
        threads: calls that run at the same time.
        builds: programs that are compiled at the same time.
        max_executables: executables held in memory; at about 150 memory maps each for large ones,
            what a Linux process may have by default is 430.
        program_bytes: memory of the process that their programs may take.
        device_program_bytes: memory of the device that they may take; None: a tenth of it.
        map_share: of the memory maps that a process may have, how much programs may fill.
        memory_share: of the machine's memory, or the device's, how much may be in use before what
            is idle is dropped; 0: nothing is.
        principal_share: of each of these, what a principal keeps although others need room; at
            most an equal part for each.
        principal_build_s: seconds of tracing and compiling that one principal may have in an hour;
            0: no limit.
        cache_dir: the folder of what is kept on disk; `"none"`: nothing is; None: as
            `JAXD_CACHE_DIR` says, or `~/.cache/jaxd`.
        disk_bytes: how much may lie in that folder.
        principal_disk_bytes: how much of that one principal may have had made; 0: as much.
        session_grace_s: seconds that a session outlives its last connection.
        value_bytes: what arrays that stay on the server may take; None: half of the devices'
            memory, or of the machine's where the device is a CPU; 0: as much as there is.
        value_share: of that, what one principal may take.
        content_bytes: what may be held of arrays that clients may send again; None: an eighth of
            the devices' memory, or of the machine's where the device is a CPU.
        trace_in: where functions are traced: `"worker"`, in the process that answers calls;
            `"tracer"`, in one beside it, so that warm calls are not held up; `"auto"`: beside it
            when more than one client is connected. Always in the worker on a GPU or TPU, which a
            second process cannot have.
        devices: which GPUs to use, by number or by UUID, with commas between; None: all.
        devices_per_session: how many devices a session has for itself, as long as there are as many
            groups of so many as sessions; its calls run on the first of them.
        device_memory_fraction: of each device's memory, how much jax may take; None: as its
            environment says, or three quarters.
        preallocate: whether jax takes that at once, or as it needs it; None: as its environment
            says, or at once.
        log_format: `"text"` for people or `"json"` for machines.
        max_call_s: seconds that a call may run; 0: as many as it likes.
        max_build_s: seconds that calls wait for a build once that has begun; 0: the same.
        stop_grace_s: seconds that what nobody waits for any more may go on before its process is
            replaced, where that costs nobody an array; 0: for ever.
        accept: what clients may send: `"code"`, or only what `jax.export` has made of it.
        allow_targets: native functions that exported programs may call, beside jax's own, with
            shapes and attributes that nobody checks.
        worker_per_principal: whether each principal has a worker of its own, which may run as
            another user of this machine.
        max_workers: workers that may be there at the same time then.
        worker_uids: the first and the last of the user numbers that workers of accounts run as;
            `SAME_USER`: all run as the server's own; None: the same, unless that is root.
        auto: whether a client started this server unasked: it then takes device memory only as
            it needs it, unless XLA_PYTHON_CLIENT_PREALLOCATE says otherwise.
    """

    listen: tuple[Address, ...] = field(default_factory=_local_socket)
    control: str | None = None
    token_file: str | None = None
    token_dir: str | None = None
    allow_uids: tuple[int, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    advertise: str | None = None
    insecure_plaintext: bool = False
    allow_unauthenticated_loopback: bool = False
    idle_timeout_s: float = 0.0
    rest_after_s: float | None = None
    drain_timeout_s: float = 30.0
    recycle_after_calls: int = 0
    recycle_after_s: float = 0.0
    recycle_above_bytes: int = 0
    stuck_after_s: float = 10.0
    recycle_stuck_s: float = 0.0
    standby: bool | None = None
    max_frame_bytes: int = 8 * GIB
    max_result_bytes: int = 8 * GIB
    slots: int = 32
    budget_bytes: int = field(default_factory=_default_budget_bytes)
    max_calls: int = 1000
    call_share: float = 0.5
    max_connections: int = 4000
    threads: int = 8
    builds: int = field(default_factory=_default_builds)
    max_executables: int = 400
    program_bytes: int = field(default_factory=_default_budget_bytes)
    device_program_bytes: int | None = None
    map_share: float = 0.5
    memory_share: float = 0.92
    principal_share: float = 0.5
    principal_build_s: float = 0.0
    cache_dir: str | None = None
    disk_bytes: int = 10 * GIB
    principal_disk_bytes: int = 0
    session_grace_s: float = 60.0
    value_bytes: int | None = None
    value_share: float = 1.0
    content_bytes: int | None = None
    trace_in: Literal["auto", "worker", "tracer"] = "auto"
    devices: str | None = None
    devices_per_session: int = 1
    device_memory_fraction: float | None = None
    preallocate: bool | None = None
    log_format: Literal["text", "json"] = "text"
    max_call_s: float = 0.0
    max_build_s: float = 0.0
    stop_grace_s: float = 30.0
    accept: Literal["code", "exported"] = "code"
    allow_targets: tuple[str, ...] = ()
    worker_per_principal: bool = False
    max_workers: int = 8
    worker_uids: tuple[int, int] | None = None
    auto: bool = False

    def read_token(self) -> str | None:
        """The token that clients on TCP and TLS must prove to hold; None: there is none.

        Raises:
            ConfigurationError: when the token file is missing, empty, or readable by others, or
                the token can be guessed.
        """
        if self.token_file is not None:
            return read_token_file(self.token_file)
        token = os.environ.get("JAXD_TOKEN", "").strip()
        return checked_token(token, "the token in JAXD_TOKEN") if token else None

    @property
    def token_folder(self) -> str | None:
        """The folder of named tokens, which need not be there; None: none are taken."""
        folder = self.token_dir
        return None if folder == "none" else folder or default_token_dir()

    @property
    def keeps_standby(self) -> bool:
        """Whether the next worker is to be started ahead."""
        if self.standby is None:
            return not (self.auto or self.worker_per_principal)
        return self.standby

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values; `from_json` of it is equal to this."""
        return asdict(self) | {"listen": [str(address) for address in self.listen]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServerOptions:
        """The options that `to_json` wrote.

        Raises:
            TypeError: when `data` holds an option that this version does not know.
        """
        listen = tuple(Address.parse(text) for text in data["listen"])
        lists: dict[str, Any] = {
            name: tuple(data[name]) for name in ("allow_uids", "allow_targets")
        }
        uids = data["worker_uids"]
        lists["worker_uids"] = None if uids is None else tuple(uids)
        return cls(**{**data, "listen": listen, **lists})
