"""From another machine: a server that speaks TLS, and the line that it prints for its clients."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from jaxd import connect, errors
from jaxd_protocol.network.addresses import Address
from tests.live_server import TOKEN, LiveServer


def test_calls_over_tls(live: LiveServer) -> None:
    """Small ones and large ones, results that stay, and many at once."""
    with connect(live.tls, token=TOKEN) as client:
        f = client.persistent_call(lambda x, y: (x.sum(), x * y))
        x = np.arange(1 << 20, dtype="f4").reshape(1024, -1)
        small, large = f(x, 2.0)
        assert float(small) == float(x.sum(dtype="f4"))
        assert np.array_equal(np.asarray(large), x * 2)
        futures = [f.submit(x[:8], float(n)) for n in range(20)]
        assert [float(np.asarray(g.result()[1])[0, 1]) for g in futures] == list(range(20))
        assert client.info()["address"] == live.tls


def test_the_line_that_is_printed_is_all_that_is_needed(live: LiveServer) -> None:
    """Typed into a shell, with the token's file where it says."""
    program = f"{sys.executable} -c 'import jaxd; print(jaxd.connect().info()[\"address\"])'"
    environment = {k: v for k, v in live.environment.items() if not k.startswith("JAXD_")}
    done = subprocess.run(
        ["sh", "-c", f"{live.invitation}\n{program}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == live.tls
    assert live.invitation.count("\n") == 1


def test_a_lost_connection_is_made_again(live: LiveServer) -> None:
    """The session, and what lies in it, is the same."""
    with connect(live.tls, token=TOKEN) as client:
        kept = client.put(np.ones(3, "f4"))
        session = client.info()["session"]
        client.caller.session.connection().shut()
        assert float(client.persistent_call(lambda x: x.sum())(kept)) == 3.0
        assert client.info()["session"] == session


def test_another_certificate(live: LiveServer) -> None:
    """Nothing is sent to who shows one."""
    address = Address.parse(live.tls)._replace(pin="0" * 64)
    with pytest.raises(errors.AuthenticationFailed, match="another certificate"):
        connect(address, token=TOKEN)


def test_a_certificate_that_the_server_made_is_not_trusted_by_name(live: LiveServer) -> None:
    """Without its fingerprint anybody could have made it."""
    address = Address.parse(live.tls)._replace(pin="")
    with pytest.raises(errors.AuthenticationFailed, match="#sha256="):
        connect(address, token=TOKEN)


def test_the_token_is_asked_for_inside(live: LiveServer) -> None:
    """Who knows the certificate may be anybody."""
    with pytest.raises(errors.AuthenticationFailed, match="wrong token"):
        connect(live.tls, token="another-token-for-tests-only")


def test_tls_and_plain_text_are_not_taken_for_each_other(live: LiveServer) -> None:
    """Each error names the other address."""
    with pytest.raises(errors.AuthenticationFailed, match="tls://"):
        connect(live.tls.partition("#")[0].replace("tls://", "tcp://"), token=TOKEN)
    with pytest.raises(errors.ProtocolError, match="tcp://"):
        connect(live.tcp.replace("tcp://", "tls://") + f"#sha256={'0' * 64}", token=TOKEN)


def test_functions_over_tls_are_those_of_the_unix_socket(live: LiveServer) -> None:
    """What one compiled, the other finds."""

    def f(x: float) -> float:
        return x * 3 + 1

    with connect(live.unix) as near, connect(live.tls, token=TOKEN) as far:
        assert float(near.persistent_call(f)(1.0)) == 4.0
        before = far.statistics()
        assert float(far.persistent_call(f)(2.0)) == 7.0
        assert far.statistics().compiles == before.compiles
