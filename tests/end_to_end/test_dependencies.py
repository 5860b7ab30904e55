"""Packages that no key names: those that the packages which a function names import in turn."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import connect, errors
from tests.end_to_end.counting import BUILT, LOADED, costs
from tests.fake_packages import FakeSite
from tests.live_server import ROOT, LiveServer
from tests.server.staging import until


def scaled(x: Any) -> Any:
    """What it gives depends on a package that it does not name."""
    import highlib  # type: ignore[import-not-found]

    return highlib.scale(x)


def alone(x: Any) -> Any:
    """Names another package."""
    import sidelib  # type: ignore[import-not-found]

    return x + sidelib.TERM


def plain(x: Any) -> Any:
    """Names none."""
    return x - 1


def install(site: FakeSite, version: str, factor: int) -> None:
    """Installs the package that `highlib` imports."""
    site.install("lowlib", version, {"lowlib/__init__.py": f"FACTOR = {factor}\n"})


@pytest.fixture
def site(runtime: Path) -> FakeSite:
    """What the server has."""
    site = FakeSite(runtime / "theirs")
    scale = "def scale(x):\n    import lowlib\n    return x * lowlib.FACTOR\n"
    site.install("highlib", "2.0", {"highlib/__init__.py": scale})
    site.install("sidelib", "3.0", {"sidelib.py": "TERM = 5\n"})
    install(site, "1.0", 3)
    return site


@pytest.fixture
def start(start_live: Callable[..., LiveServer], site: FakeSite) -> Callable[..., LiveServer]:
    """Starts a server that imports from the site."""
    folders = [str(site.path), *(str(ROOT / name) for name in ("client", "server", "shared"))]
    more = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}
    return lambda *arguments, **options: start_live(*arguments, **more, **options)


@pytest.fixture
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """What is warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


def skews(seen: list[warnings.WarningMessage]) -> list[str]:
    """The warnings about packages."""
    return [str(one.message) for one in seen if one.category is errors.SkewWarning]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.1", pytest.param("1.0", marks=pytest.mark.soak)])
def test_the_next_client_gets_the_new_dependency(
    start: Callable[..., LiveServer], site: FakeSite, quiet: Any, version: str
) -> None:
    """At its first call: a newer version, or the same one with other files."""
    server = start()
    with connect(server.unix) as client:
        assert float(client.persistent_call(scaled)(2.0)) == 6.0
        install(site, version, 50)
        with connect(server.unix) as other:
            assert float(other.persistent_call(scaled)(2.0)) == 100.0
            until(lambda: other.statistics().epoch == 2)
        assert float(client.persistent_call(scaled)(3.0)) == 150.0
        assert server.close() == 0


@pytest.mark.slow
def test_other_programs_stay(start: Callable[..., LiveServer], site: FakeSite, quiet: Any) -> None:
    """Also on disk: they are traced and compiled no more, whatever else the worker has imported."""
    server = start()
    with connect(server.unix) as client:
        for function, value in ((scaled, 6.0), (alone, 7.0), (plain, 1.0)):
            assert float(client.persistent_call(function)(2.0)) == value
    install(site, "1.1", 50)
    with connect(server.unix) as client:
        until(lambda: client.statistics().epoch == 2)
        for function, value, cost in (
            (alone, 7.0, LOADED),
            (plain, 1.0, LOADED),
            (scaled, 100.0, BUILT),
        ):
            with costs(client) as spent:
                assert float(client.persistent_call(function)(2.0)) == value
            assert spent == cost


@pytest.mark.soak
def test_a_restarted_server_looks_at_dependencies(
    start: Callable[..., LiveServer], site: FakeSite
) -> None:
    """Its programs on disk are good for what they have run, and only that."""
    server = start()
    with connect(server.unix) as client:
        assert float(client.persistent_call(scaled)(2.0)) == 6.0
        assert float(client.persistent_call(alone)(2.0)) == 7.0
    assert server.close() == 0
    for name, version, factor, cost in (("a", "1.0", 3, LOADED), ("b", "1.1", 50, BUILT)):
        install(site, version, factor)
        server = start(name=name)
        with connect(server.unix) as client:
            with costs(client) as spent:
                assert float(client.persistent_call(scaled)(2.0)) == 2.0 * factor
            assert spent == cost
            with costs(client) as spent:
                assert float(client.persistent_call(alone)(2.0)) == 7.0
            assert spent == LOADED
        assert server.close() == 0


