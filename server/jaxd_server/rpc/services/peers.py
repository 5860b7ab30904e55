"""What the other members of a pool ask: programs that are kept here, leases of builds, arrays.

Each question is sealed with the key of the pool, which no client has, and each answer as well.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import JaxdError, NoServer, ProtocolError, ValueDeleted
from jaxd_protocol.wire import BulkChannel, BulkConnection, BulkStream
from jaxd_server.cache.peers import (
    MOST_FRAME_BYTES,
    NOT_YET,
    PEER_VERB,
    STALLED_S,
    Answer,
    Peers,
)
from jaxd_server.cache.shared_store import SHARED_KINDS, signing
from jaxd_server.compilation.disk_cache.programs import ProgramCache

_SILENCE_S: Final = 30.0
"""A member that asks nothing for so long connects anew."""

_MOST_QUESTION: Final = 1 << 20

_MOST_LETTERS: Final = 100
_MOST_OFFERS: Final = 1024
_OFFERED_S: Final = 60.0
"""What is offered is taken at once, or never."""

_is_ticket: Final = re.compile("[0-9a-f]{32}").fullmatch

Give = Callable[[], tuple[bytes, Sequence[memoryview]]]
"""Gives arrays: what they look like, and their bytes; raises `ValueDeleted` when they are gone."""

_Content = Mapping[str, Any]
_Found = tuple[_Content, Sequence[memoryview]]
_NOTHING: Final[_Found] = {}, ()
_NO_MESSAGE: Final[tuple[str | None, int, Any]] = "", 0, ()


def _check_size(nbytes: int) -> None:
    """Returns when a message may be a question: who sends it may still be a client."""
    if nbytes > _MOST_QUESTION:
        raise ProtocolError(f"a question of a member of the pool has {nbytes:,} bytes.")


class _Offer(NamedTuple):
    """What a member may take: what it looks like, its bytes, and until when."""

    skeleton: bytes
    give: Give
    until: float


class PeerService:
    """Answers the other members of the pool. Thread-safe.

    Args:
        peers: who they are, and what this member knows as a keeper.
        program_cache: what is kept here; None: nothing.
    """

    def __init__(self, peers: Peers, program_cache: ProgramCache | None) -> None:
        self.peers = peers
        self._store = None if program_cache is None else program_cache.store
        self._sign = signing(peers.key)
        self._answers: Mapping[str, Callable[[_Content], _Found]] = {
            "read": self._read,
            "note": self._note,
            "lease": self._lease,
            "look": self._look,
            "take": self._give,
        }
        self._offers: BoundedDict[str, _Offer] = BoundedDict(_MOST_OFFERS)

    def serve(self, stream: BulkStream) -> None:
        """Answers one member until it leaves.

        Raises:
            JaxdError: when it sends something that no member of the pool sends.
        """
        stream.report_silence(_SILENCE_S)
        channel = BulkChannel(stream, MOST_FRAME_BYTES, _check_size)
        connection = BulkConnection(self, channel, {})
        try:
            with suppress(EOFError, TimeoutError):  # it has left, or has nothing to ask
                while True:
                    self._serve_one(connection, channel)
        finally:
            connection.shut()

    def _serve_one(self, connection: BulkConnection, channel: BulkChannel) -> None:
        verb, seq, args = connection.read_message(channel.recv()) or _NO_MESSAGE
        if verb != PEER_VERB or not (isinstance(args, tuple) and list(map(type, args)) == [bytes]):
            raise ProtocolError("a member of the pool sends something else than a question.")
        if not self.peers.own:
            connection.send_reply(seq, NOT_YET)
            return
        asked = self.peers.seal.open(f"peer {self.peers.own}", args[0])
        content, buffers = self._answered(asked)
        sealed = self.peers.seal.seal(f"peer answer {asked['nonce']}", content)
        connection.send_reply(seq, sealed, buffers)

    def _answered(self, asked: _Content) -> _Found:
        answer = self._answers.get(str(asked.get("ask")))
        try:
            return _NOTHING if answer is None else answer(asked)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"a question of a member of the pool cannot be read: {error!r}. Install the same "
                "jaxd on all of them."
            ) from error
        except JaxdError as error:
            return {"refused": str(error)}, ()

    def _read(self, asked: _Content) -> _Found:
        """A kept record, signed; or who has it, where that is known."""
        kind, name = asked["kind"], bytes.fromhex(asked["name"])
        store, register = self._store, self.peers.register
        if kind not in SHARED_KINDS or store is None or store.target != asked["target"]:
            return _NOTHING
        found = store.pieces_here(kind, name, self._sign, payload=bool(asked["payload"]))
        if found is None:
            return {"at": register.place(store.label(kind, name))}, ()
        sent, size = found
        return {"size": size}, (memoryview(sent),)

    def _note(self, asked: _Content) -> _Found:
        self.peers.register.note(str(asked["label"]), str(asked["member"]))
        return _NOTHING

    def _lease(self, asked: _Content) -> _Found:
        step, label, member = (str(asked[each]) for each in ("step", "label", "member"))
        found = self.peers.register.lease(step, label, int(asked["generation"]), member)
        return {"lease": found}, ()

    # arrays --------------------------------------------------------------------------------------

    def offer(self, skeleton: bytes, give: Give) -> str:
        """A ticket for another member, good once and for a minute.

        Args:
            skeleton: what the arrays look like, as a flat tuple.
            give: the same, and their bytes.
        """
        now = time.monotonic()
        for old, each in list(self._offers.items()):
            if each.until < now:
                self._offers.pop(old, None)
        ticket = secrets.token_hex(16)
        self._offers[ticket] = _Offer(skeleton, give, now + _OFFERED_S)
        return ticket

    def _offered(self, found: _Offer | None) -> _Offer:
        if found is None or found.until < time.monotonic():
            raise ValueDeleted("nothing is offered under that ticket. Offer the arrays once more.")
        return found

    def _look(self, asked: _Content) -> _Found:
        found = self._offered(self._offers.get(str(asked["ticket"])))
        return {"skeleton": found.skeleton.hex()}, ()

    def _give(self, asked: _Content) -> _Found:
        found = self._offered(self._offers.pop(str(asked["ticket"]), None))
        skeleton, buffers = found.give()
        return {"skeleton": skeleton.hex()}, buffers

    def look(self, member: str, ticket: str) -> bytes:
        """What arrays look like that a member has offered, as a flat tuple.

        Args:
            member: its name.
            ticket: under which it has offered them.

        Raises:
            NoServer: when that member is not known, or cannot be reached from this one.
            ProtocolError: when that is no ticket.
            ValueDeleted: when it has them no more.
        """
        return self._skeleton(self._asked("look", member, ticket))

    def take(self, member: str, ticket: str) -> tuple[bytes, Sequence[memoryview]]:
        """What a member has offered: what it looks like, and its bytes. Raises as `look`."""
        answer = self._asked("take", member, ticket)
        return self._skeleton(answer), answer.buffers

    def _asked(self, ask: str, member: str, ticket: str) -> Answer:
        """The answer of a member that a client has named, with a ticket; it may make both up."""
        if not _is_ticket(ticket):
            raise ProtocolError("what is to be taken has no ticket of a member of the pool.")
        try:
            return self.peers.links.ask(member, STALLED_S, ask=ask, ticket=ticket)
        except OSError as error:
            raise NoServer(
                f"{member[:_MOST_LETTERS]} cannot be reached from {self.peers.own}, another member "
                f"of the pool ({error}). Fetch the arrays and put them here."
            ) from error

    def _skeleton(self, answer: Answer) -> bytes:
        if "skeleton" not in answer.content:
            raise ValueDeleted(str(answer.content.get("refused", "it has them no more.")))
        return bytes.fromhex(answer.content["skeleton"])
