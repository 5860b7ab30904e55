"""The other members of a pool: what a member asks them for, instead of building it itself.

Each kept program has two *keepers*, which rendezvous hashing of its name gives. They know who has
it, and keep the leases of its build. So a member asks two others at most, however many there are,
and all that need the same program ask the same two. What comes is a record as in a shared store:
signed, and for an equal target, or it is not used.

Members ask over their own TLS, with the token that clients have as well. What they ask is therefore
sealed with the key of the pool, which clients do not have. A member that is gone, or slow, costs
its bound once, and is left alone for a while.
"""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import (
    AuthenticationFailed,
    ConfigurationError,
    JaxdError,
    ProtocolError,
)
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.certificates import fingerprint_of, over_tls
from jaxd_protocol.network.handshake import ChannelBinding, Message, handshake_with_server
from jaxd_protocol.network.pool_routing import ranked
from jaxd_protocol.network.tokens import Seal, read_store_key
from jaxd_protocol.wire import BulkChannel, BulkConnection, stream_over
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.cache.directory import Directory, Kind
from jaxd_server.cache.record_file import InvalidRecord, Record, Sign, read_record
from jaxd_server.cache.shared_store import SharedStore
from jaxd_server.cache.store_files import Beat, HeldFile
from jaxd_server.cache.writer import Troubles
from jaxd_server.runtime.logs import log_event

PEER_SESSION: Final = "member of the pool"
"""What stands in a handshake in the place of a session: who connects is no client."""

PEER_VERB: Final = "peer"

_CONNECT_S: Final = 1.0
_ANSWER_S: Final = 3.0
DATA_S: Final = 60.0
"""For the rest of an answer that goes on coming."""

STALLED_S: Final = 5.0
"""Where nothing of some arrays has come for so long, they are fetched by the client instead."""

NOT_YET: Final = b""
"""The answer of a member that was not told its own name yet: it cannot read what it is asked."""

_AWAY_S: Final = 10.0
"""A member that did not answer is not asked again for so long."""

_KEEPERS: Final = 2
_MOST_ASKED: Final = 4
MOST_FRAME_BYTES: Final = 8 << 30
_MOST_IDLE: Final = 2
_MOST_KNOWN: Final = 1 << 16
_STALE_NS: Final = int(3600e9)
_NO_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {}


def dial(
    address: Address, token: str | None, timeout_s: float, session: str | None = None
) -> tuple[TlsSocket, Message]:
    """A connection to a server that has the right certificate, and its welcome.

    Args:
        address: of the server, of TLS.
        token: that its clients have.
        timeout_s: for each step.
        session: what is said in the place of a session.

    Raises:
        EOFError, OSError, JaxdError: when there is none in time.
    """
    sock = socket.create_connection(address.place, timeout_s)
    try:
        line = over_tls(TlsSocket, sock, address, timeout_s)
        binding = ChannelBinding("tls", fingerprint_of(line.peer_certificate()))
        return line, handshake_with_server(line, binding, {}, token, session)
    except BaseException:
        sock.close()
        raise


# who they are -------------------------------------------------------------------------------------


class Members(NamedTuple):
    """The members of a pool, as one of them is told.

    Attributes:
        own: the name of that one.
        addresses: of each that serves, its own among them; those of TLS, with their pins.
    """

    own: str = ""
    addresses: Mapping[str, tuple[str, ...]] = _NO_MEMBERS

    def to_text(self) -> str:
        """For a file."""
        return json.dumps({"own": self.own, "addresses": dict(self.addresses)})

    @classmethod
    def of_text(cls, text: str) -> Members:
        """What `to_text` made.

        Raises:
            ValueError: when it is something else.
        """
        try:
            content = json.loads(text)
            rows = {str(k): tuple(map(str, v)) for k, v in content["addresses"].items()}
            return cls(str(content["own"]), rows)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("it does not list the members of a pool") from error


class MembersFile:
    """The members as a file lists them, which may be replaced at any time. Thread-safe.

    Args:
        path: of the file; there is nobody until it is there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = Members()
        self._state: object = None

    def now(self) -> Members:
        """The members now; costs a look at the file's inode."""
        try:
            found = os.stat(self._path)
        except OSError:
            return self._read
        state = found.st_ino, found.st_mtime_ns
        if state != self._state:
            with suppress(OSError, ValueError), open(self._path, encoding="utf-8") as file:
                self._read, self._state = Members.of_text(file.read()), state
        return self._read


