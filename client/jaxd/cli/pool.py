"""`jaxd pool`: several servers as one, placed by Ray."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from jaxd.cli.query import add_command, add_json_option, ask_server, print_report
from jaxd.connection.discovery import require_server_extra
from jaxd.connection.local_server import log_tail
from jaxd_protocol.base.terminal import size, table
from jaxd_protocol.errors import (
    ConfigurationError,
    ConnectionLost,
    JaxdError,
    NoServer,
    ServerStartFailed,
)
from jaxd_protocol.messages.pool_view import POOL_ORDER, POOL_VIEW, PoolView
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import (
    PoolFiles,
    has_listener,
    make_private_directory,
    running_pools,
)

SUMMARY = "direct a pool: several servers as one, placed by Ray"
EXAMPLE = "jaxd pool up pool.toml"

_LOOK_S: Final = 0.3
_STUCK_S: Final = 60.0
"""Members that have not ended after so long, with a reason, are not waited for any more; what those
lack that are not ready is said then."""
_SHOWN_STATES: Final = ("ready", "lost", "draining")
_HEAD: Final = (
    *("MEMBER", "STATE", "NODE", "DEVICES", "VERSION", "EPOCH", "CALLS", "WARM", "ARRAYS", ""),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of the command."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (summary, example, more, order) in _COMMANDS.items():
        own = add_command(commands, name, summary, f"jaxd pool {name} {example}".rstrip())
        more(own)
        own.set_defaults(pool_command=order)


def run(arguments: argparse.Namespace) -> int:
    """Does it; the exit code.

    Raises:
        NoServer: when there is no such pool on this machine.
        ConfigurationError: when it cannot be done, or arrays would be lost.
        JaxdError: when the director does not answer.
    """
    code: int = arguments.pool_command(arguments)
    return code


# up -----------------------------------------------------------------------------------------------


def _add_up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("settings", metavar="pool.toml", help="the file with the pool's settings")
    parser.add_argument(
        "--foreground",
        action="store_true",
        help="stay until the director ends, as a service manager or container wants it",
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait until its members are ready"
    )


def _up(arguments: argparse.Namespace) -> int:
    """Starts the director in the background, or replaces one that runs, for other settings.

    Members go on meanwhile; those of another version are replaced one by one.
    """
    require_server_extra()
    path = os.path.abspath(arguments.settings)
    files = PoolFiles.of(_checked(path))
    make_private_directory(files.directory)
    if has_listener(files.socket):
        print(f"a director runs already: another one with the settings in {path} takes over")
        with suppress(NoServer, ConnectionLost):  # it may end before it has answered
            _order(files, "hand_over")
        _wait_for_end(files)
    command = [sys.executable, "-P", "-m", "jaxd_server.pool", path]
    if arguments.foreground:
        os.execv(sys.executable, command)  # noqa: S606  no shell is wanted
    with open(files.log, "ab") as log:
        begin = log.tell()
        process = subprocess.Popen(  # noqa: S603  our own program, without a shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    print(f"starting the director of the pool {files.name} (log: {files.log})", flush=True)
    try:
        _follow_start(process, files, begin, waits=not arguments.no_wait)
    finally:
        process.returncode = process.returncode or 0  # it outlives us on purpose
    return 0


def _checked(path: str) -> str:
    """The name of the pool in a file that a director can use; asked before one that runs ends.

    Raises:
        ConfigurationError: when it cannot be used.
    """
    done = subprocess.run(  # noqa: S603  our own program, without a shell
        [sys.executable, "-P", "-m", "jaxd_server.pool", "--check", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().removeprefix("jaxd: ")
        raise ConfigurationError(said or f"{path} could not be read. Run the command again.")
    return done.stdout.strip()


def _follow_start(
    process: subprocess.Popen[bytes], files: PoolFiles, begin: int, *, waits: bool
) -> None:
    """Prints what becomes of the members, until as many as are wanted are ready."""
    shown: dict[str, tuple[str, str]] = {}
    since, known = time.monotonic(), 0
    while True:
        if process.poll() is not None:
            raise ServerStartFailed(
                f"the director ended before the pool was up. The end of its log, {files.log}:\n"
                f"{log_tail(files.log, begin)}\nCorrect that, and run `jaxd pool up` again."
            )
        status = _status_if_there(files)
        if status is not None:
            _print_changes(status, shown)
            ready = [each for each in status["members"] if each["state"] == "ready"]
            if not waits or len(ready) >= status["wanted"]:
                print("\n".join(["for clients:", *(f"  {line}" for line in status["clients"])]))
                return
            if len(ready) != known:
                since, known = time.monotonic(), len(ready)
            elif time.monotonic() - since > _STUCK_S:
                since = float("inf")
                _say_what_is_missing(files, status)
        time.sleep(_LOOK_S)


def _say_what_is_missing(files: PoolFiles, status: Mapping[str, Any]) -> None:
    waits = [each["name"] for each in status["members"] if each["state"] != "ready"]
    print(
        f"still waiting for {', '.join(waits)}: no node of Ray has as many devices free, or the "
        f"server does not start (its log: server.log in {files.directory}/NAME on its node). "
        "Free some, or have fewer: jaxd pool scale. Ctrl-C ends the waiting alone.",
        flush=True,
    )


def _print_changes(status: Mapping[str, Any], shown: dict[str, tuple[str, str]]) -> None:
    for each in status["members"]:
        now = each["state"], each["why"]
        if shown.get(each["name"]) != now:
            shown[each["name"]] = now
            where = f" on {each['node']}" if each["node"] else ""
            why = f": {each['why']}" if each["why"] else ""
            print(f"{each['name']} is {each['state']}{where}{why}", flush=True)


def _status_if_there(files: PoolFiles) -> Mapping[str, Any] | None:
    with suppress(NoServer, ConnectionLost):
        return _order(files, "status")
    return None


def _wait_for_end(files: PoolFiles) -> None:
    while has_listener(files.socket):
        time.sleep(_LOOK_S)


# the others ---------------------------------------------------------------------------------------


def _order(files: PoolFiles, order: str, **content: Any) -> Mapping[str, Any]:
    """What the director of a pool on this machine answers.

    Raises:
        NoServer: when there is none.
    """
    address = str(Address.unix(files.socket))
    try:
        return ask_server(address, POOL_ORDER, order, json.dumps(content))
    except NoServer as error:
        others = " and ".join(f"--pool {name}" for name in running_pools())
        raise NoServer(
            f"no director of the pool {files.name} runs on this machine for you. Start one: jaxd "
            "pool up pool.toml   (members that still run are taken over; or name another pool: "
            f"{others or '--pool NAME'})."
        ) from error


def _add_pool(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pool", default="pool", metavar="NAME", help="its name in pool.toml (default: pool)"
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_pool(parser)
    parser.add_argument(
        "--director",
        metavar="ADDRESS",
        help="pool://host:port#sha256=… of a director on another machine; shows what clients see",
    )
    add_json_option(parser)


def _status(arguments: argparse.Namespace) -> int:
    if arguments.director is not None:
        status = _seen_from_afar(arguments.director)
    else:
        status = _order(PoolFiles.of(arguments.pool), "status")
    return print_report(arguments, status, lambda: _status_text(status))


def _seen_from_afar(address: str) -> Mapping[str, Any]:
    """What clients see of a pool."""
    parsed = Address.parse(address)
    try:
        answer = ask_server(str(parsed._replace(is_pool=False)), POOL_VIEW, 0, "", 0.0)
    except ConnectionLost as error:  # so a server ends who asks it that
        raise ConfigurationError(
            f"what answers at {address} is no director of a pool. Use the line that `jaxd pool up` "
            "printed, with pool://; of a server see: jaxd status --server."
        ) from error
    view = PoolView.from_dict(answer["view"])
    unknown = {"why": "", "values": 0, "value_bytes": 0, "sessions": 0, "warm": None}
    members = [{**each.to_dict(), **unknown} for each in view.members.values()]
    return {"pool": view.pool, "wanted": len(members), "members": members}


def _status_text(status: Mapping[str, Any]) -> str:
    members = status["members"]
    counts = [f"{sum(e['state'] == state for e in members)} {state}" for state in _SHOWN_STATES]
    head = f"pool {status['pool']}: {', '.join(counts)}, {status['wanted']} wanted"
    if not members:
        return head
    rows = [
        (
            *(each["name"], each["state"], each["node"] or "-", str(each["devices"])),
            *(each["version"], str(each["epoch"]), str(each["load"])),
            "-" if each["warm"] is None else str(len(each["warm"])),
            f"{each['values']} ({size(each['value_bytes'])})" if each["values"] else "-",
            each["why"],
        )
        for each in members
    ]
    return "\n".join([head, table([_HEAD, *rows])])


def _add_scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("count", type=int, metavar="N", help="how many members the pool is to have")
    _add_force(parser)


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--force", action="store_true", help="also where arrays of clients are lost with members"
    )
    _add_pool(parser)


def _scale(arguments: argparse.Namespace) -> int:
    files = PoolFiles.of(arguments.pool)
    status = _order(files, "scale", count=arguments.count, force=arguments.force)
    print(_status_text(status))
    return 0


def _add_drain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="MEMBER", help="its name in `jaxd pool status`")
    _add_force(parser)


def _drain(arguments: argparse.Namespace) -> int:
    """Has a member left by its clients, and another one started; waits until it is gone."""
    files = PoolFiles.of(arguments.pool)
    status = _order(files, "drain", name=arguments.name, force=arguments.force)
    told = ""
    while found := [each for each in status["members"] if each["name"] == arguments.name]:
        said = _held_by(found[0])
        if said != told:
            told = said
            print(f"{arguments.name} is drained: {said}", flush=True)
        time.sleep(_LOOK_S)
        status = _order(files, "status")
    print(f"{arguments.name} is gone")
    return 0


def _held_by(member: Mapping[str, Any]) -> str:
    if not (member["values"] or member["load"]):
        return "it is empty, and ends"
    arrays = f"{member['values']} arrays ({size(member['value_bytes'])})"
    said = f"waits for {member['load']} calls and {arrays} of {member['sessions']} clients"
    if not member["values"]:
        return said
    named = member.get("named", 0)  # of an older director there are none
    names = f"; {named} of them are under names, which go with jaxd.forget" if named else ""
    return f"{said}; the arrays go where another member has room for them{names}"


def _down(arguments: argparse.Namespace) -> int:
    """Ends all members and the director; returns when they are gone."""
    files = PoolFiles.of(arguments.pool)
    begin = os.path.getsize(files.log) if os.path.exists(files.log) else 0
    members = _order(files, "down", force=arguments.force)["members"]
    print(f"ending {len(members)} members", flush=True)
    told, since = "", time.monotonic()
    while members:
        said = ", ".join(map(_with_reason, members))
        if said != told:
            print(f"waiting for {said}", flush=True)
            told, since = said, time.monotonic()
        if time.monotonic() - since > _STUCK_S and any(each["why"] for each in members):
            raise NoServer(
                f"these do not end: {said}. The director goes on trying. See `ray status` on the "
                "head, and end Ray where a member runs if it does not answer."
            )
        time.sleep(_LOOK_S)
        try:
            members = _order(files, "status")["members"]
        except JaxdError as error:
            raise NoServer(
                f"the director ended before all members had: {said}. The end of its log, "
                f"{files.log}:\n{log_tail(files.log, begin)}\nRun `jaxd pool up`, and `jaxd pool "
                "down` again when the Ray cluster answers."
            ) from error
    _wait_for_end(files)
    print(f"the pool {files.name} is down")
    return 0


def _with_reason(member: Mapping[str, Any]) -> str:
    return f"{member['name']} ({member['why']})" if member["why"] else str(member["name"])


_COMMANDS: Final = {
    "up": ("start a pool, or go on with other settings", "pool.toml", _add_up, _up),
    "status": ("show the members of a pool and how they are", "--json", _add_status, _status),
    "scale": ("set how many members a pool has", "4", _add_scale, _scale),
    "drain": ("end a member once its clients have left it", "m2", _add_drain, _drain),
    "down": ("end a pool: all members and the director", "", _add_force, _down),
}
"""For each command what it does, arguments as an example, what adds its options, what runs it."""
