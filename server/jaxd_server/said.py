"""What a function said while it was traced: kept with its program, for each process that runs it.

Under `jax.jit` each process traces, and so sees what is printed meanwhile. A client of a program
that was made before is told the same again. Each event has a number, so that nobody is told twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from jaxd_server.progress import SILENT, Emit

if TYPE_CHECKING:
    from jaxd_server.call import Call
    from jaxd_server.executable import Executable

__all__ = ["NOTHING", "Said", "heard", "tell_once"]

_HEARD: Final = frozenset({"print", "warned", "logged"})
_MAX_KEPT: Final = 1 << 20


class Said:
    """The events of one build, on their way to who waits for it.

    Args:
        name: names the build to clients; the same when it is made again.
        emit: takes all events.
    """

    def __init__(self, name: str, emit: Emit = SILENT) -> None:
        self._name = name
        self._emit = emit
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._size = 0
        self._ended = False

    def emit(self, kind: str, content: dict[str, Any]) -> None:
        """Passes an event on, and keeps what is to be said to others as well."""
        if kind in _HEARD and not self._ended:
            content = {**content, "of": self._name, "at": len(self._events)}
            self._size += len(json.dumps(content))
            if self._size <= _MAX_KEPT:
                self._events.append((kind, content))
            else:
                del content["at"]  # too much to be kept
        self._emit(kind, content)

    def begin_again(self) -> None:
        """The function is traced once more, and says it all again."""
        self._events.clear()
        self._size = 0

    def failed(self) -> None:
        """There is no program after all: the next attempt is a new one, for the client as well."""
        self._ended = True
        if self._events:
            self._emit("unsaid", {"of": self._name})

    def end(self) -> str:
        """What has been said, for `tell_once`; nothing that is said later belongs to it."""
        self._ended = True
        return json.dumps(self._events) if self._events else NOTHING


def _name(key: bytes, skeleton: bytes) -> str:
    """Names what is said while a function is traced for such calls."""
    return key.hex() + hashlib.blake2b(skeleton, digest_size=8).hexdigest()


@contextmanager
def heard(call: Call) -> Iterator[None]:
    """Within it a function is traced, and what it says is heard by who calls it."""
    emit = call.emit
    said = call.said = Said(_name(call.key, call.skeleton), emit)
    call.emit = said.emit
    try:
        yield
    except BaseException:
        said.failed()
        raise
    finally:
        call.emit = emit


def tell_once(call: Call, executable: Executable, *, has_heard: bool = False) -> None:
    """Says to a client what was said when an executable was made, unless it `has_heard` it."""
    if executable.serial in call.session.told:
        return
    call.session.told.add(executable.serial)
    if has_heard:
        return
    for kind, content in json.loads(executable.said or "[]"):
        call.emit(kind, content)


NOTHING: Final = ""
"""What most functions say."""
