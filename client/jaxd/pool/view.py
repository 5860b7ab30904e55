"""What this process knows of a pool: asked of its director, and kept by one thread.

Calls read the view that is there; none waits for the director but the first. While no director
answers, the view stays as it is.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from jaxd_protocol.base.process import reset_after_fork, start_thread
from jaxd_protocol.errors import (
    Cancelled,
    ConfigurationError,
    JaxdError,
    NoServer,
    ProtocolError,
)
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.pool_view import (
    POOL_IN_WELCOME,
    POOL_UNREACHABLE,
    POOL_VIEW,
    PoolMember,
    PoolView,
    unpacked,
)
from jaxd_protocol.network.addresses import Address

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.server_requests import ServerRequestHandler
    from jaxd.connection.settings import Settings

_WAIT_S, _SHORT_WAIT_S = 5.0, 0.5
"""For so long the director may keep a question without news; then members are looked after."""

_GRACE_S: Final = 5.0
"""Beyond that, an answer is late, and the director is asked anew."""

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_NOTHING_YET: Final = 0, ""


class Seen(NamedTuple):
    """How the director sees a member that this process cannot reach.

    Attributes:
        state: as of `PoolMember`; "lost" also where it knows no such member.
        relay: where the director relays to the member, and what it wants to see there; None:
            nowhere.
    """

    state: str
    relay: Address | None = None


class Follower(Protocol):
    """Follows a view."""

    def changed(self) -> None:
        """There is another view."""

    def look_after(self) -> bool:
        """Called every few seconds, in the keeping thread; whether to come back soon."""


class ViewKeeper:
    """Keeps the view of one pool, from its first use on. Thread-safe.

    Args:
        settings: address of the director, and credentials.
        handler: handles the requests of a server; a director has none.
        follower: is told of each change; held weakly.

    Attributes:
        view: the last one.
        news: how many views there were, those the same as the one before among them.
        accepts: what the servers take, "code" or "exported".
        failure: why the director does not answer; None: it does, as far as is known.
    """

    def __init__(
        self, settings: Settings, handler: ServerRequestHandler, follower: Follower
    ) -> None:
        address = settings.server
        assert address is not None
        self._address = address
        self._settings = settings
        self._handler = handler
        self._follower = weakref.ref(follower)
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: connection and thread are the parent's."""
        self._changed = threading.Condition()  # guards all of these
        self._connection: ClientConnection | None = None
        self._thread: threading.Thread | None = None
        self._known = _NOTHING_YET
        self._wait_s = _WAIT_S
        self.view = PoolView()
        self.news = 0
        self.accepts = "code"
        self.failure: JaxdError | None = None

    @property
    def address(self) -> str:
        """Of the director, for people."""
        return str(self._address)

    def start(self, deadline: float | None = None) -> None:
        """Returns when there is a view, which is kept from then on.

        Args:
            deadline: `time.monotonic()` after which nobody waits for it; None: there is none.

        Raises:
            JaxdError: when the director cannot be reached, or refuses this client.
        """
        if self._thread is not None:
            return
        with self._changed:
            if self._thread is None:
                while self._follow(deadline):
                    pass
                thread = threading.Thread(target=self._run, name="jaxd-pool-view", daemon=True)
                self._thread = thread
                start_thread(thread)

    def stop(self) -> None:
        """Ends the thread; the next `start` begins anew, with the view that is there."""
        with self._changed:
            connection, self._connection, self._thread = self._connection, None, None
            self._known = _NOTHING_YET
            self._changed.notify_all()
        if connection is not None:
            connection.retire()

    def wait(self, news: int, deadline: float) -> bool:
        """Waits for another view; whether there is time left.

        Args:
            news: what `news` was before the last one was looked at.
            deadline: `time.monotonic()` after which nobody waits.
        """
        left_s = deadline - time.monotonic()
        if left_s > 0.0:
            with self._changed:
                self._changed.wait_for(lambda: self.news != news, left_s)
        return left_s > 0.0

    def report_unreachable(self, member: PoolMember, reason: str) -> Seen | None:
        """How the director sees a member that cannot be reached from here; None: it is away.

        Over a connection of its own: the other one waits for news.
        """
        try:
            connection = self._connect(time.monotonic() + _GRACE_S)
        except JaxdError:
            return None
        try:
            about = member.name, member.epoch, reason[:500]
            found = _content(connection.request(POOL_UNREACHABLE, about, deadline=_soon())[0])
            return _seen(found)
        except JaxdError:
            return None
        finally:
            connection.retire()

    def _run(self) -> None:
        me, pause_s = threading.current_thread(), _SHORTEST_PAUSE_S
        while self._thread is me and self._look_after():
            try:
                self._follow(keeper=me)
            except Cancelled:
                continue  # it was stopped
            except (JaxdError, OSError) as error:
                self.failure = error if isinstance(error, JaxdError) else NoServer(str(error))
                self._drop_connection()
                with self._changed:
                    self._changed.wait_for(lambda: self._thread is not me, pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            else:
                self.failure, pause_s = None, _SHORTEST_PAUSE_S

    def _look_after(self) -> bool:
        """Has the follower look after its members; whether there still is one."""
        follower = self._follower()
        if follower is None:
            return False
        self._wait_s = _WAIT_S
        with suppress(JaxdError):
            if follower.look_after():
                self._wait_s = _SHORT_WAIT_S
        return True

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.shut()

    def _follow(
        self, deadline: float | None = None, *, keeper: threading.Thread | None = None
    ) -> bool:
        """Asks for news once, and waits for them; whether there is more at once.

        Args:
            deadline: as of `start`.
            keeper: the thread that keeps the view from now on; None: there is none yet.
        """
        connection = self._connection
        if connection is None or not connection.alive:
            connection = self._connect(deadline)
            with self._changed:
                is_stopped = self._thread is not keeper
                self._connection = self._connection if is_stopped else connection
            if is_stopped:
                connection.retire()
                raise Cancelled("the client was closed. Its next call asks the director again.")
        wait_s = 0.0 if self._known == _NOTHING_YET else self._wait_s
        until = time.monotonic() + wait_s + _GRACE_S
        value, _ = connection.request(
            POOL_VIEW, (*self._known, wait_s), deadline=until if deadline is None else deadline
        )
        return self._take(_content(value))

    def _take(self, answer: dict[str, Any]) -> bool:
        whole = answer.get("view")
        change = answer.get("change", {}) if whole is None else whole
        before = self.view if whole is None else PoolView()
        self.view = view = before.patched(change)
        self._known = view.sequence, str(answer.get("source", ""))
        follower = self._follower()
        if follower is not None:
            follower.changed()
        with self._changed:
            self.news += 1
            self._changed.notify_all()
        return bool(answer.get("more"))

    def _connect(self, deadline: float | None) -> ClientConnection:
        """A connection to the director.

        Raises:
            ConfigurationError: when the address is that of a server.
            JaxdError: as `open_connection`.
        """
        from jaxd.connection.connect import open_connection

        address = self._address
        connection, welcome = open_connection(
            address, self._settings, None, self._handler, deadline
        )
        if POOL_IN_WELCOME not in welcome:
            connection.retire()
            raise ConfigurationError(
                f"what answers at {address} is a server and no director of a pool. Use "
                f"{address._replace(is_pool=False)} as its address."
            )
        self.accepts = welcome.get("accept", "code")
        return connection


def _seen(answer: Mapping[str, Any]) -> Seen:
    """What a director has answered about a member.

    Raises:
        ConfigurationError: when its relay has no address.
    """
    state, address = str(answer.get("state", "lost")), str(answer.get("address", ""))
    if not address:
        return Seen(state)
    return Seen(state, Address.parse(address)._replace(ticket=str(answer.get("ticket", ""))))


def _soon() -> float:
    return time.monotonic() + _GRACE_S


def _content(value: Any) -> dict[str, Any]:
    """What a director has answered.

    Raises:
        JaxdError: the failure that is its answer; ProtocolError: when it cannot be read.
    """
    if isinstance(value, tuple) and value[:1] == (FAILED,):
        from jaxd_protocol.messages.failures import decode_failure

        raise decode_failure(value[1])
    try:
        found: Any = unpacked(value)
    except (RecursionError, TypeError, ValueError) as error:
        raise _unreadable() from error
    if not isinstance(found, dict):
        raise _unreadable()
    return found


def _unreadable() -> ProtocolError:
    return ProtocolError(
        "what the director of the pool answers cannot be read. Install the same jaxd on both sides."
    )
