from __future__ import annotations

import os
import ssl
import stat
import threading
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.certificates import certificate_of, server_context
from jaxd_server.auth.tls_setup import own_certificate_file, prepare_own_certificate


def test_it_is_made_once_and_found_again(runtime: Path) -> None:
    """With its key, in one file that only its owner can read, and nothing else is left."""
    path = prepare_own_certificate()
    assert path == own_certificate_file() == str(runtime / "config" / "jaxd" / "tls.pem")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(os.path.dirname(path)) == ["tls.pem"]
    assert isinstance(server_context(path, path), ssl.SSLContext)
    before = certificate_of(path)
    assert prepare_own_certificate() == path
    assert certificate_of(path) == before


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


def test_a_key_that_others_can_read_is_refused(runtime: Path) -> None:
    """It would prove nothing; the error says how to have another."""
    path = prepare_own_certificate()
    os.chmod(path, 0o640)
    with pytest.raises(ConfigurationError, match=f"rm {path}"):
        prepare_own_certificate()


def test_without_openssl(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to do with it and without it."""
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
