"""Client settings: server address and credentials, from arguments, environment and config file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from jaxd_protocol.base.process import memory_bytes
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import DEFAULT_TCP_PORT, Address
from jaxd_protocol.network.tokens import (
    checked_token,
    config_dir,
    default_token_file,
    read_token_file,
)

REPLY_GRACE_S = 0.25
"""Seconds that a caller waits past its deadline for the server's own, better timeout error."""

Fallbacks = Literal["local", "error"]
"""What can become of a call that the server cannot answer."""

SNAPSHOT_S = 10.0
"""By default arrays on the server are copied so often, that they can be made again."""

MAX_SNAPSHOT_BYTES = 1 << 30
"""By default no process keeps more than this to make its arrays again."""

MAX_LINEAGE_S = 600.0
"""By default arrays whose calls ran longer are not made again; snapshots are closer together."""

Places = Literal["server", "here", "auto"]
"""Where calls run once their program is known; see docs/place.md."""

_CONFIG_TYPES: Mapping[str, type] = {
    "server": str,
    "token_file": str,
    "ca_file": str,
    "autostart": bool,
    "compress": bool,
    "device": int,
    "fallback": str,
    "lineage_s": int,
    "place": str,
    "snapshot_bytes": int,
    "snapshot_s": int,
    "verify": bool,
}


_NO_SERVER = "none"
"""In place of an address: functions run in this process."""

_EXAMPLES: Mapping[type, str] = {str: '"…"', bool: "true or false", int: "0"}


def config_file() -> str:
    """The user's file of lasting choices: `$XDG_CONFIG_HOME/jaxd/config.toml`."""
    return os.path.join(config_dir(), "config.toml")


class RecoverySettings(NamedTuple):
    """How much is done so that arrays can be made again.

    Attributes:
        interval_s: seconds between two snapshots; 0: nothing is kept, and nothing is made again.
        max_bytes: the most that is kept in this process, arguments of calls included.
        max_s: arrays are not made again whose calls, one after the other, ran longer than this.
    """

    interval_s: float
    max_bytes: int
    max_s: float = MAX_LINEAGE_S


class Settings:
    """The settings of one client. Immutable; compared by content.

    It is not a named tuple, because iterating over one would show the token.

    Attributes:
        server: the address to use; None: the local server of this environment.
        token: the token itself, never shown in a repr; None: see `token_file`.
        token_file: the file that holds the token; None: the one that `jaxd token` writes.
        ca_file: PEM file of the CAs for servers on TLS; None: those that this system trusts.
        autostart: whether a local server may be started when none runs.
        inline: whether functions run in this process, without any server.
        compress: whether arrays may be compressed on their way over a slow network.
        device: the index of the server's device that calls run on; None: the server chooses.
        fallback: what happens with calls that the server cannot answer: "local" or "error"; None:
            it depends, see `jaxd.tracing.fallback`.
        verify: whether programs are compared with what this process makes of their functions, see
            `jaxd.tracing.verification`.
        place: where calls run once their program is known: "server", "here" or "auto"; see
            `jaxd.tracing.here`.
        store: the store whose programs run in this process, which has no server; None: there is
            none, see `jaxd.tracing.from_store`.
        snapshot_bytes, snapshot_s, lineage_s: see `RecoverySettings`.
    """

    default_place: ClassVar[Places] = "server"
    """Where nothing else says it; for all of this process."""

    __slots__ = (
        "autostart",
        "ca_file",
        "compress",
        "device",
        "fallback",
        "inline",
        "lineage_s",
        "place",
        "server",
        "snapshot_bytes",
        "snapshot_s",
        "store",
        "token",
        "token_file",
        "verify",
    )

    def __init__(  # noqa: PLR0913, PLR0917  one for each setting, which nobody gives by position
        self,
        server: Address | None = None,
        token: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        autostart: bool = True,
        inline: bool = False,
        compress: bool = False,
        device: int | None = None,
        fallback: str | None = None,
        verify: bool = False,
        place: str = "server",
        snapshot_s: float = SNAPSHOT_S,
        snapshot_bytes: int = MAX_SNAPSHOT_BYTES,
        store: str | None = None,
        lineage_s: float = MAX_LINEAGE_S,
    ) -> None:
        self.server = server
        self.token = token
        self.token_file = token_file
        self.ca_file = ca_file
        self.autostart = autostart
        self.inline = inline
        self.compress = compress
        self.device = device
        self.fallback = fallback
        self.verify = verify
        self.place = place
        self.snapshot_s = snapshot_s
        self.snapshot_bytes = snapshot_bytes
        self.store = store
        self.lineage_s = lineage_s

    @property
    def retraces(self) -> bool:
        """Whether functions run in this process as `JAXD_RETRACE=1` says: where calls may run here.

        Then their Python runs here as well, once for each kind of call, and a debugger sees it.
        """
        return self.place != "server" and os.environ.get("JAXD_RETRACE", "") not in {"", "0"}

    def replaced(self, **changes: Any) -> Settings:
        """The same but for what is given; None stands for what is not."""
        given = {name: value for name, value in changes.items() if value is not None}
        return Settings(**dict(zip(self.__slots__, self._fields(), strict=True)) | given)

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    @classmethod
    def resolve(
        cls,
        server: Address | str | None = None,
        host: str | None = None,
        port: int | None = None,
        token: str | None = None,
    ) -> Settings:
        """The settings of this moment: arguments, else environment, else config file.

        Args:
            server: an address; see `jaxd_protocol.network.addresses`.
            host: a TCP host, instead of `server`; localhost when only `port` is given.
            port: a TCP port, instead of `server`; 18861 when only `host` is given.
            token: the token itself.

        Raises:
            ConfigurationError: when an address cannot be read, both `server` and `host` or
                `port` are given, or the config file is broken.
        """
        file = _read_config()
        environment = os.environ
        given = _address_of_arguments(server, host, port)
        named = environment.get("JAXD_SERVER")
        source = "JAXD_SERVER" if named else f"`server` in {config_file()}"
        named = named or file.get("server")
        is_inline = environment.get("JAXD_INLINE", "") not in {"", "0"}
        has_none = given is None and named == _NO_SERVER
        return cls(
            server=given or (None if has_none else _parse_address(named, source)),
            token=token or environment.get("JAXD_TOKEN", "").strip() or None,
            token_file=environment.get("JAXD_TOKEN_FILE") or file.get("token_file") or None,
            ca_file=environment.get("JAXD_CA_FILE") or file.get("ca_file") or None,
            autostart=environment.get("JAXD_AUTOSTART", "") != "0" and file.get("autostart", True),
            inline=is_inline or has_none,
            store=_store_of(environment) if has_none and not is_inline else None,
            compress=_switch("compress", file),
            device=_parse_device(environment.get("JAXD_DEVICE"), file.get("device")),
            fallback=_choice("fallback", file, get_args(Fallbacks), "local, or error"),
            verify=_switch("verify", file),
            place=_choice("place", file, get_args(Places), "server, here or auto")
            or cls.default_place,
            snapshot_s=_parse_number("JAXD_SNAPSHOT_S", file.get("snapshot_s", SNAPSHOT_S)),
            snapshot_bytes=int(
                _parse_number(
                    "JAXD_SNAPSHOT_BYTES", file.get("snapshot_bytes", _default_snapshot_bytes())
                )
            ),
            lineage_s=_parse_number("JAXD_LINEAGE_S", file.get("lineage_s", MAX_LINEAGE_S)),
        )

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__slots__ if name != "token"]
        return f"Settings({', '.join(shown)})"

    def read_token(self) -> str | None:
        """The token to prove, None when there is none; read again on each call.

        Raises:
            ConfigurationError: when a token file that was named is missing, or any that is used
                is empty or readable by others, or when the token can be guessed.
        """
        if self.token is not None:
            return checked_token(self.token, "the token that was given (or JAXD_TOKEN)")
        if self.token_file is not None:
            return read_token_file(os.path.expanduser(self.token_file))
        default = default_token_file()
        return read_token_file(default) if os.path.exists(default) else None


