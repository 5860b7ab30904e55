"""The options of a server: one frozen record, the same for the host and its workers.

Each option is defined here once: its default, its command line flag, and its description in
`jaxd serve --help` and docs/configuration.md (`tests/server/option_table.py`).
"""

from __future__ import annotations

import argparse
import os
from argparse import SUPPRESS, BooleanOptionalAction
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple

from jaxd_protocol.base.terminal import Parser
from jaxd_protocol.network.accounts import default_token_dir
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles
from jaxd_protocol.network.tokens import checked_token, default_token_file, read_token_file
from jaxd_server.config.argument_types import (
    parse_address,
    parse_count,
    parse_folder,
    parse_gpus,
    parse_name,
    parse_seconds,
    parse_share,
    parse_size,
    parse_user,
    parse_users,
)
from jaxd_server.runtime.memory import machine_bytes

GIB = 1 << 30


class Words(NamedTuple):
    """The description of an option on the command line and in the documentation.

    Attributes:
        group: under which heading `--help` lists it.
        flag: such as `--slots`; empty: as its field is called.
        argument: what argparse reads behind that: its `type`, `metavar`, `choices` or `action`.
        help: what it is, in words.
        shown: its default, in words; empty: there is none to show.
        more: text after `help` on the page on configuration, in Markdown.
    """

    group: str
    flag: str
    argument: Mapping[str, Any]
    help: str
    shown: str
    more: str


def words_of(option: Field[Any]) -> Words:
    """The words of a field of `ServerOptions`."""
    words: Words = option.metadata["words"]
    return words if words.flag else words._replace(flag="--" + option.name.replace("_", "-"))


@dataclass(frozen=True, slots=True)
class _Group:
    """A heading of `--help`; makes the fields of the options below it."""

    heading: str

    def option(
        self,
        argument: Mapping[str, Any],
        help: str,  # noqa: A002  as argparse calls it
        *,
        default: Any = None,
        shown: str = "",
        more: str = "",
        flag: str = "",
    ) -> Any:
        """A field of `ServerOptions`; a callable default is called for each server.

        The default is shown as it is written where `shown` is not given.
        """
        if not shown and type(default) in {int, float, str}:
            shown = f"{default:g}" if isinstance(default, float) else str(default)
        metadata = {"words": Words(self.heading, flag, argument, help, shown, more)}
        if callable(default):
            return field(default_factory=default, metadata=metadata)
        return field(default=default, metadata=metadata)


_WHERE: Final = _Group("where")
_WHO: Final = _Group("who may connect")
_APART: Final = _Group("how far apart they are kept")
_WHAT: Final = _Group("what they may send")
_DEVICES: Final = _Group("which devices, and how much of them")
_LIMITS: Final = _Group("how much")
_PROGRAMS: Final = _Group("how many programs stay in memory")
_VALUES: Final = _Group("how much data stays")
_LIFETIME: Final = _Group("how long, and what is said")

_COUNT: Final = {"type": parse_count, "metavar": "N"}
_SIZE: Final = {"type": parse_size, "metavar": "SIZE"}
_SECONDS: Final = {"type": parse_seconds, "metavar": "SECONDS"}
_SHARE: Final = {"type": parse_share, "metavar": "SHARE"}
_PATH: Final = {"type": str, "metavar": "PATH"}
_FOLDER: Final = {"type": parse_folder, "metavar": "PATH"}
_SWITCH: Final = {"action": "store_true"}
_YES_NO: Final = {"action": BooleanOptionalAction}


