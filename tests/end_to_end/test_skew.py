"""Packages that differ between client and server, and packages that change under a server."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect, errors
from jaxd.dispatch import async_call
from jaxd.dispatch.retry import RetryBudget
from jaxd_protocol.packages.distributions import changed_since_first_seen
from tests.end_to_end.gates import Gate, advice, in_thread, stop_at
from tests.fake_packages import FakeSite
from tests.live_server import ROOT, TOKEN, LiveServer
from tests.server.staging import until

pytestmark = pytest.mark.soak

NAME = "fake_factor"


def scaled(x: Any) -> Any:
    """What it gives depends on what is installed."""
    import fake_factor  # type: ignore[import-not-found]

    return x * fake_factor.FACTOR


def shifted(x: Any) -> Any:
    """Needs a package that the server does not have at first."""
    import comes_later  # type: ignore[import-not-found]

    return x + comes_later.TERM


@pytest.fixture
def site(runtime: Path) -> FakeSite:
    """The server's installed packages: version 1.0 of one."""
    site = FakeSite(runtime / "theirs")
    site.install(NAME, "1.0", {f"{NAME}/__init__.py": "FACTOR = 2\n"})
    return site


@pytest.fixture
def ours(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """This process's installed packages: none so far."""
    site = FakeSite(runtime / "ours")
    monkeypatch.syspath_prepend(site.path)
    yield site
    shutil.rmtree(site.path)
    changed_since_first_seen()  # forgets what was found there


def upgrade(site: FakeSite) -> None:
    """Installs version 1.1."""
    site.install(NAME, "1.1", {f"{NAME}/__init__.py": "FACTOR = 30  # longer\n"})


@pytest.fixture
def server(start_live: Callable[..., LiveServer], site: FakeSite) -> LiveServer:
    """A server that imports from its folder."""
    folders = [str(ROOT / name) for name in ("client", "server", "shared")]
    return start_live(PYTHONPATH=os.pathsep.join([str(site.path), *folders]))


@pytest.fixture
def older(ours: FakeSite) -> None:
    """This process has version 0.9."""
    ours.install(NAME, "0.9", {f"{NAME}/__init__.py": "FACTOR = 7\n"})


# a package changes under the server ---------------------------------------------------------------


@contextmanager
def outlasting(server: LiveServer, client: Client, gate: Gate) -> Iterator[None]:
    """Within it, the worker goes on with a call, until the client has got a warning."""
    with connect(server.unix) as busy, warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.TracedReadWarning)
        running = in_thread(busy.persistent_call(stop_at(gate.path)), 1.0)
        with gate.reached():
            yield
            until(lambda: client.caller.session.warning_queue.has_pending)
        assert float(running.result()) == 2.0


@pytest.mark.parametrize("how", ["call", "submit"])
def test_an_upgraded_package_is_used_at_once(
    server: LiveServer, site: FakeSite, runtime: Path, how: str
) -> None:
    """The worker is replaced, the call is made again there, and its caller is told why."""
    gate = Gate(runtime / "gate")
    with connect(server.unix) as client, connect(server.unix) as other:
        before = client.persistent_call(scaled)
        assert float(before(1.0)) == 2.0
        double = other.persistent_call(lambda x: x * 2)
        assert float(double(1.0)) == 2.0
        after = client.persistent_call(scaled, extra_key=1)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with outlasting(server, client, gate):
                upgrade(site)
                server.wait_for("worker_outdated")
                future = in_thread(lambda: after(1.0)) if how == "call" else after.submit(1.0)
            result = future.result()
        assert float(result) == 30.0
        (skew,) = (one for one in seen if one.category is errors.SkewWarning)
        assert f"{NAME} was changed from 1.0 to 1.1" in str(skew.message)
        if how == "call":
            assert skew.filename == __file__
        assert float(double(3.0)) == 6.0  # over a connection that was open all the time
        assert client.statistics().epoch == other.statistics().epoch == 2
        assert client.caller.session._draining == []
    (exited,) = (line for line in server.lines if line["event"] == "worker_exited")
    assert (exited["exit_code"], exited["restart_in_s"]) == (0, 0.0)