# asking them --------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a member has answered.

    Attributes:
        content: JSON, which was sealed.
        buffers: bytes beside it.
    """

    content: Mapping[str, Any]
    buffers: Sequence[memoryview] = ()


class _NotYet(OSError):
    """A member answers, and cannot say anything yet."""


class _Link(BulkConnection):
    """A connection to a member, for one question at a time."""

    def ask(self, message: bytes, timeout_s: float) -> Any:
        """The value and the buffers of the reply; raises OSError, EOFError or JaxdError.

        TimeoutError when nothing of it has come for so long, also in its middle; all of it may
        take longer.
        """
        stream = self._channel.stream
        stream.report_silence(timeout_s)
        bound = threading.Timer(timeout_s + DATA_S, stream.shutdown)
        bound.daemon = True
        bound.start()
        try:
            seq = next(self.numbers)
            self.send_request(seq, PEER_VERB, (message,))
            if not self._channel.poll(timeout_s):
                raise TimeoutError(f"it has said nothing for {timeout_s:g} s")
            while True:
                frame = self._channel.recv()
                found = self.read_message(frame)
                if found is not None and found[:2] == (None, seq):
                    return found[2], frame.buffers
        except OSError:
            self.shut()
            raise
        finally:
            bound.cancel()


class PeerLinks:
    """Asks the other members. Thread-safe; connections are kept for a while.

    Args:
        members: who they are.
        seal: with the key of the pool.
        token: that clients of all members have.
    """

    def __init__(
        self, members: Callable[[], Members], seal: Seal, token: Callable[[], str | None]
    ) -> None:
        self.members = members
        self._seal = seal
        self._token = token
        self._idle: dict[Address, list[_Link]] = {}
        self._away: dict[str, tuple[object, float]] = {}  # where, and until when
        self._lock = threading.Lock()  # guards both
        self.asked = 0

    def is_away(self, name: str) -> bool:
        """Whether a member did not answer a moment ago, at the address that it has now."""
        place, until = self._away.get(name, (None, 0.0))
        return until > time.monotonic() and place == self.members().addresses.get(name)

    def ask(self, name: str, timeout_s: float = _ANSWER_S, /, **question: Any) -> Answer:
        """The answer of a member.

        Args:
            name: of the member.
            timeout_s: for so long nothing of it may come, beside one second to connect.
            question: see `rpc.services.peers`.

        Raises:
            OSError: when there is none; the member is then left alone for a while, unless it does
                not know its own name yet.
        """
        if name not in self.members().addresses:
            raise OSError(errno.EHOSTUNREACH, "no member of that name is known here")
        if self.is_away(name):
            raise OSError(errno.EHOSTUNREACH, f"{name} did not answer a moment ago")
        self.asked += 1
        try:
            return self._asked(name, question, timeout_s)
        except _NotYet:
            raise
        except (EOFError, OSError, JaxdError) as error:
            place = self.members().addresses.get(name)
            self._away[name] = place, time.monotonic() + _AWAY_S
            log_event("peer_away", member=name, reason=str(error))
            raise OSError(errno.EHOSTUNREACH, str(error)) from error

    def close(self) -> None:
        """Ends the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for link in (each for links in idle.values() for each in links):
            link.shut()

    def _asked(self, name: str, question: Mapping[str, Any], timeout_s: float) -> Answer:
        nonce = secrets.token_hex(16)
        message = self._seal.seal(f"peer {name}", {**question, "nonce": nonce})
        address = self._address(name)
        link = self._kept(address)
        if link is not None:
            with suppress(EOFError):  # it has ended meanwhile; a new one follows
                return self._opened(address, nonce, link, link.ask(message, timeout_s))
            link.shut()
        link = self._connected(address)
        return self._opened(address, nonce, link, link.ask(message, timeout_s))

    def _opened(self, address: Address, nonce: str, link: _Link, reply: Any) -> Answer:
        sealed, buffers = reply
        if sealed == NOT_YET:
            link.shut()
            raise _NotYet(errno.EAGAIN, "it does not know its own name yet")
        try:
            content = self._seal.open(f"peer answer {nonce}", bytes(sealed))
        except (AuthenticationFailed, ProtocolError, TypeError, ValueError):
            link.shut()
            raise
        known = {place for each in self.members().addresses.values() for place in each}
        with self._lock:
            left = [each for each in self._idle if str(each) not in known]
            ended = [link for each in left for link in self._idle.pop(each)]
            idle = self._idle.setdefault(address, [])
            idle.append(link)
            ended += idle[_MOST_IDLE:]
            del idle[_MOST_IDLE:]
        for each in ended:  # of members that have left the pool, and too many
            each.shut()
        return Answer(content, buffers)

    def _kept(self, address: Address) -> _Link | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _address(self, name: str) -> Address:
        addresses = map(Address.parse, self.members().addresses.get(name, ()))
        address = next((each for each in addresses if each.kind == "tls"), None)
        if address is None:
            raise OSError(errno.EHOSTUNREACH, f"{name} has no address for other members")
        return address

    def _connected(self, address: Address) -> _Link:
        line, _ = dial(address, self._token(), _CONNECT_S, PEER_SESSION)
        return _Link(self, BulkChannel(stream_over(line), MOST_FRAME_BYTES), {})


