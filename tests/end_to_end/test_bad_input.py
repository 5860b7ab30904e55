"""What goes wrong by the caller's hand: an error that says what to do, and no harm to others."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect, errors
from tests.end_to_end.gates import advice
from tests.live_server import TOKEN, LiveServer, source_environment
from tests.server.in_process import InProcessServer
from tests.warm_clients import run_light


class LocalError(Exception):
    """An exception type of the user's own."""


@pytest.fixture
def served(client: Client) -> Iterator[Client]:
    """The client, of which it is shown afterwards that its server still answers it and others."""
    yield client
    assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0
    with connect(client.info()["address"]) as other:
        assert float(other.persistent_call(lambda x: x + 2)(1.0)) == 3.0


# functions ----------------------------------------------------------------------------------------


def _of_an_open_file(path: Path) -> Any:
    file = path.open("w")
    return (lambda x: (file.write("x"), x)), file.close


def _of_a_generator(path: Path) -> Any:
    numbers = (n for n in range(3))
    return (lambda x: x + next(numbers)), lambda: None


@pytest.mark.parametrize("make", [_of_an_open_file, _of_a_generator])
def test_a_function_that_uses_something_that_cannot_travel(
    served: Client, tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    """It is warned of, and an error when it is used: with the path to it, and where to put it."""
    function, done = make(tmp_path / "file")
    with (
        pytest.warns(errors.UnsharedWarning, match="<lambda> → "),
        pytest.raises(errors.PackingError, match=r"<lambda>.* cannot travel") as caught,
    ):
        served.persistent_call(function)(1.0)
    assert "inside the function" in advice(caught.value)
    done()


def test_a_function_that_uses_a_lock(served: Client) -> None:
    """It has one of its own on the server."""
    lock = threading.Lock()

    def guarded(x: Any) -> Any:
        with lock:
            return x + 1

    with lock:
        assert float(served.persistent_call(guarded)(1.0)) == 2.0


def test_a_function_that_raises_while_it_is_traced(served: Client) -> None:
    """The exception has its own type and arguments, and the remote traceback."""

    def broken(x: Any) -> Any:
        raise KeyError("missing", 3)

    with pytest.raises(KeyError) as caught:
        served.persistent_call(broken)(1.0)
    assert caught.value.args == ("missing", 3)
    assert "in broken" in "".join(traceback.format_exception(caught.value))
    assert "call of test_a_function" in caught.value.__notes__[-1]


def test_a_function_that_raises_an_exception_of_the_callers_own_type(served: Client) -> None:
    """It arrives as that type, although it travelled by value."""

    def broken(x: Any) -> Any:
        raise LocalError("mine")

    with pytest.raises(LocalError, match="mine"):
        served.persistent_call(broken)(1.0)


def test_a_function_that_raises_a_type_that_is_not_here(served: Client) -> None:
    """The error names the type, and carries the message and the remote traceback."""

    def broken(x: Any) -> Any:
        class HiddenError(Exception):
            pass

        raise HiddenError("over there")

    with pytest.raises(errors.RemoteError, match="HiddenError: over there") as caught:
        served.persistent_call(broken)(1.0)
    assert caught.value.type_name.endswith("HiddenError")
    assert "in broken" in "".join(traceback.format_exception(caught.value))
    assert "call of test_a_function" in caught.value.__notes__[-1]


def test_a_function_that_raises_while_it_runs(served: Client) -> None:
    """Also on the second call, which is warm."""

    def fragile(x: Any) -> Any:
        import jax

        def look(value: Any) -> Any:
            if value > 0:
                raise ValueError("too large for me")
            return value

        return jax.pure_callback(look, jax.typeof(x), x)

    function = served.persistent_call(fragile)
    assert float(function(np.float32(-1))) == -1.0
    for _ in range(2):
        with pytest.raises(Exception, match="too large for me"):
            function(np.float32(1))
    assert float(function(np.float32(-2))) == -2.0


@pytest.mark.parametrize("result", ["text", b"bytes", {1, 2}, object], ids=str)
def test_a_function_that_returns_no_array(served: Client, result: Any) -> None:
    """The error says to return arrays."""
    with pytest.raises(errors.ResultError) as caught:
        served.persistent_call(lambda x: result)(1.0)
    assert "Return arrays" in str(caught.value)
    advice(caught.value)


def _asks(x: Any) -> Any:
    return x + float(input("how much? "))


def _breaks(x: Any) -> Any:
    breakpoint()  # noqa: T100
    return x


@pytest.mark.parametrize(
    ("function", "hint"), [(_asks, "as an argument"), (_breaks, "JAXD_INLINE=1")]
)
def test_a_function_that_wants_a_terminal(served: Client, function: Any, hint: str) -> None:
    """It is told at once that there is none, instead of waiting for ever."""
    with pytest.raises(errors.NotInteractive) as caught:
        served.persistent_call(function)(1.0)
    assert hint in advice(caught.value)


# arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument",
    ["text", {"a": ["text"]}, np.array([object()]), np.array(["text"]), {1, 2}, object(), len, int],
    ids=["text", "deep", "objects", "texts", "set", "object", "function", "class"],
)
def test_an_argument_that_jax_cannot_take(served: Client, argument: Any) -> None:
    """The error says that it can be declared static."""
    with pytest.raises(errors.ArgumentError) as caught:
        served.persistent_call(lambda x: 1.0, static="jax")(argument)
    assert "static_argnames" in advice(caught.value) + str(caught.value)
    advice(caught.value)


