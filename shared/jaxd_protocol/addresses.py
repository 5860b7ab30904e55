"""Where a server listens: `unix:///path` and `tcp://host:port`, parsed once."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jaxd_protocol.errors import ConfigurationError

__all__ = ["DEFAULT_TCP_PORT", "Address"]

DEFAULT_TCP_PORT = 18861
"""The port that rpyc's own examples use, and the seed of this project with them."""

_FORMS = "use unix:///absolute/path or tcp://host:port"


class Address(NamedTuple):
    """One place where a server can be reached.

    Attributes:
        kind: `"unix"` or `"tcp"`.
        host: the TCP host, empty for Unix.
        port: the TCP port (0: any free one, for listeners), 0 for Unix.
        path: the absolute path of the Unix socket, empty for TCP.
    """

    kind: Literal["unix", "tcp"]
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def unix(cls, path: str) -> Address:
        """The address of the Unix socket at the absolute `path`."""
        return cls("unix", path=path)

    @classmethod
    def tcp(cls, host: str, port: int = DEFAULT_TCP_PORT) -> Address:
        """The address of a TCP port."""
        return cls("tcp", host=host, port=port)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `unix:///path` or `tcp://host[:port]` (IPv6 hosts in brackets).

        Raises:
            ConfigurationError: when the text is neither.
        """
        scheme, separator, rest = text.strip().partition("://")
        if separator and scheme == "unix" and rest.startswith("/"):
            return cls.unix(rest)
        if separator and scheme == "tcp" and rest:
            return cls._parse_tcp(text, rest)
        raise ConfigurationError(f"{text!r} is not an address that jaxd knows; {_FORMS}.")

    @classmethod
    def _parse_tcp(cls, text: str, rest: str) -> Address:
        bracketed, bracket, tail = rest.partition("]")
        if bracket:
            host, port = bracketed.removeprefix("["), tail.removeprefix(":")
        else:
            host, _, port = rest.partition(":")
        if not host or (port and not (port.isascii() and port.isdigit() and int(port) < 65536)):
            raise ConfigurationError(f"{text!r} has no usable host or port; {_FORMS}.")
        return cls.tcp(host, int(port) if port else DEFAULT_TCP_PORT)

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can reach the address."""
        if self.kind == "unix" or self.host == "localhost":
            return True
        import ipaddress  # a client's start does not need it

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"