# what keepers know --------------------------------------------------------------------------------


class _Held(NamedTuple):
    """A lease: its number, when it was touched last, and the name of its holder."""

    generation: int
    touched: int
    holder: str


class BuildRegister:
    """What a member knows as a keeper: who has a program, and who builds it. Thread-safe."""

    def __init__(self) -> None:
        self._places: BoundedDict[str, str] = BoundedDict(_MOST_KNOWN)
        self._leases: dict[str, _Held] = {}
        self._lock = threading.Lock()  # guards the leases

    def note(self, label: str, member: str) -> None:
        """A member has it now."""
        self._places[label] = member

    def place(self, label: str) -> str:
        """Who has it; empty where that is not known."""
        return self._places.get(label) or ""

    def lease(self, step: str, label: str, generation: int, holder: str) -> list[Any]:
        """A step of a lease, as `StoreFiles` has them.

        Returns:
            generation, time and holder of the newest lease; for the step "take" empty where another
            one was faster, and for all others where there is none.
        """
        now = time.time_ns()
        with self._lock:
            found = self._leases.get(label)
            is_own = found is not None and found.generation == generation
            if step == "take" and (found is None or found.generation < generation):
                self._forget_old(now)
                found = self._leases[label] = _Held(generation, now, holder)
            elif step == "take":
                found = None
            elif step == "touch" and is_own:
                found = self._leases[label] = _Held(generation, now, holder)
            elif step == "drop" and is_own:
                del self._leases[label]
                found = None
            return [] if found is None else list(found)

    def _forget_old(self, now: int) -> None:
        if len(self._leases) >= _MOST_KNOWN:
            kept = {k: v for k, v in self._leases.items() if now - v.touched < _STALE_NS}
            self._leases = kept


class Peers(NamedTuple):
    """What a member needs to ask the others, and to answer them.

    Attributes:
        links: asks them.
        register: what this member knows as a keeper.
        seal: with the key of the pool.
        key: the same, with which programs are signed.
    """

    links: PeerLinks
    register: BuildRegister
    seal: Seal
    key: str

    @property
    def own(self) -> str:
        """The name of this member; empty until it is told."""
        return self.links.members().own


def open_peers(path: str | None, token: Callable[[], str | None]) -> Peers | None:
    """The other members of the pool; None: there are none, or no key, which is logged.

    Args:
        path: of the file that lists them.
        token: that clients of all members have.
    """
    if path is None:
        return None
    try:
        key = read_store_key()
    except ConfigurationError as error:
        log_event("store_refused", folder=path, reason=str(error))
        return None
    seal = Seal(key)
    return Peers(PeerLinks(MembersFile(path).now, seal, token), BuildRegister(), seal, key)


def peer_store(peers: Peers, target: str, _: Mapping[str, str]) -> SharedStore:
    """What the members keep for a target, as the store that they share."""
    files = PeerFiles(peers.links, peers.register, target)
    return SharedStore(files, peers.key, Troubles(), name="the other members of the pool")


# as the files of a store --------------------------------------------------------------------------


