"""`jaxd serve --no-device`: a server that compiles and keeps programs, and runs none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import PlaceRefused
from jaxd.interop.local_programs import LoadedPrograms
from jaxd.tracing import here
from tests.end_to_end.counting import costs
from tests.end_to_end.test_here import EDITS, Edit, same
from tests.live_server import LiveServer, live_server, run_client

X = np.arange(6, dtype="f4").reshape(2, 3)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """One without a device."""
    with live_server("--no-device") as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    """A client that runs its calls itself."""
    with connect(server.unix, place="here") as client:
        yield client


def test_programs_are_compiled_once_and_run_here(server: LiveServer, client: Client) -> None:
    """A later client has the program by its key, without a trace at either end."""

    def affine(x: Any, w: Any = 2.0) -> Any:
        return {"y": x * w, "n": x.sum()}

    function = client.persistent_call(affine)
    with costs(client) as spent:
        for _ in range(3):
            same(function(X), jax.jit(affine)(X))
    assert (spent["compiles"], client.statistics().calls) == (1, 0)
    with connect(server.unix, place="here") as other:
        later = other.persistent_call(affine)
        with costs(other) as spent:
            same(later(X), jax.jit(affine)(X))
        assert not {"traces", "lowers", "compiles"} & spent.keys()
        assert later.why(X).place == "here: its program is loaded in this process"
        assert other.statistics().calls == 0


@pytest.mark.parametrize("edit", EDITS, ids=[edit.name for edit in EDITS])
def test_an_edit_is_another_program(client: Client, edit: Edit) -> None:
    """Also what a trace reads of the environment, although no call runs there."""

    def expected() -> Any:
        return jax.jit(lambda x: edit.function(x) + 0)(X)

    edit.back()
    function = client.persistent_call(edit.function)
    try:
        for change in (edit.back, edit.change, edit.back, edit.change):
            change()
            for _ in range(2):
                same(function(X), expected())
    finally:
        edit.back()
    assert client.statistics().calls == 0


def test_other_calls_are_told_where_to_go(server: LiveServer) -> None:
    """With `place="server"` or `"auto"`, and values; the error names the next step."""
    with connect(server.unix) as plain:
        function = plain.persistent_call(lambda x: x * 2)
        auto = plain.persistent_call(lambda x: x * 2, place="auto")
        acts: list[Callable[[Any], Any]] = [function, auto, plain.put, function]
        for act in acts:
            with pytest.raises(PlaceRefused, match=r"no device.*place='here'"):
                act(X)


def test_another_kind_of_device_compiles_by_itself(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As plain jax: the server has no compiler for it, and gives it no program of its own."""
    monkeypatch.setattr(here, "default_platform", lambda _: "gpu")
    function = client.persistent_call(lambda x: jnp.tanh(x) * 3)
    with costs(client) as spent, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            same(function(X), jax.jit(lambda x: jnp.tanh(x) * 3)(X))
    assert spent == {}
    assert "no compiler for" in function.why(X).place


def test_a_program_that_does_not_load_is_made_here(
    server: LiveServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And `why` says so."""

    def scaled(x: Any) -> Any:
        return jnp.sin(x) * 5

    same(client.persistent_call(scaled)(X), jax.jit(scaled)(X))
    here.wait_for_programs()
    load, loads = LoadedPrograms.program, list[int]()

    def fails_once(*given: Any) -> Any:
        loads.append(len(loads))
        if not loads[-1]:
            raise ValueError("damaged")
        return load(*given)

    monkeypatch.setattr(LoadedPrograms, "program", fails_once)
    with connect(server.unix, place="here") as other:
        later = other.persistent_call(scaled)
        same(later(X), jax.jit(scaled)(X))
        assert later.why(X).place == (
            "here: its program is loaded in this process. The server gave none: its program cannot "
            "be loaded here (ValueError: damaged)"
        )


def test_status_and_info_say_so(server: LiveServer) -> None:
    """For people, and for `jaxd doctor`."""
    done = run_client(
        "from jaxd.cli.__main__ import main; main()", "status", environment=server.environment
    )
    assert "none: calls run in processes with place='here'" in done.stdout, done.stderr
    with connect(server.unix) as plain:
        assert plain.info()["devices"] == [
            "none (--no-device): it keeps programs for processes that run them"
        ]


def test_a_later_server_has_them_on_disk(tmp_path: Path) -> None:
    """A process that traces nothing loads what another server has compiled."""
    program = """
import jax, jaxd, numpy as np
f = jaxd.persistent_call(lambda x: jax.numpy.tanh(x) * 4, place="here")
x = np.ones(4, "f4")
print(f.why(x).verdict, float(f(x)[0]) > 3, f.why(x).place)
"""
    for verdict in ("compile", "load"):
        with live_server("--no-device", "--cache-dir", str(tmp_path)) as server:
            done = run_client(program, environment=server.environment)
            assert done.stdout.split()[:4] == [verdict, "True", "here:", "its"], done.stderr
