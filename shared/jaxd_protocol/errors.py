"""The one error tree: whose fault it was, whether to repeat, and what to do next.

Every message ends in the next action. `blame` names who has to act, `may_repeat` says whether
the same call may succeed if it is simply made again: of a call that was given arrays for good, not
where it may have run.
"""

from __future__ import annotations

from typing import ClassVar, Literal

__all__ = [
    "ArgumentError",
    "AuthenticationFailed",
    "Busy",
    "CallbackError",
    "CalledBack",
    "Cancelled",
    "CannotListen",
    "CompileAdvice",
    "ConfigurationError",
    "ConnectionLost",
    "DeadlineExceeded",
    "FallbackWarning",
    "InternalError",
    "JaxdError",
    "LimitExceeded",
    "LostUpdateError",
    "MissingPackage",
    "NoServer",
    "NotInteractive",
    "NotPermitted",
    "OutOfMemory",
    "PackageMismatch",
    "PackingError",
    "PlaceRefused",
    "ProtocolError",
    "Quarantined",
    "RemoteError",
    "ResultError",
    "ServerDraining",
    "ServerStartFailed",
    "SharedDeviceWarning",
    "SkewWarning",
    "StaleProgramError",
    "TracedReadWarning",
    "TracerError",
    "UnsharedWarning",
    "ValueDeleted",
    "ValuesDied",
    "ValuesDiedWarning",
    "ValuesFull",
    "ValuesLost",
    "VersionMismatch",
    "WorkerLost",
    "WorkerReplaced",
]

Blame = Literal["caller", "function", "server", "network"]


class JaxdError(Exception):
    """Base of everything that jaxd raises by itself.

    Exceptions that a user's function raises are not in this tree: they arrive as their own type
    (or as `RemoteError` where this process does not have that type).

    Attributes:
        call_id: the id of the call that the server answered with it, for `jaxd logs --call`; empty
            when this process has raised it. What a function raises has the attribute as well.
    """

    blame: ClassVar[Blame] = "server"
    call_id: str = ""
    may_repeat: bool = False  # of one error, where it is not as of others of its class


class PackingError(JaxdError, TypeError):
    """A function, or something that it reaches, cannot travel to the server."""

    blame = "caller"


class ArgumentError(JaxdError, TypeError):
    """An argument is of a type that neither jax nor the tree codec can take."""

    blame = "caller"


class TracerError(JaxdError, TypeError):
    """A jax tracer was passed to a persistent function.

    Raised when the caller is itself inside `jax.jit`, `jax.grad`, `jax.vmap` or the like.
    """

    blame = "caller"


class ConfigurationError(JaxdError, ValueError):
    """An address, option, token file or configuration file is not usable as it is."""

    blame = "caller"


class PlaceRefused(ConfigurationError):
    """With `place="here"`: no program may be taken from the server, or none would run here."""


class LimitExceeded(JaxdError, ValueError):
    """A configured limit: a message is larger (nothing of it was sent), or a user had its share."""

    blame = "caller"


class MissingPackage(JaxdError, ImportError):
    """A function needs a package that is not installed where the server runs."""

    blame = "caller"


class PackageMismatch(JaxdError, RuntimeError):
    """With `strict=True`: the server has a package in another version, or with other files."""

    blame = "caller"


class ResultError(JaxdError, TypeError):
    """A function returned something that cannot be sent back as a tree of arrays."""

    blame = "function"


class LostUpdateError(JaxdError, TypeError):
    """A function changes an object of its caller's in a way that cannot reach the caller."""

    blame = "function"


