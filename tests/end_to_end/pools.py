"""Pools for tests: members in this process, or whole servers, and a director that a test plays."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxd import Client, connect
from jaxd_server.cache.peers import Members
from tests.client.fake_director import FakeDirector
from tests.live_server import LiveServer
from tests.server.in_process import InProcessServer


class PoolHere:
    """A pool whose members are parts of this process; `close` it.

    Args:
        folder: for the socket of its director; short.
        count: of members.
        **options: of each.

    Attributes:
        director: that of the pool.
        members: by name.
        client: a client of the pool.
    """

    def __init__(self, folder: Path, count: int = 3, **options: Any) -> None:
        self.director = FakeDirector(str(folder / "director"))
        self.members = {f"m{number}": InProcessServer(**options) for number in range(count)}
        for name, member in self.members.items():
            self.director.show(name, member.unix)
        self.client = connect(self.director.pool)
        self._ended: set[str] = set()

    @property
    def calls(self) -> dict[str, int]:
        """How many calls each member has answered, of those that have answered any."""
        counts = {n: int(m.counters.snapshot()["calls"]) for n, m in self.members.items()}
        return {name: count for name, count in counts.items() if count}

    def kill(self, name: str) -> None:
        """Ends a member, with all its connections; the director does not know of it."""
        self._ended.add(name)
        member = self.members[name]
        for endpoint in member.endpoints:
            endpoint.close()
        for channel in list(member.parts._worker_context.traffic._open):
            channel.stream.shutdown()
        member.close()

    def close(self) -> None:
        """Ends all of it."""
        self.client.close()
        self.director.close()
        for name in self.members.keys() - self._ended:
            self.members[name].close()


class PoolOfServers:
    """A pool of whole servers; `close` it.

    Args:
        folder: for their files; short.
        count: of members.
        are_peers: whether they know each other, as those that a director has started.
        variables: of their environment.

    Attributes:
        director: that of the pool.
        members: by name.
        environment: for client processes that are to use it.
    """

    def __init__(
        self, folder: Path, count: int, *, are_peers: bool = False, **variables: str
    ) -> None:
        self._folder = folder
        self._are_peers = are_peers
        self._variables = variables
        self._numbers = itertools.count()
        self.director = FakeDirector(str(folder / "director"))
        self.members: dict[str, LiveServer] = {}
        for _ in range(count):
            self.add()
        server = next(iter(self.members.values()))
        self.environment = server.environment | {"JAXD_SERVER": self.director.pool}

    def add(self, *arguments: str) -> str:
        """Starts one more member, with these arguments beside the others; its name."""
        name = f"m{next(self._numbers)}"
        cache = {"JAXD_CACHE_DIR": str(self._folder / f"cache-{name}")}
        peers = ["--peers", str(self._peers_file(name))] if self._are_peers else []
        words = (*peers, *arguments)
        member = LiveServer(self._folder, *words, name=name, **cache | self._variables)
        self.members[name] = member
        for each in self.members if self._are_peers else ():
            self.tell(each)
        self.director.show(name, member.unix)
        return name

    def _peers_file(self, name: str) -> Path:
        return self._folder / f"{name}.members"

    def tell(self, name: str, **others: str) -> None:
        """Has a member know all members; `others` stand at these addresses."""
        known = {each: (member.tls,) for each, member in self.members.items()}
        known |= {each: (address,) for each, address in others.items()}
        draft = self._peers_file(f"{name}.draft")
        draft.write_text(Members(name, known).to_text())
        draft.rename(self._peers_file(name))

    def kill(self, name: str) -> None:
        """Ends a member as when its machine loses power; the director does not know of it."""
        member = self.members.pop(name)
        for pid in (member.process.pid, member.worker_pid()):
            os.kill(pid, signal.SIGKILL)
        member.close()

    def client(self) -> Client:
        """A client of this process."""
        return connect(self.director.pool)

    def close(self) -> None:
        """Ends all of it."""
        self.director.close()
        for member in self.members.values():
            assert member.close() == 0


@contextmanager
def pool_of_servers(
    count: int, *, are_peers: bool = False, **variables: str
) -> Iterator[PoolOfServers]:
    """A pool with a short folder of its own; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))  # sun_path has 107 bytes
    pool = PoolOfServers(folder, count, are_peers=are_peers, **variables)
    try:
        yield pool
    finally:
        pool.close()
        shutil.rmtree(folder)


def statistics(members: Mapping[str, Any], name: str) -> dict[str, int]:
    """A counter of each whole server, of those that are not zero."""
    found = {}
    for member_name, member in members.items():
        with connect(member.unix) as client:
            found[member_name] = int(client.caller.session.ask("statistics")[name])
    return {member_name: count for member_name, count in found.items() if count}
