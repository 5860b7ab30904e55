"""The options of a server: one frozen record, the same for the host and its workers.

Each option is defined here once: its default, its command line flag, and its description in
`jaxd serve --help-all` and docs/configuration.md (`tests/server/option_table.py`).
"""

from __future__ import annotations

import argparse
import os
from argparse import SUPPRESS, BooleanOptionalAction
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from functools import partial
from typing import Any, Final, Literal, NamedTuple, NoReturn

from jaxd_protocol.base.process import usable_processors
from jaxd_protocol.base.terminal import Parser
from jaxd_protocol.network.accounts import default_token_dir
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles
from jaxd_protocol.network.tokens import checked_token, default_token_file, read_token_file
from jaxd_server.config.argument_types import (
    parse_address,
    parse_count,
    parse_endpoint,
    parse_folder,
    parse_gpus,
    parse_name,
    parse_seconds,
    parse_share,
    parse_size,
    parse_size_or_0,
    parse_store,
    parse_user,
    parse_users,
)
from jaxd_server.runtime.system_memory import machine_bytes

GIB = 1 << 30


class Words(NamedTuple):
    """The description of an option on the command line and in the documentation.

    Attributes:
        group: the heading of `--help-all` that lists it.
        argument: keyword arguments of `add_argument`: `type`, `metavar`, `choices` or `action`.
        help: its meaning.
        shown: its default; empty: there is none to show.
        more: text after `help` on the page on configuration, in Markdown.
        flag: such as `--slots`; empty: derived from the name of its field.
    """

    group: str
    argument: Mapping[str, Any]
    help: str
    shown: str = ""
    more: str = ""
    flag: str = ""


def words_of(option: Field[Any]) -> Words:
    """The words of a field of `ServerOptions`."""
    words: Words = option.metadata["words"]
    return words if words.flag else words._replace(flag="--" + option.name.replace("_", "-"))


