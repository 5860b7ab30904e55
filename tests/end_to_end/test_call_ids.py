"""A call that fails, or is built, has an id in the server's log, and its error has that too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxd import connect
from jaxd_protocol.errors import CallbackError, JaxdError
from tests.live_server import TOKEN, LiveServer

StartLive = Callable[..., LiveServer]
SECRET = "what-only-the-client-knows"
X = np.ones(3, "f4")


def told(server: LiveServer, call: str) -> dict[str, dict[str, Any]]:
    """What the server has logged of a call, by event, once that includes its failure."""
    lines = server.wait_for("call_failed", call=call)
    return {line["event"]: line for line in lines if line.get("call") == call}


def fails_while_traced(x: Any) -> Any:
    raise ValueError(SECRET)


def fails_while_it_runs(x: Any) -> Any:
    import jax

    def look(x: Any) -> Any:
        raise KeyError(SECRET)

    return jax.pure_callback(look, jax.ShapeDtypeStruct((3,), "float32"), x)


@pytest.mark.slow
def test_the_error_of_a_call_names_its_lines(start_live: StartLive) -> None:
    """By `call_id`, and in its note; of a call that was built and failed then, both lines.

    A line has the type of what was raised, and not its text, which may be somebody's data.
    """
    server = start_live()
    with connect(server.unix, token=TOKEN) as client:
        with pytest.raises(ValueError, match=SECRET) as caught:
            client.persistent_call(fails_while_traced)(X)
        call = caught.value.call_id  # type: ignore[attr-defined]
        assert f"(call {call})." in caught.value.__notes__[-1]
        lines = told(server, call)
        assert lines.keys() == {"call_failed"}
        line = lines["call_failed"]
        assert line["function"] == "fails_while_traced"
        assert line["principal"].startswith("uid:")
        assert (line["error"], line["blame"], line["phase"]) == (
            "ValueError",
            "function",
            "building",
        )
        running = client.persistent_call(fails_while_it_runs)
        calls = [failed(running) for _ in range(2)]
        assert told(server, calls[0]).keys() == {"built", "call_failed"}
        assert told(server, calls[1]).keys() == {"call_failed"}
    assert len({call, *calls}) == 3
    assert not any(SECRET in text for text in server.raw)


def failed(function: Any) -> str:
    """The id of a call that fails."""
    with pytest.raises(Exception, match=SECRET) as caught:
        function(X)
    return str(caught.value.call_id)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_error_of_jaxds_own_has_the_id_too(start_live: StartLive) -> None:
    """Where the server has raised it; one of this process has none."""
    server = start_live()
    with connect(server.unix, token=TOKEN) as client, pytest.raises(JaxdError) as caught:
        client.persistent_call(asks_for_input)(X)
    assert caught.value.call_id
    assert told(server, caught.value.call_id)["call_failed"]["error"].startswith("jaxd_protocol.")
    assert CallbackError("raised here.").call_id == ""


def asks_for_input(x: Any) -> Any:
    return x + float(input())


@pytest.mark.slow
def test_calls_that_succeed_are_not_logged(start_live: StartLive) -> None:
    """But for what was built; a call that finds its program writes nothing."""
    server = start_live()
    with connect(server.unix, token=TOKEN) as client:
        double = client.persistent_call(lambda x: x * 2)
        for _ in range(20):
            double(X)
        failed(client.persistent_call(fails_while_traced))
    lines = server.wait_for("call_failed")
    assert [line["event"] for line in lines if "call" in line] == ["built", "call_failed"]
    (built,) = [line for line in lines if line["event"] == "built"]
    assert built["verdict"] == "compile"
    assert built["seconds"] > 0
