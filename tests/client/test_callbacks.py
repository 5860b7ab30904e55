from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import pytest

from jaxd.callbacks import Callbacks
from jaxd_protocol.errors import CalledBack, ConnectionLost, ProtocolError

CONNECTION: Any = Mock(address="a server")


def _gives(found: list[Any]) -> Any:
    """Says `append`, as the code does that gives it to be called back."""
    return found.append


class Call:
    """Of a function that only gives `found` to be called back."""

    def __init__(self, aim: Any, *args: Any) -> None:
        self.name = "f"
        self.spec = self.identity = self.reader = self
        self._read: tuple[Any, Any, Any] = (aim, args, {})
        self.found: list[Any] = []

    def travelling(self) -> Any:
        """Nothing has to be prepared."""
        return threading.Lock()

    def read(self, *_: Any) -> Any:
        """What was asked."""
        return self._read

    def own(self) -> Any:
        """By number."""
        return [self._fail, _gives], [self.found]

    def _fail(self) -> None:
        raise KeyError("of the user's")


def test_it_is_noted_that_a_call_has_called_back() -> None:
    """So that it is not repeated."""
    callbacks, call = Callbacks(), Call(("live", 0, ("append",)), 3)
    callbacks.refuse_again(CONNECTION, 1, "f")
    callbacks.run(CONNECTION, call, (1, b"", b"", 0), ())  # type: ignore[arg-type]
    assert call.found == [3]
    callbacks.refuse_again(CONNECTION, 2, "f")
    with pytest.raises(CalledBack, match="f was running, after it had called back") as caught:
        callbacks.refuse_again(CONNECTION, 1, "f")
    assert isinstance(caught.value, ConnectionLost)
    assert not caught.value.may_repeat


def test_what_a_function_raises_is_the_cause() -> None:
    """Of whatever becomes of the call; other failures are not concerned."""
    callbacks, failure = Callbacks(), ("builtins", "RuntimeError", "m", None, 0.0, "text")
    with pytest.raises(KeyError, match="of the user's"):
        callbacks.run(CONNECTION, Call(("object", 0)), (1, b"", b"", 1), ())  # type: ignore[arg-type]
    call: Any = Call(None)
    callbacks.raise_failure(CONNECTION, 2, call, failure)
    with pytest.raises(RuntimeError, match="m") as caught:
        callbacks.raise_failure(CONNECTION, 1, call, failure)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_question_that_is_none_calls_nothing() -> None:
    """Of a server that speaks otherwise."""
    with pytest.raises(ProtocolError, match="calls back in a way"):
        Callbacks().run(CONNECTION, Call(("object", 0)), (1, "", b"", 1), ())  # type: ignore[arg-type]