def test_an_argument_that_cannot_be_pickled(served: Client) -> None:
    """A generator is neither data nor can it travel as a static argument."""
    function = served.persistent_call(lambda x: 1.0, static_argnums=0)
    with pytest.raises(errors.PackingError, match="static argument of type generator"):
        function(n for n in range(3))


def test_a_static_argument_that_cannot_be_hashed(served: Client) -> None:
    """The same type of error as in jax.jit."""
    function = served.persistent_call(lambda x, sizes: x, static_argnames="sizes")
    with pytest.raises(ValueError, match="Non-hashable static") as caught:
        function(1.0, sizes=[1, 2])
    assert "hashable" in advice(caught.value)


def test_a_number_that_is_too_large(served: Client) -> None:
    """jax has no integers beyond 64 bits, and says so."""
    with pytest.raises(OverflowError):
        served.persistent_call(lambda x: x)(1 << 70)


def test_a_tracer(served: Client) -> None:
    """Inside of jax.jit a plain call is part of the program; what sends at once is not."""
    import jax

    function = served.persistent_call(lambda x: x + 1)
    with pytest.raises(errors.TracerError) as caught:
        jax.jit(lambda x: function.submit({"deep": x}))(1.0)
    assert "plain call" in advice(caught.value)


def test_wrong_arguments_for_the_function(served: Client) -> None:
    """As in a plain call."""
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        served.persistent_call(lambda x, y: x + y)(1.0)  # type: ignore[call-arg]


# limits -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited() -> Iterator[InProcessServer]:
    """A server that takes and sends at most one megabyte."""
    server = InProcessServer(token=TOKEN, max_frame_bytes=1 << 20, max_result_bytes=1 << 20)
    yield server
    server.close()


def test_an_argument_over_the_limit(limited: InProcessServer) -> None:
    """Refused before anything is sent; the connection goes on."""
    with connect(limited.tcp, token=TOKEN) as client:
        total = client.persistent_call(lambda x: x.sum())
        x = np.ones(1 << 18, np.float32)
        for way in ("call", "submit"):
            with pytest.raises(errors.LimitExceeded, match="1,048,576") as caught:
                _ = total(x) if way == "call" else total.submit(x).result()
            assert "--max-frame-bytes" in advice(caught.value)
        assert float(total(x[: 1 << 17])) == 1 << 17
        assert client.statistics().connections == 1


def test_many_small_arguments_over_the_limit_together(limited: InProcessServer) -> None:
    """What travels inside the message counts as well."""
    with connect(limited.unix) as client:
        first = client.persistent_call(lambda tree: tree[0])
        with pytest.raises(errors.LimitExceeded) as caught:
            first([np.ones(1000, np.float32)] * 300)
        assert "--max-frame-bytes" in advice(caught.value)
        assert float(first([np.float32(2)])) == 2.0


def test_a_result_over_the_limit(limited: InProcessServer) -> None:
    """The error says so in place of the result; the connection goes on."""
    with connect(limited.unix) as client:
        grow = client.persistent_call(lambda x: x.repeat(1 << 12), results="numpy")
        for _ in range(2):
            with pytest.raises(errors.LimitExceeded) as caught:
                grow(np.ones(1 << 7, np.float32))
            assert "--max-result-bytes" in advice(caught.value)
        assert grow(np.ones(1, np.float32)).shape == (1 << 12,)


def test_many_small_results_over_the_limit_together(limited: InProcessServer) -> None:
    """What travels inside the message counts as well."""
    with connect(limited.unix) as client:
        grow = client.persistent_call(lambda x: [x] * 300)
        with pytest.raises(errors.LimitExceeded):
            grow(np.ones(1000, np.float32))
        assert len(grow(np.ones(10, np.float32))) == 300


# servers ------------------------------------------------------------------------------------------


def test_no_server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none may be started, the error names both ways to one."""
    monkeypatch.setenv("JAXD_AUTOSTART", "0")
    with pytest.raises(errors.NoServer, match="switched off") as caught:
        connect()
    assert "jaxd start" in advice(caught.value)
    assert "JAXD_SERVER" in advice(caught.value)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_no_server_at_an_address(runtime: Path, kind: str) -> None:
    """The error names the address, and the command that starts a server there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"unix://{runtime}/none.sock" if kind == "unix" else f"tcp://127.0.0.1:{port}"
    with pytest.raises(errors.NoServer, match=address) as caught:
        connect(address, token="any-token-for-tests-only")
    assert f"jaxd serve --listen {address}" in advice(caught.value)


