"""What a call prints that is lost while it runs, and made once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd import Client
from tests.end_to_end.gates import Gate, in_thread
from tests.server.staging import until


def stopping(path: str) -> Any:
    """Prints, and stops at the gate the first time that it runs."""

    def look(x: Any) -> Any:
        been = Path(f"{path}.been")
        if not been.exists():
            been.touch()
            Path(path).read_bytes()
        return np.asarray(x)

    def step(x: Any) -> Any:
        jax.debug.print("loss {}", x)
        y = jax.pure_callback(look, jax.typeof(x), x)
        jax.debug.print("done {}", y)
        return y

    return step


@pytest.mark.parametrize("way", ["call", "submit"])
def test_it_is_printed_once(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """Although the function runs twice."""
    gate = Gate(tmp_path / "gate")
    function = client.persistent_call(stopping(gate.path))
    call = function if way == "call" else lambda x: function.submit(x).result()
    result = in_thread(call, np.float32(3))
    with gate.reached():
        reader = client.caller.session.connection().shared_reader
        (waiting,) = reader.pending.values()
        open_call = waiting.about
        until(lambda: open_call._effects is not None)
        lost = open_call.number, open_call.opened
        client.caller.session.connection()._channel.stream.sock.shutdown(2)
        until(lambda: (open_call.number, open_call.opened) != lost)
    assert float(result.result(30)) == 3.0
    assert capsys.readouterr().out == "loss 3.0\ndone 3.0\n"