@pytest.mark.slow
@pytest.mark.parametrize("build_in", ["auto", pytest.param("builder", marks=pytest.mark.soak)])
def test_a_worker_with_arrays_has_new_programs_made(
    start: Callable[..., LiveServer], site: FakeSite, quiet: Any, build_in: str
) -> None:
    """Of new packages, by its builder, also where that has the old ones; others stay warm."""
    server = start("--build-in", build_in)
    with connect(server.unix) as client, connect(server.unix) as other:
        kept = client.persistent_call(scaled, results="remote")(np.ones(3, np.float32))
        step, side = client.persistent_call(scaled), client.persistent_call(alone)
        assert (float(step(2.0)), float(side(2.0))) == (6.0, 7.0)
        install(site, "1.1", 50)
        with costs(client) as spent:
            assert float(other.persistent_call(scaled)(2.0)) == 100.0
        assert spent == BUILT
        with costs(client) as spent:
            assert (float(step(2.0)), float(side(2.0))) == (100.0, 7.0)
        assert spent == {"executable_hits": 2}
        for version, factor in (("1.2", 70), ("1.0", 3)):
            install(site, version, factor)
            with connect(server.unix) as third:
                assert float(third.persistent_call(scaled)(2.0)) == 2.0 * factor
        assert client.statistics().epoch == 1
        assert np.asarray(kept).tolist() == [3.0] * 3
        assert skews(quiet) == []


@pytest.mark.soak
def test_a_worker_that_cannot_have_new_ones_says_so(
    start: Callable[..., LiveServer], site: FakeSite, quiet: Any
) -> None:
    """To each client, at the first call of such a function; with `strict` that is an error."""
    server = start("--build-in", "worker")
    with connect(server.unix) as client:
        kept = client.persistent_call(alone, results="remote")(np.ones(3, np.float32))
        step = client.persistent_call(scaled)
        assert float(step(2.0)) == 6.0
        install(site, "1.1", 50)
        until(lambda: (step(2.0), bool(skews(quiet)))[1])
        (text,) = skews(quiet)
        assert text.startswith("function 'scaled': dependency lowlib 1.0 → 1.1 where the server")
        with pytest.raises(errors.PackageMismatch, match=r"dependency lowlib 1\.0 → 1\.1"):
            client.persistent_call(scaled, strict=True)(2.0)
        found = step.why(2.0)
        assert (found.verdict, found.reason) == ("hit", "dependency lowlib 1.0 → 1.1")
        with connect(server.unix) as other:
            assert float(other.persistent_call(alone)(2.0)) == 7.0
            assert len(skews(quiet)) == 1
            assert float(other.persistent_call(scaled)(2.0)) == 6.0
            assert skews(quiet) == [text, text]
        del kept
        until(lambda: float(step(2.0)) == 100.0)


@pytest.mark.soak
def test_why_names_the_dependency(
    start: Callable[..., LiveServer], site: FakeSite, quiet: Any
) -> None:
    """Before it is built anew, and in the list of what was built."""
    server = start()
    with connect(server.unix) as client:
        assert float(client.persistent_call(scaled)(2.0)) == 6.0
    install(site, "1.1", 50)
    with connect(server.unix) as client:
        assert float(client.persistent_call(alone)(2.0)) == 7.0  # a new worker answers
        step = client.persistent_call(scaled)
        found = step.why(2.0)
        assert (found.verdict, found.reason) == ("compile", "dependency lowlib 1.0 → 1.1")
        assert [each.kind for each in found.differences] == ["dependency"]
        assert float(step(2.0)) == 100.0
    shown = server.run(
        "import sys; from jaxd.cli.__main__ import main; sys.exit(main(['why', '--recent', '1']))"
    )
    assert "dependency lowlib 1.0 → 1.1" in shown.stdout
