from __future__ import annotations

import threading

from jaxd.request.call_request import callback_scope, in_callback, running_callbacks


def test_only_the_thread_that_is_called_back_is_inside() -> None:
    """Calls of other threads are as ever, also meanwhile."""
    found: list[bool] = []
    assert not running_callbacks
    assert not in_callback()
    with callback_scope():
        assert running_callbacks
        assert in_callback()
        thread = threading.Thread(target=lambda: found.append(in_callback()))
        thread.start()
        thread.join()
    assert found == [False]
    assert not running_callbacks
    assert not in_callback()
