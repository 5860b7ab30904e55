"""What functions print, warn of and log on the server is seen where they are called."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import ResultError
from tests.live_server import LiveServer
from tests.warm_clients import run_light

X = np.arange(3, dtype=np.float32)
LOG = logging.getLogger("of_the_user")


def talk(x: Any) -> Any:
    """Says something in every way that there is, while it is traced and while it runs."""
    print("traced with", x.shape)
    print("no end", end="")
    print("!", file=sys.stdout, flush=True)
    print("an error", file=sys.stderr)
    LOG.info("%d layers", 3)
    LOG.debug("nobody wants to know")
    jax.debug.print("mean {m} of {name}", m=x.mean(), name="x")
    return x + 1


TRACED = "traced with (3,)\nno end!\n"


def test_prints_come_to_the_caller(
    client: Client, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Those of tracing at the first call, those of running at each, all before the result."""
    caplog.set_level(logging.INFO, "of_the_user")
    f = client.persistent_call(talk)
    np.testing.assert_array_equal(f(X), X + 1)
    assert capsys.readouterr() == (TRACED + "mean 1.0 of x\n", "an error\n")
    f(X * 2)
    assert capsys.readouterr() == ("mean 2.0 of x\n", "")
    records = [(r.name, r.levelname, r.getMessage(), r.funcName) for r in caplog.records]
    assert records == [("of_the_user", "INFO", "3 layers", "talk")]


class Flushed(io.StringIO):
    """A stream that notes what it held whenever it was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def flush(self) -> None:
        self.found.append(self.getvalue())


def test_what_a_function_flushes_is_flushed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole line, half a line, and nothing that it has not flushed."""

    def flush(x: Any) -> Any:
        print("whole", flush=True)
        print("half", end="", flush=True)
        print(" and the rest")
        return x * 5

    monkeypatch.setattr(sys, "stdout", Flushed())
    client.persistent_call(flush)(X)
    assert isinstance(sys.stdout, Flushed)
    assert sys.stdout.found == ["whole\n", "whole\nhalf"]
    assert sys.stdout.getvalue() == "whole\nhalf and the rest\n"


