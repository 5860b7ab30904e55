from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jaxd_protocol.addresses import Address
from jaxd_server.arguments import parse_arguments
from jaxd_server.options import ServerOptions


def test_other_users_can_be_let_in(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By number or name; they travel to the worker."""
    found = parse_arguments(["--allow-uid", "1000", "--allow-uid", "root"])
    assert found.allow_uids == (1000, 0)
    assert ServerOptions.from_json(json.loads(json.dumps(found.to_json()))) == found
    with pytest.raises(SystemExit):
        parse_arguments(["--allow-uid", "no-such-user"])
    assert "no user 'no-such-user'" in capsys.readouterr().err


def test_tls_can_be_said(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are absolute, since the worker may run in another folder."""
    words = ["--tls-cert", "a.pem", "--tls-key", "a.key", "--advertise", "gpu:443"]
    found = parse_arguments(["--listen", "tls://0.0.0.0:1", *words])
    assert found.listen == (Address.tls("0.0.0.0", 1),)
    assert (found.tls_cert, found.tls_key) == (os.path.abspath("a.pem"), os.path.abspath("a.key"))
    assert found.advertise == "gpu:443"
    for wrong in (
        ["--listen", "ssh://host"],
        ["--listen", f"tls://h:1#sha256={'0' * 64}"],
        ["--advertise", "gpu:x"],
    ):
        with pytest.raises(SystemExit):
            parse_arguments(wrong)
    assert "an address for clients" in capsys.readouterr().err
