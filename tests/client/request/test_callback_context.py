from __future__ import annotations

import threading

from jaxd.request.callback_context import inside, is_inside, running


def test_only_the_thread_that_is_called_back_is_inside() -> None:
    """Calls of other threads are as ever, also meanwhile."""
    found: list[bool] = []
    assert not running
    assert not is_inside()
    with inside():
        assert running
        assert is_inside()
        thread = threading.Thread(target=lambda: found.append(is_inside()))
        thread.start()
        thread.join()
    assert found == [False]
    assert not running
    assert not is_inside()