def _store_of(environment: Mapping[str, str]) -> str | None:
    named = environment.get("JAXD_STORE")
    return None if named in (None, "", "none") else named


def _address_of_arguments(
    server: Address | str | None, host: str | None, port: int | None
) -> Address | None:
    if host is None and port is None:
        return server if isinstance(server, Address) else _parse_address(server, "server")
    if server is not None:
        raise ConfigurationError(
            "both server and host or port are given. Leave out host and port, or server."
        )
    return Address.tcp(host or "localhost", DEFAULT_TCP_PORT if port is None else port)


def _parse_address(text: str | None, source: str) -> Address | None:
    if not text:
        return None
    try:
        return Address.parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from error


def _parse_device(text: str | None, from_file: int | None) -> int | None:
    if not text:
        return from_file
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(
            f"JAXD_DEVICE={text!r} is no device of a server. Give its index, such as 0; "
            "`jaxd devices` lists them."
        )
    return int(text)


def _parse_number(name: str, otherwise: float) -> float:
    """The number in a variable of the environment, if it is set."""
    text = os.environ.get(name, "")
    if not text:
        return otherwise
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < float("inf"):
        raise ConfigurationError(
            f"{name}={text!r} is no number that is 0 or more. Give one, or leave it out to have "
            f"{otherwise:g}."
        )
    return number


def _default_snapshot_bytes() -> int:
    """A sixteenth of the machine's memory, as far as that is known."""
    return min(MAX_SNAPSHOT_BYTES, (memory_bytes() // 16) or MAX_SNAPSHOT_BYTES)


def _switch(name: str, file: Mapping[str, Any]) -> bool:
    text = os.environ.get(f"JAXD_{name.upper()}")
    return text != "0" if text else bool(file.get(name, False))


def _choice(name: str, file: Mapping[str, Any], known: tuple[str, ...], words: str) -> str | None:
    """The value of a setting that has one of a few; None where nothing is said."""
    variable = f"JAXD_{name.upper()}"
    text = os.environ.get(variable) or file.get(name) or None
    if text and text not in known:
        source = variable if os.environ.get(variable) else f"`{name}` in {config_file()}"
        raise ConfigurationError(
            f"{source} is {text!r}. Write {words}, or leave it out to have the default."
        )
    return text


def _read_config() -> Mapping[str, Any]:
    path = config_file()
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}. Make it readable or remove it."
        ) from error
    import tomllib  # most clients have no such file

    with file:
        try:
            config = tomllib.load(file)
        except ValueError as error:  # no TOML, or no UTF-8
            raise ConfigurationError(f"{path} is not TOML: {error}. Correct that line.") from error
    for name, value in config.items():
        _check_config_value(path, name, value)
    return config


def _check_config_value(path: str, name: str, value: object) -> None:
    wanted = _CONFIG_TYPES.get(name)
    if wanted is None:
        known = ", ".join(_CONFIG_TYPES)
        raise ConfigurationError(f"{path}: {name!r} is not a setting; remove it (known: {known}).")
    if type(value) is not wanted or (wanted is int and value < 0):  # type: ignore[operator]
        example = _EXAMPLES[wanted]
        raise ConfigurationError(f"{path}: {name} must be written as {name} = {example}.")
