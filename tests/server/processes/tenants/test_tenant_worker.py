from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from jaxd_protocol.errors import CannotListen
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.supervisor import Supervisor
from jaxd_server.processes.supervision.tenant_settings import Tenant
from jaxd_server.processes.tenants.tenant_worker import TenantWorker


def opened(path: Path) -> TenantWorker:
    """Alice's, at a path."""
    tenant = Tenant("account:alice", "none")
    return TenantWorker.opened(tenant, "t", str(path), Supervisor(ServerOptions(), (), tenant))


@pytest.fixture
def place(runtime: Path) -> Iterator[TenantWorker]:
    """One whose worker has not been started."""
    place = opened(runtime / "a.sock")
    yield place
    place.close()


def visit(place: TenantWorker) -> socket.socket:
    """Somebody who is handed over."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(place.listener.address.path)
    return sock


def test_a_place_is_free_when_nobody_is_there_and_nobody_has_come(
    place: TenantWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its worker has begun to rest it is not; nor while somebody waits; nor once closed."""
    found = [place.is_vacant]
    monkeypatch.setattr(Supervisor, "is_resting", True)
    found.append(place.is_vacant)
    with visit(place):
        found.append(place.is_vacant)
    place.close()
    assert [*found, place.is_vacant] == [False, True, False, False]


def test_whoever_waits_is_sent_away(place: TenantWorker) -> None:
    """And the path is gone."""
    with visit(place) as sock:
        place.close()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert not os.path.exists(place.listener.address.path)


def test_a_path_is_given_up_before_the_socket_is(place: TenantWorker) -> None:
    """The next place of the same principal has it, and keeps it."""
    path = Path(place.listener.address.path)
    with pytest.raises(CannotListen):
        opened(path)
    place.release_path()
    place.release_path()
    following = opened(path)
    place.close()
    with visit(following):
        pass
    following.close()


def test_what_cannot_be_said_of_a_place_is_said(
    place: TenantWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever makes it fail; it does not count as idle then."""

    async def fail(self: Supervisor) -> NoReturn:
        raise TypeError("unhashable")

    async def play() -> tuple[dict[str, Any], float]:
        return await place.status(), await place.idle_s()

    monkeypatch.setattr(Supervisor, "status", fail)
    monkeypatch.setattr(Supervisor, "idle_s", fail)
    status, idle_s = asyncio.run(play())
    assert (status["worker_state"], idle_s) == ("unknown", 0.0)
