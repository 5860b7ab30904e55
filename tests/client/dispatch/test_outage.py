"""For how long a server is tried to be reached again."""

from __future__ import annotations

import ssl
import time

import pytest

from jaxd.dispatch.retry import Outage, outlasted
from jaxd_protocol.errors import JaxdError, NoServer, ProtocolError, ServerStartFailed
from jaxd_protocol.network.addresses import Address

UNIX = Address.unix("/run/s.sock")
TCP = Address.tcp("host", 1)
SSH = Address.parse("ssh://host")


def caused(error: JaxdError, cause: BaseException | None) -> JaxdError:
    """An error with its cause."""
    error.__cause__ = cause
    return error


def later(grace_s: float, seconds: float) -> Outage:
    """An outage that has lasted for so long."""
    outage = Outage(grace_s)
    outage._began -= seconds
    return outage


REFUSED = caused(NoServer("refused"), ConnectionRefusedError(111, "refused"))
GONE = caused(NoServer("gone"), FileNotFoundError(2, "gone"))


@pytest.mark.parametrize(
    ("error", "address", "is_tried"),
    [
        (REFUSED, TCP, True),
        (REFUSED, UNIX, True),
        (caused(NoServer("unreachable"), OSError(113, "unreachable")), TCP, True),
        (caused(ProtocolError("broken off"), ConnectionResetError(104, "reset")), TCP, True),
        (caused(ProtocolError("broken off"), EOFError()), UNIX, True),
        (caused(ProtocolError("no TLS"), ssl.SSLEOFError()), TCP, True),
        (caused(ProtocolError("no TLS"), ssl.SSLError(1, "wrong version")), TCP, False),
        (caused(ProtocolError("no server"), ValueError("no JSON")), TCP, False),
        (GONE, UNIX, False),
        (caused(NoServer("not let in"), PermissionError("Permission denied")), SSH, False),
        (caused(NoServer("no login"), ConnectionError("it said nothing")), SSH, True),
        (ServerStartFailed("it ended"), UNIX, False),
        (NoServer("switched off"), UNIX, False),
    ],
)
def test_what_is_tried_again_for_long(error: JaxdError, address: Address, is_tried: bool) -> None:
    """What may pass: not what something else answers, and not what only a new server can mend."""
    assert (later(60.0, 3.0).pause_s(error, address, None) is not None) is is_tried
    assert later(60.0, 61.0).pause_s(error, address, None) is None


def test_a_socket_that_is_gone_may_be_made_again() -> None:
    """By a server that is being restarted just now."""
    assert later(60.0, 1.0).pause_s(GONE, UNIX, None) is not None
    assert later(0.5, 1.0).pause_s(GONE, UNIX, None) is None


def test_pauses_grow_and_end_with_the_callers_time() -> None:
    """So that many clients do not keep a server busy that has just started."""
    first, late = later(60.0, 0.0), later(60.0, 30.0)
    assert (first.pause_s(REFUSED, TCP, None) or 9) < 0.1
    assert (late.pause_s(REFUSED, TCP, None) or 0) >= 0.5
    assert (late.pause_s(REFUSED, TCP, time.monotonic() + 0.1) or 9) <= 0.1
    assert late.pause_s(REFUSED, TCP, time.monotonic() - 0.1) is None


def test_logins_are_tried_more_and_more_seldom() -> None:
    """Each is a process, and a line in a log; machines shut out who tries too often."""
    first, late = later(60.0, 0.0), later(60.0, 30.0)
    refused = caused(NoServer("no login"), ConnectionError("it said nothing"))
    assert 0.2 < (first.pause_s(refused, SSH, None) or 0) < 1.0
    assert (late.pause_s(refused, SSH, None) or 0) >= 5.0


def test_the_error_says_what_may_be_in_between() -> None:
    """A tunnel takes connections for a server that does not run."""
    broken = caused(ProtocolError("broken off"), EOFError())
    found = outlasted(broken, TCP, 60.0)
    assert isinstance(found, NoServer)
    assert found.may_repeat
    assert found.__cause__ is broken
    assert outlasted(REFUSED, TCP, 60.0) is REFUSED
