"""What a server's program calls back runs here: on this process's own objects, as they are now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jaxd.aims import Table, refuse_functions
from jaxd.arguments import encode_arguments
from jaxd.inside import inside
from jaxd.questions import NothingGiven
from jaxd.raised import raised_by
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import forget_after_fork
from jaxd_protocol.errors import CalledBack, ProtocolError
from jaxd_protocol.statics import NO_STATICS
from jaxd_protocol.trees.literals import load_literal

if TYPE_CHECKING:
    from jaxd.aims import Arguments
    from jaxd.identity import Identity

__all__ = ["Callbacks"]

_MAX_CALLS: Final = 256


class Callbacks:
    """Runs what programs of one server call back. Thread-safe."""

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forgets the calls of the parent, as the child of a fork must."""
        self._lock = threading.Lock()  # guards _called
        self._called = BoundedDict[tuple[object, int], BaseException | None](_MAX_CALLS)

    def run(
        self,
        connection: object,
        identity: Identity,
        arguments: Arguments | None,
        question: tuple[Any, ...],
        buffers: Sequence[memoryview],
    ) -> tuple[Any, Sequence[memoryview]]:
        """Calls a function of this process; what it returns, for the server.

        Args:
            connection: over which the call was made.
            identity: what was called.
            arguments: with what, where it may call that back.
            question: its number, what is to be called with what, whether its result is wanted.
            buffers: the rest of it.

        Raises:
            NothingGiven: when the call gives nothing to be called back.
            BaseException: what the function raises; it is kept for the caller as well.
        """
        if not identity.calls_back:
            raise NothingGiven(
                f"the server wants a function called back by {identity.name}, which "
                "gives none to jax.debug.callback or io_callback. The connection is ended: is that "
                "server what it should be?"
            )
        if tuple(map(type, question)) != (int, bytes, bytes, int):
            raise _unknown()
        number, skeleton, blob, wants_result = question
        self._note(connection, number, None)
        try:
            with inside():
                function, args, kwargs = self._aimed(identity, arguments, skeleton, blob, buffers)
                result = function(*args, **kwargs)
            return _encoded(identity, result if wants_result else None)
        except BaseException as error:
            self._note(connection, number, error)
            raise

    def _aimed(
        self,
        identity: Identity,
        arguments: Arguments | None,
        skeleton: bytes,
        blob: bytes,
        buffers: Sequence[memoryview],
    ) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
        """The function of this process that is to be called, and with what."""
        with identity.travelling():
            read = identity.reader.read(skeleton, blob, buffers, "auto")
        if type(read) is not tuple or tuple(map(type, read)) != (bytes, tuple, tuple, dict):
            raise _unknown()
        aim, held, args, kwargs = read
        literal, end = load_literal(aim, 0)
        if type(literal) is not tuple or end != len(aim):
            raise _unknown()
        table = Table(identity.targets, identity.callbacks, arguments)
        function = table.function_at(literal, held)
        refuse_functions((args, kwargs))
        return function, args, kwargs

    def _note(self, connection: object, number: int, error: BaseException | None) -> None:
        with self._lock:
            self._called[connection, number] = error

    def forget(self, connection: object, number: int) -> tuple[bool, BaseException | None]:
        """Whether a call has called back, and what the last function raised that it called."""
        name = (connection, number)
        with self._lock:
            return name in self._called, self._called.pop(name, None)

    def refuse_again(self, connection: object, number: int, name: str) -> None:
        """Returns when a call that was lost may be made once more.

        Raises:
            CalledBack: when it has called back: its effects must not happen twice.
        """
        has_called, _ = self.forget(connection, number)
        if has_called:
            raise CalledBack(
                f"the connection to the server ended while {name} was running, after it had called "
                "back functions of this process. It is not repeated by itself, because their "
                "effects would happen twice. Call it again if that does no harm."
            )

    def raise_failure(
        self, connection: object, number: int, identity: Identity, failure: Any, address: str
    ) -> None:
        """Returns when a call has failed for other reasons than what it has called back.

        Raises:
            BaseException: what became of the call, from what the function here has raised.
        """
        _, error = self.forget(connection, number)
        if error is not None:
            raise raised_by(failure, identity.name, identity.reader, address) from error


def _unknown() -> ProtocolError:
    return ProtocolError(
        "the server calls back in a way that this client does not know. Install the same jaxd on "
        "both sides."
    )


def _encoded(identity: Identity, result: Any) -> tuple[Any, Sequence[memoryview]]:
    with identity.travelling():
        encoded = encode_arguments((result,), {}, NO_STATICS, {})
    return (encoded.skeleton, encoded.blob), encoded.buffers
