from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax
import pytest

from jaxd.connection.server_requests import NoCallbackExpected
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import OpenCall
from jaxd.dispatch.session import Session
from jaxd.events.jax_callbacks import run_callback
from jaxd_protocol.errors import CalledBack, ConnectionLost, ProtocolError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.pytree import dump_literal

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

    def find_code(self, *_: Any) -> tuple[()]:
        """None of the frames is the user's."""
        return ()

    def reaches(self, _: str) -> bool:
        """No library is."""
        return False

    def read(self, *_: Any) -> Any:
        """What was asked."""
        return self._read


FAIL, APPEND = ("given", 0), ("given", 1)


def open_call(snapshot: Call) -> OpenCall:
    """A call of such a function over a connection."""
    call: Any = SimpleNamespace(
        spec=SimpleNamespace(snapshot=snapshot), arguments=None, timeout_s=None
    )
    found = OpenCall(Session(Settings(), Mock()), call)
    found.opened = Mock()
    found.opened.connection.address = "a server"
    return found


def test_it_is_noted_that_a_call_has_called_back() -> None:
    """So that it is not repeated."""
    found.clear()
    call, other = open_call(Call(APPEND, 3)), open_call(Call(APPEND))
    call.check_repeatable(ConnectionLost("lost"))
    run_callback(call, (1, b"", b"", 0), ())
    assert found == [3]
    other.check_repeatable(ConnectionLost("lost"))
    with pytest.raises(CalledBack, match="f was running, after it had called back") as caught:
        call.check_repeatable(ConnectionLost("lost"))
    assert isinstance(caught.value, ConnectionLost)
    assert not caught.value.may_repeat


def test_what_a_function_raises_is_the_cause() -> None:
    """Of whatever becomes of the call; other failures are not concerned."""
    failure = encode_failure(RuntimeError("m"))
    call = open_call(Call(FAIL))
    assert call.pause_after(failure) is None
    with pytest.raises(KeyError, match="of the user's"):
        run_callback(call, (1, b"", b"", 1), ())
    with pytest.raises(RuntimeError, match="m") as caught:
        call.pause_after(failure)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_question_that_is_none_calls_nothing() -> None:
    """Of a server that speaks otherwise."""
    with pytest.raises(ProtocolError, match="calls back in a way"):
        run_callback(open_call(Call(FAIL)), (1, "", b"", 1), ())


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
            run_callback(open_call(call), (1, b"", b"", 1), ())


def test_nothing_is_looked_at_where_nothing_is_given() -> None:
    """It is not noted either: the call has called nothing."""
    call = open_call(Call(APPEND, calls_back=False))
    with pytest.raises(NoCallbackExpected, match="f, which gives none"):
        run_callback(call, (1, b"", b"", 0), ())
    assert not call.has_called_back


@pytest.mark.parametrize("argument", [_fail, [print], {"k": KeyError}], ids=["one", "in", "class"])
def test_no_function_is_given_to_what_is_called(argument: Any) -> None:
    """It could call it."""
    found.clear()
    with pytest.raises(ProtocolError, match="gives a function"):
        run_callback(open_call(Call(APPEND, argument)), (1, b"", b"", 0), ())
    assert not found