@pytest.mark.filterwarnings("ignore::jaxd.errors.TracedReadWarning")
@pytest.mark.filterwarnings("ignore::jaxd.errors.SkewWarning")
def test_calls_in_flight_are_finished_first(
    server: LiveServer, site: FakeSite, runtime: Path
) -> None:
    """They are answered by the worker that runs them; new ones wait for the next worker."""
    gate = Gate(runtime / "gate")
    with connect(server.unix) as client, connect(server.unix) as other:
        assert float(client.persistent_call(scaled)(1.0)) == 2.0
        warm = other.persistent_call(lambda x: x + 1)
        assert float(warm(1.0)) == 2.0
        running = in_thread(other.persistent_call(stop_at(gate.path)), 1.0)
        with gate.reached():
            upgrade(site)
            after = client.persistent_call(scaled, extra_key=1)
            calls = [in_thread(after, 1.0)]
            server.wait_for("worker_outdated")
            calls.append(in_thread(warm, 5.0))
        assert float(running.result()) == 2.0
        assert [float(call.result()) for call in calls] == [30.0, 6.0]
        assert client.statistics().epoch == 2


def test_a_submitted_call_of_which_there_is_no_copy_is_not_repeated(
    server: LiveServer, site: FakeSite, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of its arrays may have overwritten them since."""
    gate = Gate(runtime / "gate")
    monkeypatch.setattr(async_call, "_retry_budget", RetryBudget(100))
    with connect(server.tcp, token=TOKEN) as client:
        client.persistent_call(scaled)(1.0)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with outlasting(server, client, gate):
                upgrade(site)
                server.wait_for("worker_outdated")
                future = client.persistent_call(scaled, extra_key=1).submit(np.ones(1 << 16))
            error = future.exception()
        assert isinstance(error, errors.WorkerReplaced)
        assert [one.category for one in seen] == [errors.SkewWarning]
        assert "Repeat the call" in str(error)
        advice(error)
        assert float(client.persistent_call(scaled)(1.0)) == 30.0


# the server has other packages --------------------------------------------------------------------


def test_a_missing_package_can_be_installed_meanwhile(
    server: LiveServer, site: FakeSite, ours: FakeSite
) -> None:
    """The server looks again, and tells that its files are others."""
    ours.install("comes-later", "3.1", {"comes_later.py": "TERM = 1"})
    with connect(server.unix) as client:
        function = client.persistent_call(shifted)
        with pytest.raises(errors.MissingPackage):
            function(1.0)
        site.install("comes-later", "3.1", {"comes_later.py": "TERM = 10"})
        with pytest.warns(errors.SkewWarning, match="has other files on the server"):
            assert float(function(1.0)) == 11.0


def test_another_version_is_told_once(server: LiveServer, older: None) -> None:
    """For each function: however many programs are built of it."""
    with connect(server.unix) as client:
        function = client.persistent_call(scaled)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert float(function(1.0)) == 2.0
            assert np.asarray(function(np.ones(2))).tolist() == [2.0, 2.0]
            assert np.asarray(function.submit(np.ones(3)).result()).tolist() == [2.0, 2.0, 2.0]
        (only,) = seen
        assert str(only.message) == (
            f"function 'scaled' uses {NAME} 0.9 here and 1.0 on the server: results come from the "
            "server's."
        )
        assert only.filename == __file__


def test_with_strict_another_version_is_an_error(server: LiveServer, older: None) -> None:
    """Also where the program is warm, because somebody else was not strict."""
    with connect(server.unix) as client:
        strict = client.persistent_call(scaled, strict=True)
        for _ in range(2):
            with pytest.raises(errors.PackageMismatch, match=r"0\.9 here and 1\.0") as caught:
                strict(1.0)
            assert "strict=True" in advice(caught.value)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", errors.SkewWarning)
                assert float(client.persistent_call(scaled)(1.0)) == 2.0


def test_a_warning_can_be_made_an_error(server: LiveServer, older: None) -> None:
    """By Python's own filters; it harms nobody else who uses the connection."""
    with connect(server.unix) as client:
        function = client.persistent_call(scaled)
        with warnings.catch_warnings():
            warnings.simplefilter("error", errors.SkewWarning)
            with pytest.raises(errors.SkewWarning, match=r"0\.9 here"):
                function(1.0)
            assert float(function(1.0)) == 2.0  # it was said
        assert client.caller.session.connected
