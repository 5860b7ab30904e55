from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from jaxd_protocol.errors import AuthenticationFailed, ConfigurationError
from jaxd_protocol.network.certificates import (
    certificate_of,
    check_pin,
    client_context,
    fingerprint_of,
    server_context,
)
from tests.certificates import authority, signed


def test_nothing_older_than_tls_1_3() -> None:
    """On neither end."""
    for context in (server_context(*signed()), client_context(pinned=True)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3


def test_a_client_without_a_fingerprint_checks_the_name() -> None:
    """Against those whom the system trusts, or a CA that is named."""
    context = client_context(pinned=False, ca_file=authority().certificate)
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1
    assert client_context(pinned=False).verify_mode == ssl.CERT_REQUIRED


def test_a_fingerprint_is_that_of_openssl() -> None:
    """Of the first certificate in the file."""
    der = certificate_of(signed().certificate)
    assert len(fingerprint_of(der)) == 64
    check_pin(der, fingerprint_of(der), "tls://here:1")


def test_another_certificate_is_refused() -> None:
    """With what it is, and what to do when that is right."""
    other = fingerprint_of(certificate_of(authority().certificate))
    with pytest.raises(AuthenticationFailed, match=r"tls://here:1 .* line that it printed"):
        check_pin(certificate_of(signed().certificate), other, "tls://here:1")


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """Each error names the file and the option."""
    with pytest.raises(ConfigurationError, match=r"--tls-cert and --tls-key"):
        server_context(signed().certificate, authority().key)
    with pytest.raises(ConfigurationError, match=r"none\.pem.*--tls-cert"):
        server_context(str(tmp_path / "none.pem"), str(tmp_path / "none.pem"))
    with pytest.raises(ConfigurationError, match="JAXD_CA_FILE"):
        client_context(pinned=False, ca_file=str(tmp_path / "none.pem"))
    for name in ("none.pem", signed().key):
        with pytest.raises(ConfigurationError, match="--tls-cert"):
            certificate_of(str(tmp_path / name))