@pytest.mark.counts_builds
def test_output_of_tracing_comes_to_the_client_that_builds(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later one traces nothing, and sees only what the program itself outputs."""

    def outputs(x: Any) -> Any:
        print("traced")
        jax.debug.print("runs")
        return x + 5

    for traced in ("traced\n", ""):
        with connect(live.unix) as client:
            f = client.persistent_call(outputs)
            f(X), f(X)
            assert capsys.readouterr().out == traced + "runs\n" * 2


def test_cleared_functions_say_it_again(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """Because they are traced again."""

    def once(x: Any) -> Any:
        print("tracing once")
        return x * 3

    f = client.persistent_call(once)
    for _ in range(2):
        f(X), f(X)
        assert capsys.readouterr().out == "tracing once\n"
        f.clear()


def test_each_attempt_of_a_function_that_fails_is_heard(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no program, so it is traced at each call."""

    def fail(x: Any) -> Any:
        print("about to fail")
        raise KeyError("it failed")

    f = client.persistent_call(fail)
    for _ in range(2):
        with pytest.raises(KeyError, match="it failed"):
            f(X)
        assert capsys.readouterr().out == "about to fail\n"


@pytest.mark.slow
def test_what_is_printed_is_only_seen_by_its_client(live: LiveServer) -> None:
    """Several processes call the same program at once; each sees its own numbers, in order."""
    program = """
import sys
import numpy as np
from jaxd import persistent_call

@persistent_call
def show(x):
    import jax
    def step(_, c):
        jax.debug.print("{c}", c=c, ordered=True)
        return c + 1
    print("traced")
    return jax.lax.fori_loop(0, 20, step, x)

for _ in range(3):
    show(np.int32(sys.argv[1]))
"""
    found: dict[int, str] = {}

    def run(number: int) -> None:
        found[number] = live.run(program, str(number)).stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in (100, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, text in found.items():
        lines = "".join(f"{number + i}\n" for i in range(20))
        assert text.removeprefix("traced\n") == lines * 3
    assert "".join(found.values()).count("traced") == 1


class Own(UserWarning):
    """A category of the user's."""


def warned(x: Any) -> Any:
    warnings.warn("slow path", Own, stacklevel=1)
    warnings.warn("old name", DeprecationWarning, stacklevel=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden by the function itself", stacklevel=1)
    return x - 1


def test_warnings_obey_the_filters_of_the_caller(client: Client) -> None:
    """With category, file and line, as if it had been traced here."""
    f = client.persistent_call(warned)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "old", DeprecationWarning)
        np.testing.assert_array_equal(f(X), X - 1)
    first = warned.__code__.co_firstlineno + 1
    assert [(str(w.message), w.category, w.filename, w.lineno) for w in seen] == [
        ("slow path", Own, __file__, first)
    ]


def test_a_warning_can_be_an_error(client: Client) -> None:
    """In the thread of the call, as `-W error` asks for."""

    def deprecated(x: Any) -> Any:
        warnings.warn("do not", FutureWarning, stacklevel=1)
        return x * 0.5

    f = client.persistent_call(deprecated)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        with pytest.raises(FutureWarning, match="do not"):
            f(X)
    np.testing.assert_array_equal(f(X), X / 2)


@pytest.mark.counts_builds
def test_log_compiles(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Says what is compiled of this call, where it is set and when something is."""

    def logged(x: Any) -> Any:
        return x * 7

    f = client.persistent_call(logged)
    with jax.log_compiles(True):
        f(X)
        assert any(text.startswith("Compiling jit(logged)") for text in caplog.messages)
        assert any("Finished XLA compilation of jit(logged)" in text for text in caplog.messages)
        caplog.clear()
        f(X)
    f(X[:2])
    assert not caplog.messages


@pytest.mark.slow
def test_nothing_is_lost_of_much_output(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    """More lines than may wait to be sent, and lines longer than one event may be."""

    def much(x: Any) -> Any:
        print("a" * 200_000)

        def step(i: Any, c: Any) -> Any:
            jax.debug.print("{i}", i=i, ordered=True)
            return c + 1

        return jax.lax.fori_loop(0, 1000, step, x)

    client.persistent_call(much)(jnp.float32(0))
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["a" * 200_000, *map(str, range(1000))]


@pytest.mark.own_server
def test_a_file_that_never_ends_is_not_opened_for_a_warning(
    live: LiveServer, tmp_path: Path
) -> None:
    """Whatever file the server names, and however Python shows it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = (
        "import sys, jaxd\n"
        "@jaxd.persistent_call(static_argnums=1)\n"
        "def f(x, path):\n"
        "    import warnings\n"
        "    warnings.warn_explicit('slow', UserWarning, path, 1)\n"
        "    return x + 1\n"
        "print(f(1.0, sys.argv[1]))\n"
    )
    done = run_light(live, program, str(fifo))
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr
    assert done.stderr == f"<{fifo}>:1: UserWarning: slow\n"


@pytest.mark.filterwarnings("ignore::jaxd.errors.FallbackWarning")
def test_a_print_of_a_trace_is_no_effect_of_a_call_whose_result_cannot_come(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    """The call is made here, as where it prints nothing; one whose program has printed is not."""

    def sloped(x: Any) -> Any:
        print("traced")
        return jax.linearize(jnp.sin, x)

    def shown(x: Any) -> Any:
        jax.debug.print("run {}", x)
        return jax.linearize(jnp.sin, x)

    value, slope = client.persistent_call(sloped, fallback="local")(1.0)
    assert (float(value), float(slope(2.0))) == pytest.approx((np.sin(1.0), 2 * np.cos(1.0)))
    assert "traced" in capfd.readouterr().out
    with pytest.raises(ResultError, match="Partial"):
        client.persistent_call(shown, fallback="local")(1.0)
    assert capfd.readouterr().out.count("run 1.0") == 1
