"""Which thread runs a callback."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

from jaxd.request.call_request import callback_origin, callback_scope, running_callbacks


def test_only_the_thread_that_is_called_back_is_inside() -> None:
    """Calls of other threads are as ever, also meanwhile; and so are its own afterwards."""
    found: list[Any] = []
    assert not running_callbacks
    assert callback_origin() is None
    with callback_scope("a call"):
        assert running_callbacks
        assert callback_origin() == "a call"
        context = copy_context()
        assert context.run(callback_origin) == "a call"
        thread = threading.Thread(target=lambda: found.append(callback_origin()))
        thread.start()
        thread.join()
    assert found == [None]
    assert not running_callbacks
    assert callback_origin() is None
    with callback_scope("another call"):
        assert context.run(callback_origin) is None
