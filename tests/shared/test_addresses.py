from __future__ import annotations

import pytest

from jaxd_protocol.addresses import DEFAULT_TCP_PORT, Address
from jaxd_protocol.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:///run/jaxd/server.sock", Address.unix("/run/jaxd/server.sock")),
        ("unix:///a b%20c", Address.unix("/a b%20c")),
        ("tcp://gpu-host:99", Address.tcp("gpu-host", 99)),
        ("tcp://127.0.0.1:0", Address.tcp("127.0.0.1", 0)),
        ("tcp://[::1]:65535", Address.tcp("::1", 65535)),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    """As the same text."""
    assert Address.parse(text) == Address.parse(f" {text}\n") == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["tcp://host", "tcp://host:", "tcp://[::1]"])
def test_the_port_may_be_left_out(text: str) -> None:
    """Then it is the one of rpyc's examples."""
    assert Address.parse(text).port == DEFAULT_TCP_PORT == 18861


NO_ADDRESSES = [
    "", "host", "host:1", "/run/sock", "unix://run/sock",
    "unix:/run", "unix://", "tcp://", "tcp://:1", "tcp:host:1",
    "http://h:1", "tcp://h:x", "tcp://h:-1", "tcp://h:65536", "tcp://h:1/x",
    "tcp://::1", "tcp://[::1", "tcp://[]:1", "tcp://h:²", "tls://h:1",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_says_what_is(text: str) -> None:
    """With both forms."""
    with pytest.raises(ConfigurationError, match=r"use unix:///absolute/path or tcp://host:port"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("unix:///sock", True),
        ("tcp://localhost", True),
        ("tcp://127.0.0.1", True),
        ("tcp://127.8.8.8", True),
        ("tcp://[::1]", True),
        ("tcp://0.0.0.0", False),
        ("tcp://[::]", False),
        ("tcp://192.168.1.1", False),
        ("tcp://localhost.example.org", False),
        ("tcp://example.org", False),
    ],
)
def test_who_can_reach_an_address(text: str, loopback: bool) -> None:
    """A name that is not `localhost` may mean anything."""
    assert Address.parse(text).is_loopback is loopback


def test_an_address_is_a_value() -> None:
    """It can be a key, and does not change."""
    assert len({Address.tcp("h"), Address.tcp("h"), Address.unix("/h")}) == 2
    with pytest.raises(AttributeError):
        Address.tcp("h").port = 1  # type: ignore[misc]
