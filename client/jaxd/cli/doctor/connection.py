"""Checks of the connection to the server, step by step: name, port, handshake, devices.

The first step that fails is reported; those behind it are left out.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxd.cli.doctor.context import Check, DoctorContext
from jaxd.cli.doctor.gpu import has_gpu
from jaxd.connection.control_client import send_request
from jaxd.connection.discovery import has_server_extra
from jaxd_protocol.errors import (
    AuthenticationFailed,
    JaxdError,
    ProtocolError,
    VersionMismatch,
)
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import is_server_running

if TYPE_CHECKING:
    from jaxd.pool.routes import Pool
    from jaxd_protocol.messages.pool_view import PoolMember

_CONNECT_S = 5.0


def local_server(context: DoctorContext) -> Check:
    """The one of this environment."""
    name, path = "local server", context.files.socket
    if not os.path.lexists(path):
        return Check(name, "ok", "not running")
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return Check(name, "bad", f"{path} is no socket", f"Run: rm {path}")
    if not is_server_running(path):
        return Check(name, "note", "gone; its socket file is left", "The next start replaces it.")
    return _local_worker(context, name)


def _local_worker(context: DoctorContext, name: str) -> Check:
    """The state of the local server's worker, as its host reports it."""
    try:
        status = send_request(context.files.control, {"ask": "status"})
    except JaxdError as error:
        return Check(name, "bad", "does not reply", str(error))
    if status is None:
        return Check(name, "bad", "runs without its host", "Wait a moment and run jaxd start.")
    state = status["worker_state"]
    if state == "dead":
        advice = f"See: {context.files.log}"
        return Check(name, "bad", "its worker died and is being replaced", advice)
    return Check(name, "ok", f"{state}, process {status['host']['pid']}")


def steps(context: DoctorContext) -> list[Check]:
    """From the name of the server to its devices; up to the first step that fails."""
    if not context.has_server:
        return [_nothing_to_try()]
    checks: list[Check] = []
    for step in (host_name, server_port) if context.address.needs_token else ():
        checks.append(step(context.address))
        if checks[-1].state == "bad":
            return checks
    from jaxd.connection.connect import probe

    try:
        welcome = probe(context.address, context.settings)
    except JaxdError as error:
        return [*checks, Check(_failed_step(error), "bad", str(context.address), str(error))]
    checks.append(Check("connection", "ok", str(context.address)))
    if context.address.is_pool:
        return [*checks, *members(context)]
    return [*checks, versions(context, welcome), devices(context)]


def members(context: DoctorContext) -> list[Check]:
    """Which members a pool has, and how this process reaches each."""
    from jaxd.dispatch.caller import Caller
    from jaxd.pool.routes import Pool

    caller = Caller(context.settings)
    pool = Pool(context.settings, caller)
    try:
        pool.keeper.start()
        found = sorted(pool.keeper.view.members.values(), key=lambda each: each.name)
        checks = [_member(context, pool, each) for each in found]
    except JaxdError as error:
        return [Check("pool", "bad", "its director does not say what it has", str(error))]
    finally:
        pool.close()
    ready = sum(each.state == "ready" for each in found)
    told = f"{pool.keeper.view.pool}: {ready} of {len(found)} members take calls"
    advice = "" if ready else "See: jaxd pool status"
    return [Check("pool", "ok" if ready else "bad", told, advice), *checks]


def _member(context: DoctorContext, pool: Pool, member: PoolMember) -> Check:
    """How one member is reached: by itself, by a relay of the director, or not at all."""
    from jaxd.pool.members import usable_addresses

    name, found = f"member {member.name}", f"{member.state}, {member.load} calls"
    if member.state in {"starting", "lost"}:
        return Check(name, "note", member.state, "See: jaxd pool status")
    failure = ""
    for address in usable_addresses(member):
        failure = _failure_at(context, address)
        if not failure:
            return Check(name, "ok", f"{found}, {address._replace(pin='')}")
    failure = failure or f"none of its addresses is for this machine: {', '.join(member.addresses)}"
    seen = pool.keeper.report_unreachable(member, failure)
    relay = None if seen is None else seen.relay
    if relay is not None and not _failure_at(context, relay):
        found = f"{found}, by the director's relay"
        return Check(name, "note", found, f"Calls take the longer way: {failure}")
    advice = f"Calls go to other members. Open the way to it, or: jaxd pool drain {member.name}"
    return Check(name, "bad", f"cannot be reached from here: {failure}", advice)