def _each(kind: Callable[[str], Any], metavar: str) -> Mapping[str, Any]:
    return {"action": "append", "type": kind, "metavar": metavar}


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

    Of times, `recycle_…` and what a principal may have, 0 is no limit. What is None depends on the
    machine or on other options.
    """

    listen: tuple[Address, ...] = _WHERE.option(
        _each(parse_address, "ADDRESS"),
        "unix:///path, tcp://host:port or tls://host:port, may be repeated; port 0 takes a free "
        "one",
        default=_local_socket,
        shown="the local socket of this environment",
    )
    control: str | None = _WHERE.option(
        _PATH,
        "socket of `jaxd status` and `jaxd stop`",
        shown="beside the first address if that is a Unix socket, else in this environment's own "
        "directory",
        more=" (there it is `tcp-PORT.control`)",
    )
    cache_dir: str | None = _WHERE.option(
        _FOLDER,
        "where compiled programs are kept over restarts, or `none`",
        shown="JAXD_CACHE_DIR, else ~/.cache/jaxd",
        more="; `/var/cache/jaxd` where root has workers of other users. With "
        "`--worker-per-principal`, a folder in it for each",
    )
    token_file: str | None = _WHO.option(
        _PATH,
        "token that clients on TCP and TLS must prove to hold, as made by `jaxd token`",
        shown="JAXD_TOKEN, JAXD_TOKEN_FILE, then the file that `jaxd token` writes",
        more="; made when an address is `tls://` and there is none",
    )
    token_dir: str | None = _WHO.option(
        _FOLDER,
        "folder of further tokens, one for each name, as made by `jaxd token --name`, or `none`",
        shown="where that puts them",
        more=". Read again whenever they change, see [several people](security.md#several-people)",
    )
    allow_uids: tuple[int, ...] = _WHO.option(
        _each(parse_user, "USER"),
        "another user, by number or name, that may connect to the Unix socket and so run code as "
        "you; may be repeated",
        default=(),
        more=". The address for them is printed: it names the server's user (`?uid=`)",
        flag="--allow-uid",
    )
    tls_cert: str | None = _WHO.option(
        _FOLDER,
        "certificate for tls:// addresses, which clients check by name",
        shown="one that the server makes, which they know by its fingerprint",
        more="; with those that lead to its CA",
    )
    tls_key: str | None = _WHO.option(_FOLDER, "its key", shown="in the same file")
    advertise: str | None = _WHO.option(
        {"type": parse_name, "metavar": "HOST[:PORT]"},
        "what clients elsewhere call this machine, for the line that is printed for them",
        shown="its host name",
    )
    insecure_plaintext: bool = _WHO.option(
        _SWITCH,
        "listen beyond this machine, although everything on the wire can then be read and "
        "changed; clients say the same with tcp://…?insecure=1",
        default=False,
        more=". Takes clients of which it is not known whether somebody stands in between",
    )
    allow_unauthenticated_loopback: bool = _WHO.option(
        _SWITCH,
        "let every user and program of this machine run code here over loopback TCP; clients "
        "without a token say tcp://…?insecure=1",
        default=False,
    )
    worker_per_principal: bool = _APART.option(
        _SWITCH,
        "a process for each user and account, with a cache of its own; where root starts the "
        "server, as that user of this machine, or one of --worker-uids",
        default=False,
        more="; for people who do not trust each other, see "
        "[a worker for each](security.md#a-worker-for-each)",
    )
    worker_uids: tuple[int, int] | None = _APART.option(
        {"type": parse_users, "metavar": "FIRST-LAST"},
        "numbers of users, nobody else's, that the workers of accounts run as; `none`: all "
        "workers run as the server's own user",
        more=". Such as `70000-70999`, where root starts the server, which keeps one of them for "
        "itself: there are two at least",
    )
    max_workers: int = _APART.option(
        _COUNT,
        "such processes at the same time; who comes then is told to come again",
        default=8,
    )
    accept: Literal["code", "exported"] = _WHAT.option(
        {"choices": ("code", "exported")},
        "code: functions, which run in the server; exported: only programs that clients have "
        "traced by themselves, and data",
        default="code",
        more="; see [programs instead of code](security.md#programs-instead-of-code)",
    )
    allow_targets: tuple[str, ...] = _WHAT.option(
        _each(str, "NAME"),
        "with exported, native code that programs may call beside jax's own, with whatever "
        "shapes and attributes they say: nobody checks these; may be repeated",
        default=(),
        flag="--allow-target",
    )
    devices: str | None = _DEVICES.option(
        {"type": parse_gpus, "metavar": "LIST"},
        "GPUs to use, by the numbers or UUIDs that `nvidia-smi -L` shows, such as 0,1",
        shown="all",
        more=". See [GPUs](gpu.md)",
    )
    devices_per_session: int = _DEVICES.option(
        _COUNT,
        "how many devices a client process has for itself, as far as there are enough; its "
        "calls run on the first of them",
        default=1,
        more=". See [several devices](devices.md#which-device-a-call-runs-on)",
    )
    device_memory_fraction: float | None = _DEVICES.option(
        _SHARE, "of each GPU's memory, for arrays and programs", shown="0.75"
    )
    preallocate: bool | None = _DEVICES.option(
        _YES_NO,
        "take that memory at the start, or as it is needed",
        shown="at the start",
        more=". A server that a first call starts takes it as it needs it, and so do workers of "
        "`--worker-per-principal`",
    )
    max_frame_bytes: int = _LIMITS.option(
        _SIZE, "largest message received, such as 512M", default=8 * GIB, shown="8G"
    )
    max_result_bytes: int = _LIMITS.option(
        _SIZE, "largest result sent", default=8 * GIB, shown="8G"
    )
    budget_bytes: int = _LIMITS.option(
        _SIZE,
        "messages in memory",
        default=_default_budget_bytes,
        shown="a quarter of the memory",
        more=", over all connections; at least 1G",
    )
    disk_bytes: int = _LIMITS.option(
        _SIZE, "kept in the cache folder", default=10 * GIB, shown="10G"
    )
    principal_disk_bytes: int = _LIMITS.option(
        _SIZE,
        "of that, of what one client's user has had made; its own goes first",
        default=0,
        shown="all of it",
    )
    max_calls: int = _LIMITS.option(
        _COUNT,
        "calls held that have to wait",
        default=1000,
        more=": to be built, or as they take long. Clients come again with more, and raise `Busy` "
        "when that is in vain for a minute or until `timeout_s`",
    )
    call_share: float = _LIMITS.option(
        _SHARE,
        "of these, and of --budget-bytes while others are connected, for one client's user",
        default=0.5,
    )
    max_connections: int = _LIMITS.option(
        _COUNT,
        "clients at the same time",
        default=4000,
        more=", others wait up to a minute; an idle one costs the server a thread and 50 kB",
    )
    slots: int = _LIMITS.option(_COUNT, "calls in flight on one connection", default=32)
    threads: int = _LIMITS.option(_COUNT, "calls that run at the same time", default=8)
    builds: int = _LIMITS.option(
        _COUNT,
        "compilations at the same time",
        default=_default_builds,
        shown="half of the cores",
    )
    max_executables: int = _PROGRAMS.option(_COUNT, "executables, whatever their size", default=400)
    program_bytes: int = _PROGRAMS.option(
        _SIZE,
        "of this process",
        default=_default_budget_bytes,
        shown="a quarter of the memory",
        more=", which their programs may take; at least 1G",
    )
    device_program_bytes: int | None = _PROGRAMS.option(
        _SIZE, "of the device", shown="a tenth of it", more=", which they may take"
    )
    map_share: float = _PROGRAMS.option(
        _SHARE,
        "of vm.max_map_count",
        default=0.5,
        more=", which the server may fill; at the end of it a process dies. A large program takes "
        "150 maps",
    )
    memory_share: float = _PROGRAMS.option(
        _SHARE,
        "of the memory of machine or device; with more in use, what is idle goes",
        default=0.92,
        more=", if a tenth of it is this server's, an eighth each second: arrays that clients may "
        "send again, and executables that are missed least. Of a container where there is one",
    )
    principal_share: float = _PROGRAMS.option(
        _SHARE,
        "of all this, what a client's user keeps when others need room; at most an equal part "
        "for each",
        default=0.5,
        more=". Who is alone may use everything",
    )
    principal_build_s: float = _PROGRAMS.option(
        _SECONDS,
        "of tracing and compiling for one client's user in an hour",
        default=0.0,
        shown="no limit",
        more="; after that new programs are refused (`LimitExceeded`), and those that are ready "
        "answer",
    )
    value_bytes: int | None = _VALUES.option(
        _SIZE,
        "of all arrays that stay on the server",
        shown="half of the device's memory",
        more="; more is refused with `ValuesFull`",
    )
    value_share: float = _VALUES.option(_SHARE, "of that, for one client's user", default=1.0)
    content_bytes: int | None = _VALUES.option(
        _SIZE,
        "of arrays that clients send again and again over a network",
        shown="an eighth of the device's memory",
        more=", kept by their content so that they need not be sent again",
    )
    idle_timeout_s: float = _LIFETIME.option(
        _SECONDS, "stop after this long without connections and calls", default=0.0, shown="never"
    )
    rest_after_s: float | None = _LIFETIME.option(
        _SECONDS,
        "give the device back after this long without a call, and take it again for the next one",
        shown="never",
        more="; 600 for a server on a GPU or TPU that a first call started, and with "
        "`--worker-per-principal`. It is the worker that ends, if it has no arrays of clients; the "
        "next one has all that is on disk",
    )
    max_call_s: float = _LIFETIME.option(
        _SECONDS,
        "how long a call may run",
        default=0.0,
        shown="as long as it likes",
        more=". See [calls that nobody waits for](errors.md#calls-that-nobody-waits-for)",
    )
    max_build_s: float = _LIFETIME.option(
        _SECONDS,
        "how long calls wait for a build once it has begun",
        default=0.0,
        shown="as long as it takes",
    )
    stop_grace_s: float = _LIFETIME.option(
        _SECONDS,
        "what nobody waits for any more, such as a call that was cancelled, may go on this long "
        "before its process is replaced, if no array is lost by that; 0: for ever",
        default=30.0,
    )
    drain_timeout_s: float = _LIFETIME.option(
        _SECONDS, "when stopping, kill a worker that runs no call after", default=30.0
    )
    recycle_after_s: float = _LIFETIME.option(
        _SECONDS,
        "replace the worker when it is this old",
        default=0.0,
        shown="never",
        more=", as `jaxd restart` does",
    )
    stuck_after_s: float = _LIFETIME.option(
        _SECONDS,
        "say that a worker is stuck when it has not answered for",
        default=10.0,
        more="; see [when things break](reliability.md#workers-that-hang)",
    )
    recycle_stuck_s: float = _LIFETIME.option(
        _SECONDS,
        "kill a worker that has not answered for this long, if nobody else has arrays in it than "
        "whose call it hangs in",
        default=0.0,
        shown="never",
    )
    recycle_after_calls: int = _LIFETIME.option(
        _COUNT, "replace the worker after so many calls", default=0, shown="never"
    )
    recycle_above_bytes: int = _LIFETIME.option(
        _SIZE, "replace the worker when it has this much memory", default=0, shown="never"
    )
    standby: bool | None = _LIFETIME.option(
        _YES_NO,
        "keep a second process, without a device, that has imported jax and takes over when "
        "the worker ends; takes about 80 MB",
        shown="yes",
        more="; not for a server that a first call started, nor with `--worker-per-principal`",
    )
    session_grace_s: float = _LIFETIME.option(
        _SECONDS, "keep what a client left on the server this long", default=60.0
    )
    trace_in: Literal["auto", "worker", "tracer"] = _LIFETIME.option(
        {"choices": ("auto", "worker", "tracer")},
        "where functions are traced: in the worker, in a process beside it, or (auto) beside "
        "it when several clients are connected; on GPU and TPU always in the worker",
        default="auto",
        more=". See [decision 11](decisions/0011-who-waits-for-whom.md)",
    )
    log_format: Literal["text", "json"] = _LIFETIME.option(
        {"choices": ("text", "json")},
        "lines for people or one JSON object a line",
        default="text",
    )
    auto: bool = _LIFETIME.option(_SWITCH, SUPPRESS, default=False)  # started by a first call

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
        content: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in data.items()
        }
        return cls(**content | {"listen": tuple(map(Address.parse, data["listen"]))})


_EXAMPLES = """\
examples:
  jaxd serve
      this user, this machine: a Unix socket that nobody else can reach
  jaxd token && jaxd serve --listen unix:///run/jaxd/server.sock --listen tcp://127.0.0.1:18861
      also over TCP, for those who hold the token
  jaxd serve --listen tls://0.0.0.0:18861
      for other machines: makes token and certificate, and prints what to type there

