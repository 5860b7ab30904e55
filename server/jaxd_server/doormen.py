"""A doorman for each listener of a process, and what they have in common."""

from __future__ import annotations

import os

from jaxd_protocol.addresses import Address
from jaxd_server.accounts import Accounts
from jaxd_server.doorman import Doorman, wrong_tokens
from jaxd_server.invitation import tls_of
from jaxd_server.options import ServerOptions

__all__ = ["Doormen"]


class Doormen:
    """Who lets clients in, as a server's options say.

    All of them ask the same accounts and remember the same wrong tokens, so that whoever guesses
    gains nothing by trying one listener after the other.

    Args:
        options: what the server was told.
        accounts: whose clients may come.

    Raises:
        ConfigurationError: when the certificate cannot be used.
    """

    def __init__(self, options: ServerOptions, accounts: Accounts) -> None:
        self._options = options
        self._accounts = accounts
        self._failures = wrong_tokens()
        self._tls = tls_of(options)

    def at(self, address: Address) -> Doorman:
        """The one for the listener at an address."""
        return Doorman(
            address,
            self._accounts.now,
            os.getuid(),
            self._options.allow_unauthenticated_loopback,
            guests=self._options.allow_uids,
            tls=self._tls if address.kind == "tls" else None,
            insecure=self._options.insecure_plaintext,
            failures=self._failures,
        )
