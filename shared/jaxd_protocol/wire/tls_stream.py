"""A stream over TLS: what `BulkStream` is over a plain socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jaxd_protocol.errors import InternalError
from jaxd_protocol.wire.stream import BulkStream
from jaxd_protocol.wire.tls_socket import TlsSocket


class TlsStream(BulkStream):
    """As `BulkStream`; no open files travel over it.

    Args:
        tls: past its handshake.
    """

    __slots__ = ("_tls",)

    def __init__(self, tls: TlsSocket) -> None:
        super().__init__(tls.raw)
        self._tls = tls
        self.passes_descriptors = False

    def wait_readable(self, timeout_s: float | None) -> bool:
        """Whether bytes (or the end) are there; some may have left the socket already."""
        return self._tls.has_input() or super().wait_readable(timeout_s)

    def has_ended(self) -> bool:
        """Whether the peer has closed the connection, as far as it is known now."""
        return not self._tls.has_input() and super().has_ended()

    def readiness(self) -> Callable[[], object]:
        """A function that returns, without waiting, whether bytes (or the end) are there."""
        has_input, is_readable = self._tls.has_input, super().readiness()
        return lambda: has_input() or is_readable()

    def receive_into(self, views: list[memoryview], received: list[int]) -> None:
        """Receives once, and counts what was decrypted; there may be none, as of `BulkStream`.

        Raises:
            EOFError: when the peer closed the connection, it broke, or an interrupt made the
                count unknown.
            TimeoutError: when nothing has come for a while; see `report_silence`.
        """
        with self._ending(self.close):
            has_come = self._tls.receive_into(views, received)
        if not has_come:
            self._on_silence()

    def send_some(
        self, views: list[memoryview], sent: list[int], descriptors: Sequence[int] = ()
    ) -> None:
        """Encrypts and sends once; what is counted has gone out when `flush` has returned.

        Raises:
            EOFError: as in `receive_into`.
            InternalError: for open files; nothing was sent then.
        """
        if descriptors:
            raise InternalError(
                "open files cannot travel over TLS. Send what is in them; please report this."
            )
        with self._ending(self.shutdown):
            self._tls.send_some(views, sent)

    def flush(self) -> None:
        """Sends what was counted before an interrupt.

        Raises:
            EOFError: when the connection broke.
        """
        with self._ending(self.shutdown):
            self._tls.flush()

    @contextmanager
    def _ending(self, end: Callable[[], None]) -> Iterator[None]:
        try:
            yield
        except EOFError:
            end()
            raise
        except OSError as error:  # of the socket, or of TLS
            end()
            raise EOFError(f"connection lost: {error}") from error
