from __future__ import annotations

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import DEFAULT_TCP_PORT, Address
from tests.ids import row


def test_an_address_is_read_and_written() -> None:
    """As the same text."""
    rows: list[tuple[str, Address]] = [
        ("unix:///run/jaxd/server.sock", Address.unix("/run/jaxd/server.sock")),
        ("unix:///a b%20c", Address.unix("/a b%20c")),
        ("tcp://gpu-host:99", Address.tcp("gpu-host", 99)),
        ("tcp://127.0.0.1:0", Address.tcp("127.0.0.1", 0)),
        ("tcp://[::1]:65535", Address.tcp("::1", 65535)),
        ("tls://gpu-host:99", Address.tls("gpu-host", 99)),
        (f"tls://[::1]:99#sha256={'0a' * 32}", Address.tls("::1", 99, "0a" * 32)),
        ("ssh://gpu-host", Address("ssh", "gpu-host")),
        (
            "ssh://ann@gpu-host:22/run/jaxd/s.sock",
            Address("ssh", "gpu-host", 22, "/run/jaxd/s.sock", "ann"),
        ),
        ("unix:///run/s?uid=999", Address("unix", path="/run/s", uid=999)),
        ("tcp://h:1?insecure=1", Address("tcp", "h", 1, insecure=True)),
        ("ssh://h/run/s?uid=0", Address("ssh", "h", 0, "/run/s", uid=0)),
        ("ssh://h?uid=999", Address("ssh", "h", uid=999)),
        ("ssh://ann@[fe80::1]:22", Address("ssh", "fe80::1", 22, "", "ann")),
        (
            f"pool://tls:99#sha256={'0a' * 32}",
            Address.tls("tls", 99, "0a" * 32)._replace(is_pool=True),
        ),
        ("pool+unix:///run/s?uid=9", Address("unix", path="/run/s", uid=9, is_pool=True)),
        ("pool+tcp://h:1", Address("tcp", "h", 1, is_pool=True)),
    ]
    for text, address in rows:
        with row((text, address)):
            assert Address.parse(text) == Address.parse(f" {text}\n") == address
            assert str(address) == text


def test_a_fingerprint_may_be_written_as_openssl_prints_it() -> None:
    """In capitals, with colons."""
    pin = ":".join(["AB"] * 32)
    assert Address.parse(f"tls://h:1#sha256={pin}").pin == "ab" * 32


@pytest.mark.parametrize("text", ["tcp://host", "tcp://host:", "tcp://[::1]", "tls://host"])
def test_the_port_may_be_left_out(text: str) -> None:
    """Then it is the one of rpyc's examples."""
    assert Address.parse(text).port == DEFAULT_TCP_PORT == 18861


NO_ADDRESSES = [
    "", "host", "host:1", "/run/sock", "unix://run/sock",
    "unix:/run", "unix://", "tcp://", "tcp://:1", "tcp:host:1",
    "http://h:1", "tcp://h:x", "tcp://h:-1", "tcp://h:65536", "tcp://h:1/x",
    "tcp://::1", "tcp://[::1", "tcp://[]:1", "tcp://h:²", "tls://", "ssh://",
    "ssh://a b", "ssh://-oProxyCommand=x", "ssh://-x@h", "ssh://@h", "ssh://h#x", "ssh://[-x]",
    "ssh://$(x)", "ssh://a;b@h",
    "tcp://h:1?insecure", "tcp://h:1?insecure=0", "tcp://h:1?", "tcp://h:1?uid=1",
    "unix:///s?", "unix:///s?uid=", "unix:///s?uid=ann", "unix:///s?insecure=1",
    "pool://", "pool+ssh://h", "pool+tls://h:1", "pool+pool://h:1",
    "unix:///s?uid=-1", "unix:///s?uid=4294967296", "ssh://h?x", "tls://h:1?insecure=1",
]  # fmt: skip


def test_what_is_no_address_says_what_is() -> None:
    """With all forms."""
    said = r"use unix:///absolute/path, tcp://host:port, tls"
    for text in NO_ADDRESSES:
        with row(text), pytest.raises(ConfigurationError, match=said):
            Address.parse(text)


@pytest.mark.parametrize("fragment", ["", "sha256=", "sha256=12", "sha1=" + "0" * 64, "0" * 64])
def test_what_is_no_fingerprint_says_what_is(fragment: str) -> None:
    """A pin that is not understood must not mean that none is checked."""
    with pytest.raises(ConfigurationError, match=r"#sha256= and its 64 hex digits"):
        Address.parse(f"tls://h:1#{fragment}")


def test_what_lies_on_the_way() -> None:
    """What may cross a network is saved; what is open to more than one user needs a token."""
    kinds = ["unix:///s", "tcp://localhost", "tls://h", "ssh://h"]
    assert [Address.parse(text).is_network for text in kinds] == [False, True, True, True]
    assert [Address.parse(text).needs_token for text in kinds] == [False, True, True, False]


def test_who_can_reach_an_address() -> None:
    """A name that is not `localhost` may mean anything."""
    rows: list[tuple[str, bool]] = [
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
        ("tls://127.0.0.1", True),
        ("tls://0.0.0.0", False),
        ("ssh://localhost", False),
    ]
    for text, loopback in rows:
        with row((text, loopback)):
            assert Address.parse(text).is_loopback is loopback


def test_an_address_is_a_value() -> None:
    """It can be a key, and does not change."""
    assert len({Address.tcp("h"), Address.tcp("h"), Address.unix("/h")}) == 2
    with pytest.raises(AttributeError):
        Address.tcp("h").port = 1  # type: ignore[misc]


def test_localhost_is_one_place() -> None:
    """For who listens and for who connects; its name stays what a certificate is checked by."""
    address = Address.parse("tls://localhost:9")
    assert (address.place, address.host) == (("127.0.0.1", 9), "localhost")
    assert Address.parse("tcp://[::1]:9").place == ("::1", 9)
