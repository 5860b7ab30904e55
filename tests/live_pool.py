"""The director of a pool for the tests, in this process, with a fixed list of members."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from jaxd.connection.connect import open_connection
from jaxd.connection.connection import ClientConnection
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import CannotListen
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.messages.pool_view import POOL_VIEW, PoolMember, PoolView, unpacked
from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.listeners import Listener, open_listeners
from jaxd_server.auth.tls_setup import connection_hints, prepare_own_certificate
from jaxd_server.config.options import ServerOptions
from jaxd_server.pool.director import Director, Obey
from jaxd_server.pool.members import MemberTable
from tests.live_server import TOKEN
from tests.server.staging import until


class LiveDirector:
    """Started at once; `close` ends it.

    Args:
        folder: short, for its socket and its token; XDG_CONFIG_HOME says where its certificate is.
        *members: those of the pool; `table` changes them later.
        port: that it listens on; 0: any.
        obey: as of `Director`.
        epoch: its number.

    Attributes:
        table: the members.
        tls: its address, with the pin, as a server's.
        pool: the same as clients name it.
        unix: its Unix socket.
    """

    def __init__(
        self,
        folder: Path,
        *members: PoolMember,
        port: int = 0,
        obey: Obey | None = None,
        epoch: int = 1,
    ) -> None:
        token_file = folder / "director.token"
        token_file.touch(mode=0o600)
        token_file.write_text(TOKEN)
        certificate = prepare_own_certificate()
        self.unix = Address.unix(f"{folder}/director.sock")
        options = ServerOptions(
            listen=(self.unix, Address.tls("127.0.0.1", port)),
            token_file=str(token_file),
            token_dir=str(folder / "tokens"),
            tls_cert=certificate,
            tls_key=certificate,
        )
        self.table = MemberTable("lab")
        for member in members:
            self.table.show(member)
        self._stack = ExitStack()
        listeners: list[Listener] = []

        def listens() -> bool:
            with suppress(CannotListen):  # a connection of another test may have this very port
                listeners.extend(self._stack.enter_context(open_listeners(options.listen)))
            return bool(listeners)

        until(listens)
        self.director = Director(self.table, options, listeners, obey, epoch)
        (line,) = connection_hints(options, listeners)
        self.tls = Address.parse(line.split("'")[1])
        self.pool = f"pool{str(self.tls).removeprefix('tls')}"

    def close(self) -> None:
        """Ends it with all its connections."""
        self.director.close()
        self._stack.close()


class _NoRequests:
    """A director asks its clients nothing."""

    def answer_request(self, *_: Any) -> NoReturn:
        raise AssertionError("the director asks its client for something")

    call_back = event = answer_request


class ViewClient:
    """A client of a director as plain as can be; `close` it.

    Attributes:
        view: what it knows.
        welcome: what the director said first.
    """

    def __init__(self, address: Address, token: str = TOKEN) -> None:
        settings = Settings(server=address, token=token)
        self._connection: ClientConnection
        self._connection, welcome = open_connection(address, settings, None, _NoRequests())
        self.welcome: Mapping[str, Any] = welcome
        self.view = PoolView()
        self._source = ""

    def ask(self, verb: str, *args: Any) -> dict[str, Any]:
        """The answer to a question, or the error that it is."""
        value, _ = self._connection.request(verb, args)
        if value[0] == FAILED:
            raise decode_failure(value[1])
        found: dict[str, Any] = unpacked(value)
        return found

    def look(self, wait_s: float = 30.0) -> PoolView:
        """The view once it has changed, or after so long."""
        answer = self.ask(POOL_VIEW, self.view.sequence, self._source, wait_s)
        if "view" in answer:
            self.view = PoolView.from_dict(answer["view"])
        else:
            self.view = self.view.patched(answer["change"])
        self._source = answer["source"]
        return self.view

    def close(self) -> None:
        """Ends the connection."""
        self._connection.shut()