def test_a_dead_socket_file(runtime: Path) -> None:
    """A file that a killed server left behind is no server."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{runtime}/dead.sock")
    with pytest.raises(errors.NoServer, match="refused") as caught:
        connect(f"unix://{runtime}/dead.sock")
    assert "jaxd serve" in advice(caught.value)


def test_something_else_at_the_address(runtime: Path) -> None:
    """Whatever listens there but speaks another protocol is not waited for."""
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(f"{runtime}/s.sock")
        stranger.listen()

        def answer() -> None:
            peer, _ = stranger.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(errors.ProtocolError):
            connect(f"unix://{runtime}/s.sock")
        thread.join()


def _serve(runtime: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    finished = subprocess.run(
        [*prefix, sys.executable, "-P", "-m", "jaxd_server", *arguments],
        env=source_environment(runtime),
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode, finished.stderr


def test_a_port_in_use_at_start(runtime: Path) -> None:
    """The server does not start, and says which port and how to take another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        address = f"tcp://127.0.0.1:{port}"
        code, said = _serve(runtime, "--listen", address, "--allow-unauthenticated-loopback")
    assert code == 1
    assert f"port {port}" in said
    assert "--listen tcp://127.0.0.1:0" in advice(said)


_IN_A_FULL_DISK = 'mount -t tmpfs -o size=4k,nr_inodes=1,mode=700 none "$0" && exec "$@"'
_UNSHARE = ("unshare", "--map-root-user", "--mount", "sh", "-c", _IN_A_FULL_DISK)


@pytest.fixture
def full_disk(runtime: Path) -> tuple[str, ...]:
    """What to put before a command so that it finds no room left in `runtime`."""
    prefix = (*_UNSHARE, str(runtime))
    try:
        made = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        made = False
    if not made:
        pytest.skip("this system does not let us mount a small disk")
    return prefix


def test_a_full_disk_when_a_server_starts(runtime: Path, full_disk: tuple[str, ...]) -> None:
    """It says which directory has no room."""
    code, said = _serve(runtime, prefix=full_disk)
    assert code == 1
    assert str(runtime) in said
    assert "Free some room" in advice(said)
    assert "Traceback" not in said


def test_a_full_disk_when_a_client_starts_one(runtime: Path, full_disk: tuple[str, ...]) -> None:
    """The error is typed and says the same."""
    program = (
        "import jaxd\ntry: jaxd.connect()\nexcept jaxd.errors.ConfigurationError as e: print(e)"
    )
    said = subprocess.run(
        [*full_disk, sys.executable, "-c", program],
        env=source_environment(runtime),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "Free some room" in advice(said)


# where an error is shown --------------------------------------------------------------------------

FAILS = """
from jaxd import persistent_call

class Model:
    def rate(self, x):
        return x / (1 // 0)  # it fails

def helper(x):
    return Model().rate(x)

@persistent_call
def step(x):
    return helper(x)
"""


@pytest.mark.slow
def test_an_error_is_shown_where_the_code_is_now(live: LiveServer, tmp_path: Path) -> None:
    """A comment above a function is no part of its key, and a cell may be run again elsewhere."""
    main = (
        "import traceback\n"
        "try:\n"
        "    step(1.0)\n"
        "except ZeroDivisionError:\n"
        "    traceback.print_exc()\n"
    )
    for name, above in (("a", ""), ("a", "# one\n# two\n"), ("b", "# three\n")):
        file = tmp_path / f"{name}.py"
        file.write_text(above + FAILS + main)
        said = live.run(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')").stderr
        line = file.read_text()[: file.read_text().index("return x /")].count("\n") + 1
        assert f'File "{file}", line {line}, in rate\n    return x / (1 // 0)  # it fails' in said
        assert f'File "{file}", line {line + 3}, in helper\n    return Model().rate(x)' in said


def test_cells_of_one_name_are_not_mixed_up(live: LiveServer) -> None:
    """What a cell held before it was edited and run again is not shown beside its new lines."""
    said = run_light(
        live,
        "import linecache, traceback\n"
        f"text = {FAILS!r}\n"
        "home = {'__name__': '__main__'}\n"
        "for above in ('', 'first = 1\\nsecond = 2\\n'):\n"
        "    cell = above + text\n"
        "    linecache.cache['<cell>'] = (len(cell), None, cell.splitlines(True), '<cell>')\n"
        "    exec(compile(cell, '<cell>', 'exec'), home)\n"
        "    try:\n"
        "        home['step'](1.0)\n"
        "    except ZeroDivisionError:\n"
        "        traceback.print_exc()\n",
    ).stderr
    shown = '"<cell>", line {}, in rate\n    return x / (1 // 0)  # it fails'
    assert shown.format(6) in said
    assert shown.format(8) in said
