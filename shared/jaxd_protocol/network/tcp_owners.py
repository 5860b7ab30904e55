"""The local user who owns the other end of a TCP connection, as the kernel reports it.

Both ends of such a connection are sockets of one network namespace, and the kernel records for each
the user whose process made or accepted it. Linux is queried by netlink (sock_diag(7)), in about
20 µs for any number of sockets; where that is unavailable, as in some sandboxes, the table of
sockets is read. A peer on another machine, behind a tunnel or behind a published port has no local
socket, and nothing is known of it.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any, Final, NamedTuple

_MAPPED: Final = bytes(10) + b"\xff\xff"
"""The prefix of an IPv4 address among those of IPv6."""

_ESTABLISHED: Final = 1
_UNKNOWN_UID: Final = 65534
"""The user that the kernel reports where this process's user namespace has no number for it."""

_SOCK_DIAG_BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST_FLAG: Final = 1  # NLM_F_REQUEST
_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr
_QUERY: Final = struct.Struct("=BBBxI")  # inet_diag_req_v2: family, protocol, extensions, states
_ENDS: Final = struct.Struct("!HH16s16s")  # inet_diag_sockid: ports and addresses, its end first
_ANY_STATE: Final = 0xFFFFFFFF
_ANY_DEVICE: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # and no cookie
_ANSWER: Final = struct.Struct("!16x BBxx HH16s16s 12x 12x 4s4s")
"""nlmsghdr, then inet_diag_msg: family, state, its ends, device and cookie, queues, user, inode."""

_ANSWER_BYTES: Final = 1 << 13
_TIMEOUT_S: Final = 1.0

_SOCKET_TABLES: Final = (("/proc/self/net/tcp", len(_MAPPED)), ("/proc/self/net/tcp6", 0))
"""Of IPv4 and IPv6: the path, and how many bytes of an address it leaves out."""

_MAX_TABLE_BYTES: Final = 1 << 23
"""About 50000 sockets; the rest of a table is not searched."""


class _Endpoint(NamedTuple):
    """One end of a connection: an address of IPv6, or of IPv4 in its place there, and a port."""

    address: bytes
    port: int


class _SocketInfo(NamedTuple):
    """The kernel's data about a socket."""

    state: int
    uid: int
    inode: int


def owner_of_peer(sock: socket.socket) -> int | None:
    """The user who owns the other end of a connected TCP socket.

    Returns:
        None when the kernel does not report it: the other end is not in this network namespace, is
        closed or not accepted yet, or belongs to a user without a number here, or the system is
        not Linux.
    """
    try:
        there, here = _endpoint(sock.getpeername()), _endpoint(sock.getsockname())
        find = _by_netlink if _has_netlink(here, there) else _by_tables
        found = find(there, here)
    except OSError:
        return None
    if found is None or found.state != _ESTABLISHED or not found.inode:
        return None  # the kernel may report root for a socket that no process holds
    return None if found.uid == _UNKNOWN_UID else found.uid


def _endpoint(name: Any) -> _Endpoint:
    text = str(name[0]).partition("%")[0]
    if ":" in text:
        return _Endpoint(socket.inet_pton(socket.AF_INET6, text), int(name[1]))
    return _Endpoint(_MAPPED + socket.inet_pton(socket.AF_INET, text), int(name[1]))


def _has_netlink(here: _Endpoint, there: _Endpoint) -> bool:
    """Whether netlink reports sockets at all: it has to report this end's."""
    try:
        return _by_netlink(here, there) is not None
    except OSError:
        return False


def _by_netlink(local: _Endpoint, remote: _Endpoint) -> _SocketInfo | None:
    """The kernel's answer for the one socket of that connection.

    Raises:
        OSError: when it cannot be queried.
    """
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        raise OSError("no netlink")
    # the kernel looks up mapped addresses of IPv4 among all sockets of IPv4
    which = _ENDS.pack(local.port, remote.port, local.address, remote.address) + _ANY_DEVICE
    query = _QUERY.pack(socket.AF_INET6, socket.IPPROTO_TCP, 0, _ANY_STATE) + which
    request = (
        _HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST_FLAG, 1, 0) + query
    )
    with socket.socket(family, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.sendto(request, (0, 0))
        answer = kernel.recv(_ANSWER_BYTES)
    if len(answer) < _ANSWER.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None  # an error: there is no such socket
    family, state, port, other_port, address, other, *last = _ANSWER.unpack_from(answer)
    uid, inode = (int.from_bytes(word, sys.byteorder) for word in last)
    ends = _of_family(family, address, port), _of_family(family, other, other_port)
    # where there is no such connection, it reports the listening socket
    return _SocketInfo(state, uid, inode) if ends == (local, remote) else None


def _of_family(family: int, address: bytes, port: int) -> _Endpoint:
    if family == socket.AF_INET:
        return _Endpoint(_MAPPED + address[:4], port)
    return _Endpoint(address, port)


def _by_tables(local: _Endpoint, remote: _Endpoint) -> _SocketInfo | None:
    """The entry in the kernel's table of sockets.

    Raises:
        OSError: when the table cannot be read.
    """
    ipv4 = local.address.startswith(_MAPPED) and remote.address.startswith(_MAPPED)
    for path, skipped in _SOCKET_TABLES if ipv4 else _SOCKET_TABLES[1:]:
        ends = [_as_in_table(end, skipped) for end in (local, remote)]
        try:
            with open(path, encoding="ascii") as table:
                text = table.read(_MAX_TABLE_BYTES)
        except FileNotFoundError:  # a system without IPv6
            continue
        for line in text.splitlines()[1:]:
            fields = line.split()
            if fields[1:3] == ends and len(fields) > 9:
                return _SocketInfo(int(fields[3], 16), int(fields[7]), int(fields[9]))
    return None


def _as_in_table(end: _Endpoint, skipped: int) -> str:
    """An end in the format of the table: words of 32 bits, in this machine's byte order."""
    address = end.address[skipped:]
    words = struct.unpack(f"={len(address) // 4}I", address)
    return "".join(f"{word:08X}" for word in words) + f":{end.port:04X}"