def _failure_at(context: DoctorContext, address: Address) -> str:
    """Why no server can be spoken with there; empty: one can."""
    from jaxd.connection.connect import probe

    try:
        probe(address, context.settings)
    except JaxdError as error:
        return str(error)
    return ""


def _nothing_to_try() -> Check:
    if has_server_extra():
        return Check("connection", "ok", "no server to try; the first call starts one")
    advice = "Run jaxd start in the environment of a server, and set JAXD_SERVER to its address."
    return Check("connection", "note", "no server to try, and this environment has none", advice)


def host_name(address: Address) -> Check:
    """Whether the host's name can be resolved here."""
    try:
        socket.getaddrinfo(*address.place, type=socket.SOCK_STREAM)
    except OSError as error:
        advice = f"Correct JAXD_SERVER, or use an IP address. Try: getent hosts {address.host}"
        return Check("host name", "bad", f"{address.host}: {error.strerror or error}", advice)
    return Check("host name", "ok", address.host)


def server_port(address: Address) -> Check:
    """Whether something listens there."""
    where = f"{address.host}:{address.port}"
    try:
        socket.create_connection(address.place, _CONNECT_S).close()
    except TimeoutError:
        other = "" if address.is_pool else f", or use ssh://{address.host}, which needs no port"
        advice = f"A firewall drops it, or the machine is off. Open the port there{other}."
        return Check("port", "bad", f"{where} does not answer", advice)
    except OSError as error:
        if address.is_pool:
            advice = "No director listens. On its machine: jaxd pool up pool.toml"
            return Check("port", "bad", f"{where}: {error.strerror or error}", advice)
        advice = (
            f"Nothing listens. On that machine: jaxd serve --listen {address.kind}://0.0.0.0:"
            f"{address.port}   (in a container also: docker run -p {address.port}:{address.port} …)"
        )
        return Check("port", "bad", f"{where}: {error.strerror or error}", advice)
    return Check("port", "ok", f"{where} is open")


def _failed_step(error: JaxdError) -> str:
    """The step of the handshake that failed."""
    if isinstance(error, VersionMismatch):
        return "versions"
    if isinstance(error, AuthenticationFailed):
        if any(sign in str(error) for sign in ("?insecure=1", "?uid=", "a socket of theirs")):
            return "connection"
        return "certificate" if "certificate" in str(error) else "token"
    return "protocol" if isinstance(error, ProtocolError) else "connection"


def versions(context: DoctorContext, welcome: Mapping[str, Any]) -> Check:
    """The packages that both sides have, in versions that are not the same."""
    pairs = [(package, context.version(package), v) for package, v in welcome["versions"].items()]
    differing = [
        f"{p} {here} here, {there} there" for p, here, there in pairs if here and here != there
    ]
    if not differing:
        return Check("versions", "ok", "the same on both sides")
    advice = "Results may differ in detail; install the same versions on both sides."
    return Check("versions", "note", ", ".join(differing), advice)


def devices(context: DoctorContext) -> Check:
    """What the server computes on."""
    from jaxd.api.client import Client
    from jaxd.dispatch.caller import Caller

    settings = context.settings.replaced(server=context.address, inline=False)
    try:
        with Client(Caller(settings)) as client:
            found = [str(device) for device in client.info()["devices"]]
    except JaxdError as error:
        return Check("devices", "bad", "the server does not answer", str(error))
    words = ", ".join(found)
    if not all(device.startswith("cpu") for device in found):
        return Check("devices", "ok", words)
    if has_gpu(context):
        advice = "When the lines above are ok: jaxd stop && JAX_PLATFORMS=cuda jaxd start"
        return Check("devices", "bad", f"{words}, beside a GPU", advice)
    advice = "If that machine has a GPU, `jaxd doctor` there shows what hides it from jax."
    return Check("devices", "ok", words, "" if context.is_server_local else advice)