class StaleProgramError(JaxdError, RuntimeError):
    """With `verify=True`: a program is another one than the client makes of the same function.

    Attributes:
        difference: where the two begin to differ.
        parts: what the key holds, in words.
    """

    def __init__(self, message: str, difference: str = "", parts: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.difference = difference
        self.parts = parts


class OutOfMemory(JaxdError, MemoryError):
    """The device has no room for a call, also after idle programs were dropped."""


class ValueDeleted(JaxdError, RuntimeError):
    """An array on the server was used after it was deleted, or donated to a call."""

    blame = "caller"


class ValuesLost(JaxdError, RuntimeError):
    """Arrays on the server are gone: its worker ended, or it gave up waiting for the client."""


class ValuesFull(JaxdError, MemoryError):
    """There is no room for another array on the server; the message names the largest holders."""

    blame = "caller"


class NotInteractive(JaxdError, RuntimeError):
    """A function called `input()` or `breakpoint()`, and the server has no terminal."""

    blame = "function"


class CallbackError(JaxdError, RuntimeError):
    """A program cannot call back a function of its client."""

    blame = "function"


class RemoteError(JaxdError, RuntimeError):
    """A function raised an exception whose type this process does not have.

    Attributes:
        type_name: the qualified name of the original type, as `module.Name`.
    """

    blame = "function"

    def __init__(self, message: str, type_name: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name


class NoServer(JaxdError, ConnectionError):
    """No server answers at the address, or none could be found or started."""

    may_repeat = True


class ServerStartFailed(NoServer):
    """A server was started in the background and ended before it answered."""


class CannotListen(JaxdError, OSError):
    """The server cannot open an address: in use, not allowed, unsafe, or no room on the disk."""


class AuthenticationFailed(JaxdError, ConnectionError):
    """The two ends do not hold the same token, or the peer's user is not admitted."""

    blame = "caller"


class NotPermitted(JaxdError, PermissionError):
    """A client asked for what the server does not allow: see `jaxd serve --accept`."""

    blame = "caller"


class VersionMismatch(JaxdError, ConnectionError):
    """Client and server cannot exchange code: protocol or Python version differ."""

    blame = "caller"


class ProtocolError(JaxdError, ConnectionError):
    """The peer sent bytes that are not jaxd's protocol."""

    blame: ClassVar[Blame] = "network"


class ConnectionLost(JaxdError, ConnectionError):
    """The connection ended while a call was in flight; it is unknown whether the call ran."""

    blame: ClassVar[Blame] = "network"
    may_repeat = True


class CalledBack(ConnectionLost):
    """As `ConnectionLost`, of a call that had called back: its effects would happen twice."""

    may_repeat = False


class WorkerLost(ConnectionLost):
    """The process that owns the devices ended while it ran the call, also when repeated."""

    blame = "server"


class Quarantined(JaxdError, RuntimeError):
    """The function has ended the server's worker again and again, and is called no more."""

    blame = "function"


class ValuesDied(ValuesLost, WorkerLost):
    """Arrays on the server are gone with its worker; the message names those that were needed."""

    may_repeat = False


class ServerDraining(JaxdError, ConnectionError):
    """The server is stopping: it finishes running calls and takes no new ones."""

    may_repeat = True


class WorkerReplaced(ServerDraining):
    """The worker ends because packages that it runs have changed on disk; a new one follows.

    Clients repeat the call by themselves and raise this only when that happens again and again.
    """


class Busy(JaxdError, RuntimeError):
    """The server has no room for the call now, or a process can start no more threads.

    Attributes:
        retry_after_s: seconds after which a repetition is likely to be admitted.
    """

    may_repeat = True

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(JaxdError, TimeoutError):
    """The call's `timeout_s`, or a limit of the server's, passed before its result arrived."""

    blame = "caller"
    may_repeat = True


class Cancelled(JaxdError, RuntimeError):
    """The call was given up by its caller."""

    blame = "caller"


class InternalError(JaxdError, RuntimeError):
    """jaxd itself failed; the server's log has the traceback."""


class CompileAdvice(UserWarning):
    """A function is compiled, or taken apart, more often than its author can have meant."""


class FallbackWarning(UserWarning):
    """A function runs under plain `jax.jit` in this process: the server cannot run it as it is."""


class StoreWarning(UserWarning):
    """Something is wrong with the store of programs that this process uses without a server."""


class TracedReadWarning(UserWarning):
    """A function reads the clock, a file or a random state while it is traced.

    The program keeps what it read then.
    """


class UnsharedWarning(UserWarning):
    """A function reaches something that cannot be part of a key: no other process can share it."""


class SharedDeviceWarning(UserWarning):
    """This process uses the accelerator that a server on the same machine uses."""


class ValuesDiedWarning(UserWarning):
    """The arrays of this process died on the server, for which they took too much memory."""


class SkewWarning(UserWarning):
    """Packages differ: between this process and the server, or from what they were when loaded."""
