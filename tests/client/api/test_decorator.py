"""The forms of `persistent_call`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from jaxd import Client, PersistentFunction, persistent_call
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from tests.ids import stable_id
from tests.live_server import TOKEN, LiveServer


def step(x: float, y: float = 2.0) -> float:
    """Adds."""
    return x + y


def test_bare_with_options_and_plain() -> None:
    """All of them give a persistent function; nothing is looked for or started."""
    for made in (
        persistent_call(step),
        persistent_call()(step),
        persistent_call(static_argnames="y")(step),
        persistent_call(step, port=1),
        persistent_call(step, server="unix:///tmp/none.sock", timeout_s=3),
    ):
        assert isinstance(made, PersistentFunction)
        assert made.__wrapped__ is step


def test_the_function_keeps_its_name_signature_and_docstring() -> None:
    """For people and for tools."""
    made: Any = persistent_call(step)
    assert (made.__name__, made.__doc__, made.__module__) == ("step", "Adds.", __name__)
    assert inspect.signature(made) == inspect.signature(step)
    assert inspect.signature(made, follow_wrapped=False) == inspect.signature(step)


def test_an_unknown_option_is_named() -> None:
    """Together with those that exist."""
    with pytest.raises(TypeError, match=r"static_argname'.*static_argnames"):
        persistent_call(step, static_argname="y")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"server": "http://host"}, "unix:///absolute/path"),
        ({"server": "tcp://host:1", "port": 2}, "Leave out"),
        ({"config": {"jax_platforms": "cpu"}}, "jax_enable_x64"),
        ({"extra_key": object()}, "tuples"),
        ({"compiler_options": {"a": object()}}, "tuples"),
    ],
    ids=stable_id,
)
def test_an_option_that_is_not_usable(runtime: Path, options: Any, hint: str) -> None:
    """An error where it is written, not at the first call."""
    with pytest.raises(ConfigurationError, match=hint):
        persistent_call(step, **options)


def test_the_environment_is_read_at_the_first_call(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decorator at the top of a file does not fix where the function runs."""
    made = persistent_call(lambda x: x + 1)
    monkeypatch.setenv("JAXD_SERVER", live.unix)
    assert float(made(1.0)) == 2.0
    monkeypatch.setenv("JAXD_SERVER", "unix:///tmp/none.sock")
    assert float(made(2.0)) == 3.0


def test_host_port_and_token(live: LiveServer, runtime: Path) -> None:
    """Instead of an address."""
    port = Address.parse(live.tcp).port
    made = persistent_call(lambda x: x + 1, host="127.0.0.1", port=port, token=TOKEN)
    assert float(made(1.0)) == 2.0


def test_a_client_of_ones_own(client: Client) -> None:
    """Decides where the function runs."""

    @persistent_call(client=client)
    def double(x: float) -> float:
        return x * 2

    before = client.statistics().calls
    assert double(2.0) == 4.0
    assert client.statistics().calls == before + 1


@pytest.mark.parametrize("wanted", ["numpy", "jax"])
def test_the_form_of_results(client: Client, wanted: Any) -> None:
    """Whatever the process has loaded."""
    import jax
    import numpy as np

    double: Any = client.persistent_call(lambda x: x * 2, results=wanted)
    assert isinstance(double(1.0), jax.Array if wanted == "jax" else np.ndarray)


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1},
        {"static_argnums": (1,)},
        {"static_argnames": "y"},
        {"static_argnames": ["y"]},
    ],
    ids=str,
)
def test_jits_own_options_in_all_their_forms(client: Client, options: Any) -> None:
    """Numbers, names, one or several; as jax.jit takes them."""
    made: Any = client.persistent_call(lambda x, y: x if y == "keep" else -x, **options)
    assert float(made(1.0, "keep")) == 1.0
    assert float(made(1.0, "drop")) == -1.0
    assert float(made(1.0, y="keep")) == 1.0


def test_donated_arguments(client: Client) -> None:
    """The caller's own arrays are untouched: what is donated is the server's copy."""
    import numpy as np

    made: Any = client.persistent_call(lambda x: x + 1, donate_argnums=0)
    x = np.zeros(5000, np.float32)
    for _ in range(2):
        assert float(np.asarray(made(x)).sum()) == 5000.0
    assert x.sum() == 0
