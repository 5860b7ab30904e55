"""Whether this process may unpickle. A server that takes exported programs only never does."""

from __future__ import annotations

from jaxd_protocol.errors import NotPermitted


class UnpicklingGate:
    """One for each process: open to all clients, or to none."""

    def __init__(self) -> None:
        self._is_shut = False

    def shut(self) -> None:
        """From now on nothing is unpacked, and nothing is imported because a client names it."""
        self._is_shut = True

    def require_open(self, what: str) -> None:
        """Returns when code of others may run here.

        Args:
            what: what is to be opened, for people.

        Raises:
            NotPermitted: when it may not.
        """
        if self._is_shut:
            raise NotPermitted(
                f"this server takes exported programs and data (--accept exported), and opens no "
                f"{what}. Pass arrays and numbers in dicts, lists and tuples, from a client of the "
                "same jaxd, or use a server that takes code."
            )


unpickling_gate = UnpicklingGate()
"""That of this process."""