Ctrl-C or SIGTERM finishes the running calls and stops; a second one stops at once.
"""


def parse_arguments(argv: Sequence[str] | None = None) -> ServerOptions:
    """The options that `argv` asks for (default: `sys.argv[1:]`).

    The token file is, in this order: `--token-file`; none when `JAXD_TOKEN` holds the token
    itself; `JAXD_TOKEN_FILE`; the file that `jaxd token` writes, when it exists.

    Raises:
        SystemExit: with 2 after a usage message; with 0 after `--help`.
    """
    given = vars(_parser().parse_args(argv))
    given["token_file"] = given.get("token_file") or _token_file_of_environment()
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    return ServerOptions(**options)


def _token_file_of_environment() -> str | None:
    if os.environ.get("JAXD_TOKEN"):
        return None
    default = default_token_file()
    return os.environ.get("JAXD_TOKEN_FILE") or (default if os.path.exists(default) else None)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="jaxd serve",
        description="Own the accelerator, keep compiled functions warm, and answer calls.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # ServerOptions holds the defaults
        allow_abbrev=False,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in fields(ServerOptions):
        words = words_of(option)
        if words.group not in groups:
            groups[words.group] = parser.add_argument_group(words.group)
        text = f"{words.help} (default: {words.shown})" if words.shown else words.help
        groups[words.group].add_argument(words.flag, dest=option.name, help=text, **words.argument)
    return parser
