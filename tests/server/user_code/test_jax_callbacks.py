from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxd_protocol.errors import CallbackError
from jaxd_protocol.fingerprint import walk
from jaxd_server.user_code import jax_callbacks
from jaxd_server.user_code.callback_targets import CallbackTargets
from jaxd_server.user_code.jax_callbacks import (
    install_callback_redirection,
    redirecting_callbacks,
)

SCALAR: Any = np.zeros((), np.float32)
X = np.float32(3)


class Client:
    """Notes what it is called with, and answers one number."""

    def __init__(self) -> None:
        self.called: list[Any] = []

    def call_back(
        self, callback_target: Any, held: Any, args: Any, kwargs: Any, *, wants_result: bool
    ) -> Any:
        """As a source does."""
        self.called.append((callback_target, args, kwargs, wants_result))
        return np.float32(42) if wants_result else None


class Call:
    """That runs."""

    def __init__(self) -> None:
        self.source = Client()
        self.call_back = self.source.call_back


def own(value: Any) -> None:
    """Must not be called here."""
    raise AssertionError


def gives(x: Any) -> None:
    """Gives it to be called back, so that a client lets it be called."""
    jax.debug.callback(own, x)


TARGETS = walk(gives, "gives").reach.targets


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """The call whose turn it is, of a client; jax is as it was afterwards."""
    call = Call()
    monkeypatch.setattr(jax_callbacks, "_current", [call.call_back])
    install_callback_redirection()
    install_callback_redirection()
    yield call
    for primitive in jax_callbacks._EXCHANGES:
        del primitive.bind


def run(function: Any, x: Any = X) -> Any:
    """Traces it for its client, and runs it."""
    with redirecting_callbacks(CallbackTargets("f", TARGETS)):
        compiled = jax.jit(function).lower(x).compile()
    result = compiled(x)
    jax.effects_barrier()
    return result


def test_io_callbacks_have_the_clients_answer(running: Call) -> None:
    """Under transformations as well."""

    def f(x: Any) -> Any:
        return jax.vmap(lambda y: io_callback(own, SCALAR, y))(jnp.stack([x, x])).sum()

    assert float(run(f)) == 84.0
    assert [float(args[0]) for _, args, _, _ in running.source.called] == [3.0, 3.0]


def test_in_branches_and_gradients(running: Call) -> None:
    """jax puts the primitives there again, which must not exchange them twice."""

    def f(x: Any) -> Any:
        def noted(y: Any) -> Any:
            jax.debug.callback(own, y)
            return y**2

        return jax.grad(lambda y: jax.lax.cond(y > 0, noted, noted, y))(x)

    assert float(run(f)) == 6.0
    assert [float(args[0]) for _, args, _, _ in running.source.called] == [3.0]


def test_while_tracing_there_is_nobody_to_be_called(
    running: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program runs; the message says what to do."""
    monkeypatch.setattr(jax_callbacks, "_current", [])
    with (
        redirecting_callbacks(CallbackTargets("f", TARGETS)),
        pytest.raises(CallbackError, match="Pass it values"),
    ):
        jax.debug.callback(own, X)
