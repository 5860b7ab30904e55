"""The last exception of a call made from inside the client's own `jax.jit`, unwrapped."""

from __future__ import annotations

from typing import Final

_last_error: Final[list[BaseException]] = []


def last_error() -> BaseException | None:
    """What the last persistent call raised that failed inside of a client's own `jax.jit`.

    jax raises an error of its own there, with the text of this one in it. The remote traceback is
    in its notes. None when no such call has failed in this process. Safe from any thread.
    """
    if not _last_error:
        return None
    # its frames here hold arrays of a program that has ended, whose memory may be gone
    return _last_error[-1].with_traceback(None)


def record_last_error(error: BaseException) -> None:
    """Keeps an exception for `last_error`, in place of the one before."""
    _last_error[:] = [error]
