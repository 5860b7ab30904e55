from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.accounts import add_account
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.certificates import certificate_of, fingerprint_of, server_context
from jaxd_protocol.network.tokens import default_token_file, read_token_file
from jaxd_server.auth.listeners import Listener
from jaxd_server.auth.tls_setup import (
    connection_hints,
    own_certificate_file,
    prepare_own_certificate,
    ready_for_tls,
)
from jaxd_server.config.options import ServerOptions
from tests.certificates import authority, signed

ANYWHERE = (Address.tls("0.0.0.0", 0),)


def test_without_tls_nothing_is_made(runtime: Path) -> None:
    """And nothing is printed."""
    options = ServerOptions()
    assert ready_for_tls(options) is options
    assert line_of(options, Address.tcp("localhost", 1)) == []
    assert not (runtime / "config").exists()


def test_token_and_certificate_are_made_once(runtime: Path) -> None:
    """On the first start; later ones find them."""
    options = ready_for_tls(ServerOptions(listen=ANYWHERE))
    assert options.token_file == default_token_file()
    token = read_token_file(default_token_file())
    assert options.tls_cert == options.tls_key == own_certificate_file()
    assert ready_for_tls(ServerOptions(listen=ANYWHERE)) == options
    assert read_token_file(default_token_file()) == token
    assert ready_for_tls(options) == options


def test_a_certificate_of_ones_own_is_checked_by_name(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So there is no fingerprint; a token of the environment is used, and is not printed."""
    monkeypatch.setenv("JAXD_TOKEN", "a-secret-for-tests-and-no-more")
    certificate, key = signed()
    options = ready_for_tls(ServerOptions(listen=ANYWHERE, tls_cert=certificate, tls_key=key))
    assert (options.token_file, options.tls_cert, options.tls_key) == (None, certificate, key)
    assert not (runtime / "config").exists()
    lines = line_of(options, Address.tls("gpu-host", 1))
    assert lines == ["export JAXD_SERVER=tls://gpu-host:1 JAXD_TOKEN=…"]


def test_a_certificate_that_cannot_be_used_ends_the_start(runtime: Path) -> None:
    """Before a worker is started for it."""
    options = ServerOptions(listen=ANYWHERE, tls_cert=signed().certificate, tls_key=authority().key)
    with pytest.raises(ConfigurationError, match="--tls-key"):
        ready_for_tls(options)


def test_the_line_names_the_certificate(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the server made is known by its fingerprint; the token lies under ~ there too."""
    monkeypatch.setenv("HOME", str(runtime))
    options = ready_for_tls(ServerOptions(listen=ANYWHERE))
    pin = fingerprint_of(certificate_of(own_certificate_file()))
    token = " JAXD_TOKEN_FILE=~/config/jaxd/token"
    here = socket.gethostname()
    for host, port, advertise, name in [
        ("0.0.0.0", 99, None, f"{here}:99"),
        ("::", 99, None, f"{here}:99"),
        ("gpu-host", 99, None, "gpu-host:99"),
        ("0.0.0.0", 99, "gpu.example.org", "gpu.example.org:99"),
        ("0.0.0.0", 99, "gpu.example.org:443", "gpu.example.org:443"),
    ]:
        lines = line_of(replace(options, advertise=advertise), Address.tls(host, port))
        assert lines == [f"export JAXD_SERVER='tls://{name}#sha256={pin}'{token}"]


def test_where_people_have_tokens_none_without_a_name_is_made(runtime: Path) -> None:
    """The line leaves the place for the file of whoever types it."""
    folder = str(runtime / "tokens")
    add_account("alice", folder)
    options = ready_for_tls(ServerOptions(listen=ANYWHERE, token_dir=folder))
    assert options.token_file is None
    (line,) = line_of(options, Address.tls("gpu-host", 1))
    assert line.endswith(" JAXD_TOKEN_FILE=…")


def line_of(options: ServerOptions, address: Address) -> list[str]:
    """What is printed for one listener."""
    with socket.socket() as sock:
        return connection_hints(options, [Listener(address, sock)])


def test_the_line_of_a_server_that_anybody_could_answer_for_says_so(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `?insecure=1` no client would speak with it; one with a token needs no such words."""
    beyond, near = Address.tcp("0.0.0.0", 99), Address.tcp("127.0.0.1", 99)
    opened = ServerOptions(allow_unauthenticated_loopback=True)
    assert line_of(opened, near) == ["export JAXD_SERVER='tcp://127.0.0.1:99?insecure=1'"]
    monkeypatch.setenv("JAXD_TOKEN", "a-secret-for-tests-and-no-more")
    assert line_of(opened, near) == []
    private = ServerOptions(insecure_plaintext=True, advertise="gpu-host")
    assert line_of(private, beyond) == [
        "export JAXD_SERVER='tcp://gpu-host:99?insecure=1' JAXD_TOKEN=…"
    ]


def test_the_line_for_other_users_names_whose_server_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else their clients would take it for a stranger's; root's is trusted as it is."""
    shared = ServerOptions(allow_uids=(1000,))
    place = Address.unix("/run/jaxd/s.sock")
    monkeypatch.setattr(os, "getuid", lambda: 999)
    assert line_of(shared, place) == ["export JAXD_SERVER='unix:///run/jaxd/s.sock?uid=999'"]
    assert line_of(ServerOptions(), place) == []
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert line_of(shared, place) == []


def test_it_is_made_once_and_found_again(runtime: Path) -> None:
    """With its key, in one file that only its owner can read; else it would prove nothing."""
    path = prepare_own_certificate()
    assert path == own_certificate_file() == str(runtime / "config" / "jaxd" / "tls.pem")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(os.path.dirname(path)) == ["tls.pem"]
    assert isinstance(server_context(path, path), ssl.SSLContext)
    before = certificate_of(path)
    assert prepare_own_certificate() == path
    assert certificate_of(path) == before
    os.chmod(path, 0o640)
    with pytest.raises(ConfigurationError, match=f"rm {path}"):
        prepare_own_certificate()


def test_servers_that_start_together_have_the_same_one(runtime: Path) -> None:
    """Whoever is first has made it for all."""
    found: list[bytes] = []
    together = threading.Barrier(4)

    def start() -> None:
        together.wait()
        found.append(certificate_of(prepare_own_certificate()))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_without_openssl(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to do with it and without it; so where the folder cannot be written."""
    monkeypatch.setenv("PATH", str(runtime))
    with pytest.raises(ConfigurationError, match=r"apt-get install openssl.*--tls-cert"):
        prepare_own_certificate()
    program = runtime / "openssl"
    program.write_text("#!/bin/sh\necho 'no such curve' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"no such curve.*--tls-cert"):
        prepare_own_certificate()


def test_a_folder_that_cannot_be_written(runtime: Path) -> None:
    """As with a file in its place."""
    (runtime / "config").touch()
    with pytest.raises(ConfigurationError, match="--tls-cert and --tls-key"):
        prepare_own_certificate()
