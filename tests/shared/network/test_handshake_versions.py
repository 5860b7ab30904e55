from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import pytest

from jaxd_protocol import PROTOCOL_VERSION, __version__
from jaxd_protocol.errors import ProtocolError, VersionMismatch
from jaxd_protocol.network.handshake import Peer, check_versions, local_peer
from tests.ids import row

HERE = local_peer({"jax": "0.10"})


def test_this_end_is_this_process() -> None:
    """With our own version beside those that are given."""
    assert HERE.protocol == PROTOCOL_VERSION
    assert HERE.python == sys.version_info[:2]
    assert HERE.magic == importlib.util.MAGIC_NUMBER.hex()
    assert HERE.versions == {"jaxd": __version__, "jax": "0.10"}


def test_an_end_comes_back_from_its_message() -> None:
    """As JSON."""
    assert Peer.from_message(json.loads(json.dumps(HERE.to_message()))) == HERE


def test_what_is_no_end_is_refused() -> None:
    """Whatever JSON can hold."""
    rows: list[dict[str, Any]] = [
        {"protocol": None},
        {"protocol": "x"},
        {"protocol": float("inf")},
        {"protocol": float("nan")},
        {"python": 3},
        {"python": [3]},
        {"python": [3, "x"]},
        {"python": [float("inf"), 1]},
        {"versions": None},
        {"versions": []},
    ]
    for change in rows:
        with row(change):
            with pytest.raises(ProtocolError, match="greeting"):
                Peer.from_message(HERE.to_message() | change)
            missing = {k: v for k, v in HERE.to_message().items() if k not in change}
            with pytest.raises(ProtocolError, match="greeting"):
                Peer.from_message(missing)


def test_another_python_says_what_to_start() -> None:
    """The whole command, for either side."""
    with pytest.raises(VersionMismatch) as caught:
        check_versions(HERE._replace(python=(3, 9), magic="610d0d0a"), HERE)
    server = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = str(caught.value)
    assert f"the client runs Python 3.9 and the server Python {server}" in text
    assert "where jaxd[server] is installed for it: python3.9 -m jaxd.cli serve" in text
    assert "docker run " in text
    assert "jaxd:py3.9)" in text
    assert f"run the client with Python {server}" in text


def test_another_bytecode_is_refused_too() -> None:
    """A pre-release of the same minor version may have one."""
    with pytest.raises(VersionMismatch):
        check_versions(HERE, HERE._replace(magic="00000000"))


def test_another_protocol_says_what_to_install() -> None:
    """With the versions of both."""
    other = HERE._replace(protocol=99, versions={"jaxd": "9.9"})
    with pytest.raises(VersionMismatch, match=r"protocol 99, the server .*same jaxd on both"):
        check_versions(other, HERE)


def test_other_packages_may_differ() -> None:
    """Their versions are for reports and warnings."""
    check_versions(HERE, local_peer({"jax": "9", "numpy": "3"}))