def _option(
    group: str,
    argument: Mapping[str, Any],
    help: str,  # noqa: A002  as argparse calls it
    *,
    default: Any = None,
    shown: str = "",
    **words: str,
) -> Any:
    """A field of `ServerOptions`; a callable default is called for each server.

    The default is shown as it is written where `shown` is not given.
    """
    if not shown and type(default) in {int, float, str}:
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    metadata = {"words": Words(group, argument, help, shown, **words)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


_address: Final = partial(_option, "addresses and files")
_access: Final = partial(_option, "access")
_isolation: Final = partial(_option, "isolation")
_content: Final = partial(_option, "accepted functions")
_device: Final = partial(_option, "devices")
_limit: Final = partial(_option, "limits")
_program: Final = partial(_option, "programs in memory")
_value: Final = partial(_option, "arrays in memory")
_lifetime: Final = partial(_option, "lifetime and log")

_COUNT: Final = {"type": parse_count, "metavar": "N"}
_SIZE: Final = {"type": parse_size, "metavar": "SIZE"}
_SECONDS: Final = {"type": parse_seconds, "metavar": "SECONDS"}
_SHARE: Final = {"type": parse_share, "metavar": "SHARE"}
_PATH: Final = {"type": str, "metavar": "PATH"}
_FOLDER: Final = {"type": parse_folder, "metavar": "PATH"}
_STORE: Final = {"type": parse_store, "metavar": "PATH"}
_SWITCH: Final = {"action": "store_true"}
_NONE: Final = "none"
_YES_NO: Final = {"action": BooleanOptionalAction}


def _each(kind: Callable[[str], Any], metavar: str) -> Mapping[str, Any]:
    return {"action": "append", "type": kind, "metavar": metavar}


def _local_socket() -> tuple[Address, ...]:
    return (Address.unix(LocalServerFiles.of_this_environment().socket),)


def _default_budget_bytes() -> int:
    return max(GIB, machine_bytes() // 4)


def _default_snapshot_bytes() -> int:
    return min(2 * GIB, machine_bytes() // 8)


def _default_builds() -> int:
    """Two on a small machine: with one, a user's long build would be everybody's."""
    return max(2, usable_processors() // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The addresses, permissions, limits and lifetime of a server.

    For times, `recycle_…` and limits of one principal, 0 is no limit. None is a default that
    depends on the machine or on other options.
    """

    listen: tuple[Address, ...] = _address(
        _each(parse_address, "ADDRESS"),
        "unix:///path, tcp://host:port or tls://host:port; port 0 is any free one; repeatable",
        default=_local_socket,
        shown="the local socket of this environment",
    )
    control: str | None = _address(
        _PATH,
        "socket of `jaxd status` and `jaxd stop`",
        shown="beside a Unix socket if that is the first address, else in this environment's "
        "runtime directory",
        more=" (as `tcp-PORT.control`)",
    )
    cache_dir: str | None = _address(
        _FOLDER,
        "folder of compiled programs that outlives the server, or `none`",
        shown="JAXD_CACHE_DIR, else ~/.cache/jaxd",
        more="; `/var/cache/jaxd` where root has workers of other users. With "
        "`--worker-per-principal`, it has a folder for each principal",
    )
    store: str | None = _address(
        _STORE,
        "folder or URL of compiled programs that several machines share, or `none`",
        shown="JAXD_STORE, else none",
        more="; see [one store for many machines](store.md)",
    )
    store_read_only: bool = _address(
        _SWITCH,
        "take programs from that store, and add none",
        default=False,
        more=". So does `JAXD_STORE_READ_ONLY=1`",
    )
    peers: str | None = _address(
        _FOLDER,
        "file with the other members of the pool, from which programs and arrays are taken",
        shown="none",
        more=". `jaxd pool` writes it, see [compiled once](pool.md#compiled-once)",
    )
    token_file: str | None = _access(
        _PATH,
        "token that clients on TCP and TLS have to prove, as made by `jaxd token`",
        shown="JAXD_TOKEN, JAXD_TOKEN_FILE, then the file that `jaxd token` writes",
        more="; made when an address is `tls://` and there is none",
    )
    token_dir: str | None = _access(
        _FOLDER,
        "folder of named tokens, as made by `jaxd token --name`, or `none`",
        shown="the folder of `jaxd token --name`",
        more=". Read again when they change, see [several people](security.md#several-people)",
    )
    allow_uids: tuple[int, ...] = _access(
        _each(parse_user, "USER"),
        "another user, by number or name, that may connect to the Unix socket, and so run code as "
        "the server's user; repeatable",
        default=(),
        more=". The server prints the address for them, with its own user (`?uid=`)",
        flag="--allow-uid",
    )
    tls_cert: str | None = _access(
        _FOLDER,
        "certificate for tls:// addresses, which clients verify by host name",
        shown="a self-signed one, which clients verify by fingerprint",
        more="; the file includes the intermediate certificates of its CA",
    )
    tls_key: str | None = _access(_FOLDER, "key of the certificate", shown="in the same file")
    advertise: str | None = _access(
        {"type": parse_name, "metavar": "HOST[:PORT]"},
        "name of this machine in the address that is printed for other machines",
        shown="its host name",
    )
    insecure_plaintext: bool = _access(
        _SWITCH,
        "listen on network interfaces without encryption: all traffic can be read and changed; "
        "clients need tcp://…?insecure=1",
        default=False,
        more=". Accepts connections that may be intercepted",
    )
    allow_unauthenticated_loopback: bool = _access(
        _SWITCH,
        "let every user and program of this machine run code here over loopback TCP; clients "
        "without a token need tcp://…?insecure=1",
        default=False,
    )
    worker_per_principal: bool = _isolation(
        _SWITCH,
        "a worker process and cache for each user and account; if root starts the server, it runs "
        "as that user of this machine, or as one of --worker-uids",
        default=False,
        more="; for people who do not trust each other, see "
        "[a worker for each](security.md#a-worker-for-each)",
    )
    worker_uids: tuple[int, int] | None = _isolation(
        {"type": parse_users, "metavar": "FIRST-LAST"},
        "unused uids for the workers of accounts; `none`: all workers run as the server's user",
        more=". Such as `70000-70999`, two at least, if root starts the server, which needs one "
        "of them for itself",
    )
    max_workers: int = _isolation(
        _COUNT, "workers of principals at a time; further clients get Busy", default=8
    )
    accept: Literal["code", "exported"] = _content(
        {"choices": ("code", "exported")},
        "code: functions, which run in the server; exported: only programs that clients have "
        "traced, and data",
        default="code",
        more="; see [programs instead of code](security.md#programs-instead-of-code)",
    )
    allow_targets: tuple[str, ...] = _content(
        _each(str, "NAME"),
        "with exported, native code that programs may call beside jax's own; its shapes and "
        "attributes are not checked; repeatable",
        default=(),
        flag="--allow-target",
    )
    devices: str | None = _device(
        {"type": parse_gpus, "metavar": "LIST"},
        "GPUs to use, by the numbers or UUIDs of `nvidia-smi -L`, such as 0,1",
        shown="all",
        more=". See [GPUs](gpu.md)",
    )
    no_device: bool = _device(
        _SWITCH,
        "take no device: compile and keep programs for processes that run them",
        default=False,
        more=", see [a server without a device](place.md#a-server-without-a-device)",
    )
    devices_per_session: int = _device(
        _COUNT,
        "devices of one client process, as far as there are enough; its calls run on the first",
        default=1,
        more=". See [several devices](devices.md#which-device-a-call-runs-on)",
    )
    device_memory_fraction: float | None = _device(
        _SHARE, "share of each GPU's memory for arrays and programs", shown="0.75"
    )
    preallocate: bool | None = _device(
        _YES_NO,
        "allocate the GPU's memory at the start, or on demand",
        shown="at the start",
        more="; on demand in a server that a first call starts, and in workers of "
        "`--worker-per-principal`",
    )
    max_frame_bytes: int = _limit(
        _SIZE, "largest message received, such as 512M", default=8 * GIB, shown="8G"
    )
    max_result_bytes: int = _limit(_SIZE, "largest result sent", default=8 * GIB, shown="8G")
    budget_bytes: int = _limit(
        _SIZE,
        "memory of messages",
        default=_default_budget_bytes,
        shown="a quarter of the memory",
        more=", over all connections; at least 1G",
    )
    disk_bytes: int = _limit(_SIZE, "size of the cache folder", default=10 * GIB, shown="10G")
    principal_disk_bytes: int = _limit(
        _SIZE,
        "part of the cache folder for one client's user, whose own programs are evicted first",
        default=0,
        shown="all of it",
    )
    max_calls: int = _limit(
        _COUNT,
        "waiting calls",
        default=1000,
        more=", for a build or behind long calls. Clients repeat further ones, and raise `Busy` "
        "after a minute or at `timeout_s`",
    )
    call_share: float = _limit(
        _SHARE,
        "share of --max-calls for one client's user, and of --budget-bytes beside other users",
        default=0.5,
    )
    max_connections: int = _limit(
        _COUNT,
        "clients at a time",
        default=4000,
        more="; others wait up to a minute. An idle one costs 50 kB, and no thread",
    )
    slots: int = _limit(_COUNT, "calls in flight on one connection", default=32)
    threads: int = _limit(_COUNT, "calls that run at a time", default=8)
    builds: int = _limit(
        _COUNT,
        "functions that are traced and compiled at a time",
        default=_default_builds,
        shown="half of the cores, at least 2",
        more=". One that takes more than 2 s (half a second where a builder traces it), or that no "
        "call waits for any longer, lets another one begin beside it, up to twice as many",
    )
    max_executables: int = _program(_COUNT, "executables, whatever their size", default=400)
    program_bytes: int = _program(
        _SIZE,
        "host memory of programs",
        default=_default_budget_bytes,
        shown="a quarter of the memory",
        more="; at least 1G",
    )
    device_program_bytes: int | None = _program(
        _SIZE, "device memory of programs", shown="a tenth of the device's memory"
    )
    preload: int = _program(
        _COUNT,
        "programs that are read from the disk when a worker starts, those used last first",
        default=0,
        shown="none",
        more=", for the first device, beside the calls and at the lowest priority, into half of "
        "these limits. The first call of such a program finds it ready",
    )
    map_share: float = _program(
        _SHARE,
        "share of vm.max_map_count for memory maps of the worker",
        default=0.5,
        more=". A process that reaches vm.max_map_count dies. A large program takes 150 maps",
    )
    memory_share: float = _program(
        _SHARE,
        "share of the memory of machine or device, above which idle entries are evicted",
        default=0.92,
        more=", an eighth each second, if this server has a tenth of it or more: arrays that "
        "clients may send again, and the cheapest executables. In a container, of its memory",
    )
    principal_share: float = _program(
        _SHARE,
        "share of these limits on programs that a client's user keeps when others need room; "
        "at most an equal part for each",
        default=0.5,
        more=". A single user may use everything",
    )
    principal_build_s: float = _program(
        _SECONDS,
        "time of tracing and compiling for one client's user in an hour",
        default=0.0,
        shown="no limit",
        more="; then new programs are refused (`LimitExceeded`), and ready ones still answer",
    )
    value_bytes: int | None = _value(
        _SIZE,
        "memory of all arrays that stay on the server",
        shown="half of the device's memory",
        more="; more is refused with `ValuesFull`",
    )
    value_share: float = _value(_SHARE, "share of --value-bytes for one client's user", default=1.0)
    snapshot_bytes: int = _value(
        {"type": parse_size_or_0, "metavar": "SIZE"},
        "memory of snapshots that are kept for clients on other machines; 0: none",
        default=_default_snapshot_bytes,
        shown="an eighth of the machine's memory, at most 2 GiB",
        more="; [where snapshots lie](values.md#where-snapshots-lie)",
    )
    content_bytes: int | None = _value(
        _SIZE,
        "memory of arrays that clients send repeatedly over a network",
        shown="an eighth of the device's memory",
        more=", kept by their content so that they need not be sent again",
    )
    idle_timeout_s: float = _lifetime(
        _SECONDS,
        "stop after this long without connections and calls",
        default=0.0,
        shown="never; 3600 for a server that a first call started",
    )
    rest_after_s: float | None = _lifetime(
        _SECONDS,
        "release the device after this long without a call, until the next one",
        shown="never",
        more="; 600 for a server on a GPU or TPU that a first call started, and with "
        "`--worker-per-principal`. The worker ends, if it has no arrays of clients; the next one "
        "has all that is on disk",
    )
    max_call_s: float = _lifetime(
        _SECONDS,
        "how long a call may run",
        default=0.0,
        shown="no limit",
        more=". See [calls that nobody waits for](errors.md#calls-that-nobody-waits-for)",
    )
    max_build_s: float = _lifetime(
        _SECONDS,
        "how long calls wait for a build that has begun; a builder compiles for ten times as long",
        default=0.0,
        shown="no limit",
    )
    stop_grace_s: float = _lifetime(
        _SECONDS,
        "how long cancelled work may go on before its process is replaced, if no array is lost "
        "by that; 0: for ever",
        default=30.0,
    )
    drain_timeout_s: float = _lifetime(
        _SECONDS, "at a stop, kill a worker that runs no call after this long", default=30.0
    )
    recycle_after_s: float = _lifetime(
        _SECONDS,
        "replace the worker at this age",
        default=0.0,
        shown="never",
        more=", as `jaxd restart` does",
    )
    stuck_after_s: float = _lifetime(
        _SECONDS,
        "report a worker as stuck when it has not answered for this long",
        default=10.0,
        more="; see [when things break](reliability.md#workers-that-hang)",
    )
    recycle_stuck_s: float = _lifetime(
        _SECONDS,
        "kill a worker that has not answered for this long, if no user but the one whose call it "
        "runs has arrays in it",
        default=0.0,
        shown="never",
    )
    recycle_after_calls: int = _lifetime(
        _COUNT, "replace the worker after so many calls", default=0, shown="never"
    )
    recycle_above_bytes: int = _lifetime(
        _SIZE, "replace the worker when it has this much memory", default=0, shown="never"
    )
    standby: bool | None = _lifetime(
        _YES_NO,
        "keep a second process, without a device, that has imported jax and takes over when "
        "the worker ends; takes about 80 MB",
        shown="yes",
        more="; not for a server that a first call started, nor with `--worker-per-principal`",
    )
    session_grace_s: float = _lifetime(
        _SECONDS, "keep the session of a disconnected client this long", default=60.0
    )
    build_in: Literal["auto", "worker", "builder"] = _lifetime(
        {"choices": ("auto", "worker", "builder")},
        "process that traces and compiles: the worker, builders beside it, or (auto) builders "
        "while several clients call functions, and for what is large; on GPU and TPU the worker",
        default="auto",
        more=". See [decision 28](decisions/0028-builders.md)",
    )
    log_format: Literal["text", "json"] = _lifetime(
        {"choices": ("text", "json")},
        "lines for people or one JSON object a line",
        default="text",
    )
    metrics: str | None = _lifetime(
        {"type": parse_endpoint, "metavar": "HOST:PORT"},
        "serve metrics for Prometheus over HTTP at this address, such as 127.0.0.1:9464",
        more="; see [metrics](metrics.md). Needs `pip install 'jaxd[metrics]'`, and beyond "
        "loopback `--metrics-token-file`",
    )
    metrics_token_file: str | None = _lifetime(
        _FOLDER,
        "file with the token that whoever reads the metrics has to send, as made by `jaxd token`",
    )
    auto: bool = _lifetime(_SWITCH, SUPPRESS, default=False)  # started by a first call
    snapshot_dir: str = _lifetime(_FOLDER, SUPPRESS, default="")  # made by the host; empty: none

    def read_token(self) -> str | None:
        """The token that clients on TCP and TLS have to prove; None: there is none.

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
        """The folder of named tokens, which may be missing; None: none are accepted."""
        folder = self.token_dir
        return None if folder == "none" else folder or default_token_dir()

    @property
    def keeps_standby(self) -> bool:
        """Whether the next worker is started ahead."""
        if self.standby is None:
            return not (self.auto or self.worker_per_principal)
        return self.standby

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values, for `from_json`."""
        return asdict(self) | {"listen": [str(address) for address in self.listen]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServerOptions:
        """The options that `to_json` wrote.

        Raises:
            TypeError: when `data` has an option that this version has not.
        """
        content: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in data.items()
        }
        return cls(**content | {"listen": tuple(map(Address.parse, data["listen"]))})


_EXAMPLES = """\
examples:
  jaxd serve
      this user, this machine: a Unix socket that no other user can reach
  jaxd token; jaxd serve --listen unix:///run/jaxd/sock --listen tcp://127.0.0.1
      also over TCP, for clients with the token
  jaxd serve --listen tls://0.0.0.0:18861
      for other machines: makes token and certificate, prints clients' address

Ctrl-C or SIGTERM finishes the running calls and stops; a second stops at once.
"""


def parse_arguments(argv: Sequence[str] | None = None) -> ServerOptions:
    """The options of a command line (default: `sys.argv[1:]`).

    The token file is, in this order: `--token-file`; none when `JAXD_TOKEN` has the token itself;
    `JAXD_TOKEN_FILE`; the file that `jaxd token` writes, if it exists.

    Raises:
        SystemExit: with 2 after a usage message; with 0 after `--help`.
    """
    parser = _parser()
    given = vars(parser.parse_args(argv))
    store = given.get("store") or os.environ.get("JAXD_STORE") or _NONE
    is_named = store == _NONE or os.path.isabs(store) or "://" in store
    if not is_named:  # this process may be in another folder
        parser.error(f"JAXD_STORE has to be an absolute path or a URL, and is {store!r}")
    given["store"] = None if store == _NONE else store
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


_FIRST_PAGE: Final = frozenset(
    {
        "listen",
        "cache_dir",
        "store",
        "token_file",
        "allow_uids",
        "tls_cert",
        "worker_per_principal",
        "devices",
        "device_memory_fraction",
        "disk_bytes",
        "idle_timeout_s",
        "log_format",
    }
)
"""What `--help` lists; `--help-all` has everything."""


class _FirstPage(argparse.Action):
    """`--help`: the options that most people need."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        _parser(_FIRST_PAGE).print_help()
        parser.exit()


def _parser(shown: Container[str] | None = None) -> Parser:
    """The parser of all options; `shown` are those that its help lists, by default all."""
    parser = Parser(
        prog="jaxd serve",
        usage="jaxd serve [OPTION ...]",
        description="Own the accelerator, keep compiled functions warm, and answer calls.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # ServerOptions holds the defaults
        allow_abbrev=False,
        add_help=False,
    )
    about = parser.add_argument_group("help")
    about.add_argument("-h", "--help", action=_FirstPage, nargs=0, help="the usual options")
    about.add_argument(
        "--help-all", action="help", help=f"all {len(fields(ServerOptions)) - 2} options"
    )
    names = dict.fromkeys(words_of(option).group for option in fields(ServerOptions))
    groups = {name: parser.add_argument_group(name) for name in names}
    for option in fields(ServerOptions):
        words = words_of(option)
        text = f"{words.help} (default: {words.shown})" if words.shown else words.help
        if shown is not None and option.name not in shown:
            text = SUPPRESS
        groups[words.group].add_argument(words.flag, dest=option.name, help=text, **words.argument)
    return parser
