"""Where a server is: Unix sockets, TCP, TLS and ssh, each written as a URL and parsed once.

And where the director of a pool of servers is: over TLS `pool://`, else as in `pool+unix://`.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from jaxd_protocol.errors import ConfigurationError

DEFAULT_TCP_PORT = 18861
"""The port that rpyc's own examples use, and the seed of this project with them."""

MAX_PATH_BYTES: Final = 107
"""Of a Unix socket's path: `sun_path` of unix(7) is 108 bytes with the final zero."""

ADDRESS_FORMATS: Final = (
    "unix:///absolute/path, tcp://host:port, tls://host:port, ssh://user@host or, of a pool, "
    "pool://host:port#sha256=…"
)

_POOL: Final = re.compile(r"pool(?:\+(unix|tcp))?://")

_PIN: Final = r"sha256=([0-9a-fA-F]{64})"
_HOST_NAME: Final = r"(?!-)[^\s/@:#'\"`$;&<>|(){}]+"
"""A host or user for ssh: one that begins with a dash would be an option of ssh, and other signs
have a meaning in a shell, to which a ProxyCommand of the user's passes it."""


class Address(NamedTuple):
    """One address at which a server can be reached.

    Attributes:
        kind: `"unix"`, `"tcp"`, `"tls"` (TCP, encrypted) or `"ssh"` (a remote Unix socket).
        host: the machine; empty for Unix.
        port: the port (0: any free one, for listeners; for ssh: the one that ssh chooses).
        path: the absolute path of the Unix socket; empty for TCP, and for ssh where it is found on
            the remote machine.
        user: the login for ssh; empty: ssh chooses.
        pin: for TLS the SHA-256 of the server's certificate in 64 hex digits; empty: it is
            checked by name.
        insecure: for TCP whether to accept a server that requires no proof, or a connection on
            which a relay cannot be excluded.
        uid: for Unix and ssh a user whose server is accepted, beside this user's and root's.
        is_pool: whether it is that of the director of a pool, which says where its servers are.
        ticket: what a relay of a director wants to see before it passes anything on; never shown.
    """

    kind: Literal["unix", "tcp", "tls", "ssh"]
    host: str = ""
    port: int = 0
    path: str = ""
    user: str = ""
    pin: str = ""
    insecure: bool = False
    uid: int | None = None
    is_pool: bool = False
    ticket: str = ""

    @classmethod
    def unix(cls, path: str) -> Address:
        """The address of the Unix socket at the absolute `path`."""
        return cls("unix", path=path)

    @classmethod
    def tcp(cls, host: str, port: int = DEFAULT_TCP_PORT) -> Address:
        """The address of a TCP port."""
        return cls("tcp", host=host, port=port)

    @classmethod
    def tls(cls, host: str, port: int = DEFAULT_TCP_PORT, pin: str = "") -> Address:
        """The address of a TCP port with TLS."""
        return cls("tls", host=host, port=port, pin=pin)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads an address; IPv6 hosts stand in brackets.

            unix:///path[?uid=NUMBER]
            tcp://host[:port][?insecure=1]
            tls://host[:port][#sha256=FINGERPRINT]
            ssh://[user@]host[:port][/path][?uid=NUMBER]
            pool://host[:port][#sha256=FINGERPRINT], pool+unix://…, pool+tcp://…

        Raises:
            ConfigurationError: when the text is none of these.
        """
        director = _POOL.match(text.strip())
        if director is not None:
            place = text.strip()[director.end() :]
            way = director[1]
            found = cls.parse(f"{way}://{place}") if way else cls._parse_tls(text, place)
            return found._replace(is_pool=True)
        scheme, separator, rest = text.strip().partition("://")
        if separator and scheme == "tls" and rest:
            return cls._parse_tls(text, rest)
        rest, mark, more = rest.partition("?")
        if separator and scheme == "tcp" and rest:
            if mark and more != "insecure=1":
                raise ConfigurationError(
                    f"{text!r} has something behind the ? that is not insecure=1; "
                    f"use {ADDRESS_FORMATS}."
                )
            host, port = _host_and_port(text, rest, DEFAULT_TCP_PORT)
            return cls("tcp", host, port, insecure=bool(mark))
        uid = _uid(text, more) if mark and scheme in ("unix", "ssh") else None
        if separator and scheme == "unix" and rest.startswith("/"):
            return cls("unix", path=rest, uid=uid)
        if separator and scheme == "ssh" and rest:
            return cls._parse_ssh(text, rest)._replace(uid=uid)
        raise ConfigurationError(
            f"{text!r} is not an address that jaxd knows; use {ADDRESS_FORMATS}."
        )

    @classmethod
    def _parse_tls(cls, text: str, rest: str) -> Address:
        place, mark, fragment = rest.partition("#")
        pin = re.fullmatch(_PIN, fragment.replace(":", ""))  # openssl prints it with colons
        if mark and pin is None:
            raise ConfigurationError(
                f"{text!r} does not name a certificate; use tls://host:port#sha256= and its 64 "
                "hex digits, as the server prints them when it starts."
            )
        host, port = _host_and_port(text, place, DEFAULT_TCP_PORT)
        return cls.tls(host, port, pin[1].lower() if pin else "")

    @classmethod
    def _parse_ssh(cls, text: str, rest: str) -> Address:
        place, slash, path = rest.partition("/")
        user, at, machine = place.rpartition("@")
        host, port = _host_and_port(text, machine, 0)
        if not re.fullmatch(_HOST_NAME, host.replace(":", "")) or (
            at and not re.fullmatch(_HOST_NAME, user)
        ):
            raise ConfigurationError(f"{text!r} has no usable user or host; use {ADDRESS_FORMATS}.")
        return cls("ssh", host, port, slash + path if path else "", user)

    @property
    def place(self) -> tuple[str, int]:
        """Host and port for sockets: `localhost` is 127.0.0.1 for both ends.

        Else one of them may use ::1, where another user may listen.
        """
        return "127.0.0.1" if self.host == "localhost" else self.host, self.port

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can reach the address."""
        if self.kind == "ssh":
            return False
        if self.kind == "unix" or self.host == "localhost":
            return True
        import ipaddress  # a client's start does not need it

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_network(self) -> bool:
        """Whether data to it may cross a network, so that saving traffic is worthwhile."""
        return self.kind != "unix"

    @property
    def needs_token(self) -> bool:
        """Whether both ends prove that they hold the token."""
        return self.kind in ("tcp", "tls")

    @property
    def advice(self) -> str:
        """What to do where no server answers at it, other than the local one."""
        if self.is_pool:
            return "Start the pool (jaxd pool up pool.toml), or set JAXD_SERVER to another address."
        there = self._replace(pin="", insecure=False, uid=None)  # without what is for clients only
        if self.is_loopback:
            return f"Start one there (jaxd serve --listen {there}), or set JAXD_SERVER to another."
        start = f"jaxd serve --listen {there._replace(host='0.0.0.0')}"  # noqa: S104  for others
        return (
            f"Start one on {self.host} ({'jaxd start' if self.kind == 'ssh' else start}), or have "
            f"the way there checked from here (jaxd doctor --server {self})."
        )

    def __str__(self) -> str:
        if self.is_pool:
            text = str(self._replace(is_pool=False))
            return text.replace("tls", "pool", 1) if self.kind == "tls" else f"pool+{text}"
        whose = "" if self.uid is None else f"?uid={self.uid}"
        if self.kind == "unix":
            return f"unix://{self.path}{whose}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.kind == "ssh":
            user = f"{self.user}@" if self.user else ""
            return f"ssh://{user}{host}{f':{self.port}' if self.port else ''}{self.path}{whose}"
        more = f"#sha256={self.pin}" if self.pin else "?insecure=1" if self.insecure else ""
        return f"{self.kind}://{host}:{self.port}{more}"


RELAY_GREETING_BYTES: Final = 43
_RELAY: Final = b"jaxd relay "


def relay_greeting(ticket: str) -> bytes:
    """What a client says first to the relay of a director, before any byte for a member.

    Args:
        ticket: that the director has given it, 32 hex digits.
    """
    return _RELAY + ticket.encode("ascii", "replace").ljust(32)[:32]


def _uid(text: str, more: str) -> int:
    name, _, number = more.partition("=")
    if name != "uid" or not (number.isascii() and number.isdigit() and int(number) < 1 << 32):
        raise ConfigurationError(
            f"{text!r} has something else behind the ? than the number of a user; "
            f"use {ADDRESS_FORMATS}, with ?uid=999 where user 999 is the server's."
        )
    return int(number)


def _host_and_port(text: str, rest: str, default: int) -> tuple[str, int]:
    bracketed, bracket, tail = rest.partition("]")
    if bracket:
        host, port = bracketed.removeprefix("["), tail.removeprefix(":")
    else:
        host, _, port = rest.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and int(port) < 65536)):
        raise ConfigurationError(f"{text!r} has no usable host or port; use {ADDRESS_FORMATS}.")
    return host, int(port) if port else default
