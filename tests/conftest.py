"""A world of its own for each test, and hosts to run in it."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from jaxd import Client, connect
from jaxd_protocol.packages.distributions import changed_since_first_seen
from tests import another_server, chosen_platform, xla_flags
from tests.another_server import AnotherServer
from tests.fake_packages import FakeSite
from tests.live_server import LiveServer
from tests.server.host_process import HostProcess

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--on-server ADDRESS`: the tests of clients use a server that runs already."""
    another_server.add_option(parser)
    parser.addoption(
        "--part",
        metavar="K/N",
        help="run part K of N of the tests: a test belongs to one of them by its name",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is imported that looks at the environment."""
    another_server.note(config)
    if not chosen_platform.is_cpu():
        os.environ.update(chosen_platform.environment())
    elif another_server.named_server() is None:  # which compiles as its users have it compile
        xla_flags.compile_fast()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Fast: what is made of ten thousand tests stays, so that looking for garbage finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest of the short files are not left for the end, where one process would wait."""
    items.sort(key=lambda item: item.path.parent != ROOT / "tests")
    part, _, parts = str(config.getoption("--part") or "1/1").partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--part {part}/{parts}: which part of how many, such as 1/2")
    kept = [one for one in items if crc32(one.nodeid.encode()) % int(parts) == int(part) - 1]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[one for one in items if one not in set(kept)])
        items[:] = kept


def pytest_sessionstart() -> None:
    """Before the first test uses it."""
    another_server.look()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what the markers say of a server that `--on-server` names."""
    if item.get_closest_marker("own_server") is not None:
        another_server.own_server_needed()
    if item.get_closest_marker("counts_builds") is not None:
        another_server.unused_server_needed()
    for marker in item.iter_markers("libraries"):
        another_server.libraries_needed(*marker.args)


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_the_user() -> Iterator[None]:
    """What runs in this process keeps nothing in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXD_CACHE_DIR", "none")
        patch.setenv("JAXD_FALLBACK", "error")  # no test passes because a call fell back
        for name, value in another_server.secrets().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module", autouse=True)
def _what_was_here_before_is_not_looked_at() -> None:
    """Many tests collect garbage: that takes a second where jax and the whole suite is searched."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short, private directory that holds every file of this test; processes inherit it."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))  # sun_path has 107 bytes
    for name in [name for name in os.environ if name.startswith("JAXD_")]:
        monkeypatch.delenv(name)
    for name, value in another_server.secrets().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JAXD_FALLBACK", "error")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    folders = (str(ROOT / name) for name in ("client", "server", "shared"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """A folder of installed packages from which this process imports; nothing of it stays known."""
    site = FakeSite(tmp_path)
    monkeypatch.syspath_prepend(site.path)
    before = set(sys.modules)
    yield site
    for name in sorted(sys.modules.keys() - before, reverse=True):  # a part before its package
        if str(site.path) in repr(sys.modules[name]):
            del sys.modules[name]
    shutil.rmtree(site.path)
    changed_since_first_seen()  # a later test would be warned of it


@pytest.fixture
def start_host(runtime: Path) -> Iterator[Callable[..., HostProcess]]:
    """Starts hosts that are ended with the test; takes what `HostProcess` takes."""
    hosts: list[HostProcess] = []

    def start(*arguments: str, **options: Any) -> HostProcess:
        hosts.append(HostProcess(*arguments, **options))
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


@pytest.fixture(scope="session")
def live() -> Iterator[LiveServer | AnotherServer]:
    """One real server for all tests that leave it as they found it."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    address = another_server.named_server()
    if address is not None:
        yield AnotherServer(address, directory)
    else:
        # What is traced twice depends on who else is connected; the builder has tests of its own.
        server = LiveServer(directory, "--build-in", "worker")
        yield server
        assert server.close() == 0
    shutil.rmtree(directory)


@pytest.fixture
def start_live(runtime: Path) -> Iterator[Callable[..., LiveServer]]:
    """Starts real servers that are ended with the test; takes what `LiveServer` takes."""
    servers: list[LiveServer] = []

    def start(*arguments: str, **options: Any) -> LiveServer:
        servers.append(LiveServer(runtime, *arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def arrays_die_with_workers(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients keep nothing to make their arrays again when a worker ends."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "0")


@pytest.fixture
def client(live: LiveServer) -> Iterator[Client]:
    """A client of the common server: over its Unix socket, when it is ours."""
    with connect(live.unix) as client:
        yield client