class PeerFiles:
    """What the members of a pool keep for one target, as `StoreFiles`.

    Args:
        links: asks them.
        register: what this member knows as a keeper.
        target: the name of the target.
    """

    def __init__(self, links: PeerLinks, register: BuildRegister, target: str) -> None:
        self.directory = Directory("", target)
        self._links = links
        self._register = register
        self._told: BoundedDict[str, Members] = BoundedDict(_MOST_KNOWN)
        self._refused: BoundedDict[tuple[str, str], bool] = BoundedDict(_MOST_KNOWN)

    def _label(self, path: str) -> str:
        """What a record is called among members: target, kind and name."""
        return path.removeprefix("/")

    def _keepers(self, label: str) -> list[str]:
        """Who keeps what is known of a record, the first one first; this member where nobody is."""
        members = self._links.members()
        order = ranked(label.encode(), list(members.addresses))
        usable = (each for each in order if not self._links.is_away(each))
        found = [each for _, each in zip(range(_KEEPERS), usable, strict=False)]
        return found or [members.own]

    def read(self, kind: Kind, name: bytes, sign: Sign, *, payload: bool) -> Record:
        """See `StoreFiles`."""
        label = self._label(self.directory.file(kind, name))
        own, asked = self._links.members().own, {""}
        waiting = deque(self._keepers(label))
        while waiting and len(asked) <= _MOST_ASKED:
            member = waiting.popleft()
            if member in asked:
                continue
            asked.add(member)
            if member == own:
                waiting.append(self._register.place(label))
                continue
            answer = self._asked_for(member, kind, name, payload=payload)
            waiting.append(str(answer.content.get("at", "")))
            found = self._checked(member, label, answer, (kind, name), sign, payload=payload)
            if found is not None:
                return found
        raise FileNotFoundError(errno.ENOENT, "no member has it", label)

    def _asked_for(self, member: str, kind: str, name: bytes, *, payload: bool) -> Answer:
        target = self.directory.target
        question = {"kind": kind, "name": name.hex(), "target": target, "payload": payload}
        with suppress(OSError):  # the others may have it
            return self._links.ask(member, _ANSWER_S, ask="read", **question)
        return Answer({})

    def _checked(
        self,
        member: str,
        label: str,
        answer: Answer,
        wanted: tuple[str, bytes],
        sign: Sign,
        *,
        payload: bool,
    ) -> Record | None:
        """The record that a member has sent, if it is signed and whole, and for an equal target."""
        if not answer.buffers or self._refused.get((member, label)):
            return None
        file, size = io.BytesIO(answer.buffers[0]), int(answer.content.get("size", 0))
        try:
            return read_record(
                file, size, *wanted, self.directory.target, payload=payload, sign=sign
            )
        except InvalidRecord as error:
            self._refused[member, label] = True
            log_event("store_entry_refused", path=f"{label} of {member}", reason=str(error))
            return None

    def has(self, path: str) -> bool:
        """Whether keepers were told that it is here; see `StoreFiles`."""
        return self._told.get(self._label(path)) == self._links.members()

    def state(self, path: str) -> object:
        """See `StoreFiles`; what is refused is remembered for each member."""
        return None

    def write(self, path: str, pieces: tuple[bytes, ...]) -> None:
        """Tells the keepers that this member has it: the bytes stay in its own cache."""
        label, members = self._label(path), self._links.members()
        for keeper in self._keepers(label):
            if keeper == members.own:
                self._register.note(label, members.own)
                continue
            with suppress(OSError):
                self._links.ask(keeper, ask="note", label=label, member=members.own)
        self._told[label] = members

    # leases --------------------------------------------------------------------------------------

    def _lease(
        self, step: str, stem: str, generation: int = 0, at: str = ""
    ) -> tuple[str, list[Any]]:
        """A step of a lease at its keeper, the first that answers: which one, and its answer."""
        label, own = self._label(stem), self._links.members().own
        for keeper in [at] if at else self._keepers(label):
            if keeper == own:
                break
            with suppress(OSError):
                question = {"label": label, "step": step, "generation": generation, "member": own}
                found = self._links.ask(keeper, ask="lease", **question).content.get("lease", [])
                return keeper, list(found)
        return own, self._register.lease(step, label, generation, own)

    def newest(self, stem: str) -> Beat | None:
        """See `StoreFiles`."""
        _, found = self._lease("look", stem)
        return Beat(int(found[0]), int(found[1])) if found else None

    def holder(self, stem: str, generation: int) -> str:
        """See `StoreFiles`."""
        _, found = self._lease("look", stem)
        return str(found[2]) if found and found[0] == generation else ""

    def take(self, stem: str, generation: int) -> HeldFile | None:
        """See `StoreFiles`."""
        keeper, found = self._lease("take", stem, generation)
        if not found:
            return None
        return _HeldByKeeper(lambda step: self._lease(step, stem, generation, keeper))


class _HeldByKeeper:
    """See `HeldFile`."""

    def __init__(self, step: Callable[[str], object]) -> None:
        self._step = step
        self._is_dropped = False

    def touch(self) -> None:
        if not self._is_dropped:
            self._step("touch")

    def drop(self) -> None:
        self._is_dropped = True
        self._step("drop")
