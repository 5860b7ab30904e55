from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import jax
import pytest

from jaxd.connection.server_requests import NoCallbackExpected
from jaxd.events.callbacks import CallbackRunner
from jaxd_protocol.errors import CalledBack, ConnectionLost, ProtocolError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.pytree import dump_literal

CONNECTION: Any = Mock(address="a server")


found: list[Any] = []


def _fail() -> None:
    raise KeyError("of the user's")


def _gives(x: Any) -> None:
    """Gives both to be called back."""
    jax.debug.callback(found.append, x)
    jax.debug.callback(_fail)


class Call:
    """Of a function that only gives `found.append` and `_fail` to be called back."""

    def __init__(self, callback_target: Any, *args: Any, calls_back: bool = True) -> None:
        self.name = "f"
        self.reader = self
        self.callbacks = ()
        self.calls_back = calls_back
        self.targets = walk(_gives, "f").reach.targets
        self._read: tuple[Any, ...] = (dump_literal(callback_target), (), args, {})

    def pickling_context(self) -> Any:
        """Nothing has to be prepared."""
        return threading.Lock()

    def read(self, *_: Any) -> Any:
        """What was asked."""
        return self._read


FAIL, APPEND = ("given", 0), ("given", 1)


def test_it_is_noted_that_a_call_has_called_back() -> None:
    """So that it is not repeated."""
    found.clear()
    callbacks, call = CallbackRunner(), Call(APPEND, 3)
    callbacks.check_repeatable(CONNECTION, 1, "f")
    callbacks.run(CONNECTION, call, None, (1, b"", b"", 0), ())  # type: ignore[arg-type]
    assert found == [3]
    callbacks.check_repeatable(CONNECTION, 2, "f")
    with pytest.raises(CalledBack, match="f was running, after it had called back") as caught:
        callbacks.check_repeatable(CONNECTION, 1, "f")
    assert isinstance(caught.value, ConnectionLost)
    assert not caught.value.may_repeat


def test_what_a_function_raises_is_the_cause() -> None:
    """Of whatever becomes of the call; other failures are not concerned."""
    callbacks, failure = CallbackRunner(), encode_failure(RuntimeError("m"))
    with pytest.raises(KeyError, match="of the user's"):
        callbacks.run(CONNECTION, Call(FAIL), None, (1, b"", b"", 1), ())  # type: ignore[arg-type]
    call: Any = Call(None)
    callbacks.raise_failure(CONNECTION, 2, call, failure, "here")
    with pytest.raises(RuntimeError, match="m") as caught:
        callbacks.raise_failure(CONNECTION, 1, call, failure, "here")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_question_that_is_none_calls_nothing() -> None:
    """Of a server that speaks otherwise."""
    with pytest.raises(ProtocolError, match="calls back in a way"):
        CallbackRunner().run(CONNECTION, Call(FAIL), None, (1, "", b"", 1), ())  # type: ignore[arg-type]


def test_a_question_that_cannot_be_read_calls_nothing() -> None:
    """What stands in its places is not what belongs there."""
    reads: list[tuple[Any, ...]] = [
        (),
        (b"", (), (), {}),
        (dump_literal(1), (), (), {}),
        (APPEND, (), (1,), {}),
    ]
    for read in reads:
        call = Call(APPEND)
        call._read = read
        with pytest.raises(ProtocolError):
            CallbackRunner().run(CONNECTION, call, None, (1, b"", b"", 1), ())  # type: ignore[arg-type]


def test_nothing_is_looked_at_where_nothing_is_given() -> None:
    """It is not noted either: the call has called nothing."""
    callbacks, call = CallbackRunner(), Call(APPEND, calls_back=False)
    with pytest.raises(NoCallbackExpected, match="f, which gives none"):
        callbacks.run(CONNECTION, call, None, (1, b"", b"", 0), ())  # type: ignore[arg-type]
    callbacks.check_repeatable(CONNECTION, 1, "f")


@pytest.mark.parametrize("argument", [_fail, [print], {"k": KeyError}], ids=["one", "in", "class"])
def test_no_function_is_given_to_what_is_called(argument: Any) -> None:
    """It could call it."""
    found.clear()
    with pytest.raises(ProtocolError, match="gives a function"):
        CallbackRunner().run(CONNECTION, Call(APPEND, argument), None, (1, b"", b"", 0), ())  # type: ignore[arg-type]
    assert not found
