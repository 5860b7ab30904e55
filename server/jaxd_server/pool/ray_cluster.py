"""The adapter of Ray: a cluster on this machine, members as actors, the director's state in one.

The only file that imports ray, inside of functions, so that a pool without Ray needs none.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import ConfigurationError, JaxdError, NoServer, ServerStartFailed
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.tokens import Seal, made_token_file
from jaxd_server.pool.members import MemberEnd, Order
from jaxd_server.pool.settings import MemberSettings, PoolSettings, RaySettings, read_pool_key
from jaxd_server.runtime.logs import log_event

HEALTH: Final = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""With which Ray notices the death of a node sooner than by its defaults, which take 14 s."""

_CLUSTER_FILE: Final = "cluster.json"
_FOLDER: Final = "jaxd-ray-"
_TOKEN_FILE: Final = "ray.token"  # noqa: S105  a file name
_STATE: Final = "director-state"
_START_S: Final = 120.0
_LOOK_S: Final = 0.1
_STOP_S: Final = 30.0
_ANSWER_S: Final = 20.0
_CONNECT_S: Final = 5.0
_REFUSED: Final = 3
"""With which a process ends that a cluster does not let in without a token."""

_THREADS: Final = 8
"""Of a member's actor: a report does not wait for an order."""


def require_ray() -> None:
    """Returns when Ray is installed; does not import it.

    Raises:
        ConfigurationError: when it is not; says what to install.
    """
    if find_spec("ray") is None:
        raise ConfigurationError(
            "members of a pool are placed by Ray, which is not installed here. Run: pip install "
            "'jaxd[ray]'   (or list servers that run already in pool.toml, as [[static]])."
        )


def _imported(settings: RaySettings, folder: str) -> Any:
    """Ray, in token mode and without reports of use. These are read when it is imported."""
    require_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    token_file = settings.token_file
    if not (settings.address or token_file):
        token_file = os.path.join(folder, _TOKEN_FILE)
        made_token_file(token_file)
    if token_file:
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ["RAY_AUTH_TOKEN_PATH"] = token_file
    import ray

    return ray


# a cluster on this machine ------------------------------------------------------------------------


class LocalCluster(NamedTuple):
    """A Ray cluster that this user has had started on this machine.

    Attributes:
        address: of its head.
        pid: of the process that holds it.
        started: the id of that process in its file, so that a later one is not taken for it.
        folder: with its files.
    """

    address: str
    pid: int
    started: str
    folder: str = ""

    def is_alive(self) -> bool:
        """Whether its process runs."""
        return _start_of(self.pid) == self.started

    def stop(self) -> None:
        """Ends it, with all that runs in it."""
        until = time.monotonic() + _STOP_S
        number = signal.SIGTERM
        while self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if time.monotonic() > until:
                number = signal.SIGKILL
            time.sleep(_LOOK_S)
        self.remove_files()

    def remove_files(self) -> None:
        """Removes what its process has left, if it was killed or has failed."""
        if os.path.basename(self.folder).startswith(_FOLDER):
            shutil.rmtree(self.folder, ignore_errors=True)


def _start_of(pid: int) -> str:
    """When a process was started, in ticks of the system; empty when it is gone."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        state, *rest = file.read().rpartition(b")")[2].split()
        return "" if state in (b"Z", b"X") else rest[18].decode()
    return ""


def local_cluster(folder: str) -> LocalCluster | None:
    """The cluster of a pool that runs on this machine; None: there is none."""
    with suppress(OSError, ValueError, TypeError):
        with open(os.path.join(folder, _CLUSTER_FILE), encoding="ascii") as file:
            found = LocalCluster(**json.load(file))
        if found.is_alive():
            return found
        found.remove_files()
    return None


def stop_local_cluster(folder: str) -> None:
    """Ends the cluster of a pool on this machine, if there is one; nothing of it is left."""
    found = local_cluster(folder)
    if found is not None:
        found.stop()
        os.unlink(os.path.join(folder, _CLUSTER_FILE))


def start_local_cluster(settings: RaySettings, folder: str) -> LocalCluster:
    """The cluster of a pool on this machine; one that runs already is used.

    It is held by a process of its own, so that members outlive the director.

    Raises:
        ConfigurationError: when Ray is not installed.
        ServerStartFailed: when it ends before it is ready; quotes its last words.
    """
    found = local_cluster(folder)
    if found is not None:
        return found
    require_ray()
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, _CLUSTER_FILE))
    log_event("pool_cluster_starting")
    log = os.path.join(folder, "ray.log")
    argument = json.dumps({"settings": settings.to_json(), "folder": folder})
    with open(log, "wb") as file:
        process = subprocess.Popen(  # noqa: S603  our own program, without a shell
            [sys.executable, "-P", "-m", __name__, argument],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=folder,
            start_new_session=True,
        )
    until = time.monotonic() + _START_S
    while (found := local_cluster(folder)) is None:
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            process.wait()
            raise ServerStartFailed(
                f"Ray does not start on this machine. The end of its log, {log}:\n{_tail(log)}\n"
                "Free memory or ports, or name a cluster that runs ([ray] address in pool.toml)."
            )
        time.sleep(_LOOK_S)
    process.returncode = 0  # it outlives us on purpose
    log_event("pool_cluster_ready", address=found.address, pid=found.pid)
    return found


def _tail(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return "\n".join(f"    {line}" for line in file.read().splitlines()[-10:])


def _hold_cluster(settings: RaySettings, folder: str) -> None:
    """Starts a cluster in this process, and ends it at SIGTERM."""
    ray = _imported(settings, folder)
    temporary = tempfile.mkdtemp(prefix=_FOLDER, dir="/tmp")  # paths of its sockets are long
    try:
        ray.init(
            address="local",
            num_cpus=settings.cpus if settings.cpus >= 0 else None,
            num_gpus=settings.gpus if settings.gpus >= 0 else None,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=temporary,
            _system_config=dict(HEALTH),
            **_node_address(settings),
        )
        address = ray.get_runtime_context().gcs_address
        found = LocalCluster(address, os.getpid(), _start_of(os.getpid()), temporary)
        draft = os.path.join(folder, f"{_CLUSTER_FILE}.draft")
        with open(draft, "w", encoding="ascii") as file:
            json.dump(found._asdict(), file)
        os.rename(draft, os.path.join(folder, _CLUSTER_FILE))
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        stopped.wait()
        ray.shutdown()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _node_address(settings: RaySettings) -> dict[str, str]:
    return {"_node_ip_address": settings.node_address} if settings.node_address else {}


# what runs in actors ------------------------------------------------------------------------------


class _StateActor:
    """Keeps the state of the director, sealed, for the one that comes after it."""

    def __init__(self) -> None:
        self._epoch = 0
        self._kept = b""

    def take_over(self) -> tuple[int, bytes]:
        """The number of a new director, and the state; the one before can keep nothing any more."""
        self._epoch += 1
        return self._epoch, self._kept

    def keep(self, epoch: int, kept: bytes) -> bool:
        """Keeps a state; False: another director has taken over."""
        if epoch < self._epoch:
            return False
        self._epoch, self._kept = epoch, kept  # it may have been started again itself
        return True


class _MemberActor:
    """Runs the server of a member as its child; ends with it, and takes it along when it ends."""

    def __init__(self, pool: str, name: str, settings: Mapping[str, Any]) -> None:
        import ray

        from jaxd_server.pool.member_server import MemberServer

        key = read_pool_key()
        node = ray.util.get_node_ip_address()
        self._server = MemberServer(pool, name, MemberSettings.from_json(settings), node, key)
        self._is_stopping = False
        server = self._server
        ends = server.report, self._obey, server.know, server.wait_for_load
        self._end = MemberEnd(name, Seal(key), *ends)
        threading.Thread(target=self._watch, name="jaxd-watch-server", daemon=True).start()

    def ask(self, message: bytes) -> bytes:
        """Does what a sealed message orders; the sealed report."""
        return self._end.answer(message)

    def _obey(self, order: Order, loses_values: bool) -> bool:
        """Whether the server has ended, as it was ordered to."""
        if order == "stop":
            self._is_stopping = True  # before it ends
            self._is_stopping = self._server.stop(loses_values=loses_values)
        return self._is_stopping

    def _watch(self) -> None:
        self._server.ended.wait()
        time.sleep(_LOOK_S * 10)  # what it ended with is reported first
        if not self._is_stopping:
            os._exit(1)  # Ray starts another one, which has a new epoch


# the director's side ------------------------------------------------------------------------------


class RayMembers:
    """The members of a pool in a Ray cluster. For one thread, but for `start` and `kill`.

    Args:
        settings: of the pool.
        address: of the cluster.

    Raises:
        NoServer: when there is no cluster at that address, or its token is another one.
        ConfigurationError: when it lets in who has no token.
    """

    def __init__(self, settings: PoolSettings, address: str) -> None:
        self._pool = settings.name
        _check_answers(address)
        _check_token_mode(address)
        self._ray = ray = _imported(settings.ray, settings.files.directory)
        try:
            ray.init(
                address=address,
                namespace=f"jaxd-{settings.name}",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **_node_address(settings.ray),
            )
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise NoServer(
                f"no Ray cluster lets this machine in at {address}: {_first_line(error)}. Check "
                "the address, and that RAY_AUTH_TOKEN_PATH, or [ray] token_file in pool.toml, has "
                "the token of that cluster."
            ) from error
        self._actors: dict[str, Any] = {}
        self._keeping: Any = None
        self._state = self._actor(_StateActor, _STATE, num_cpus=0).remote()

    def _actor(self, kind: type, name: str, **options: Any) -> Any:
        """A class of actors that outlive this process, and are found by their name."""
        return self._ray.remote(kind).options(
            name=name,
            lifetime="detached",
            get_if_exists=True,
            max_task_retries=0,
            max_restarts=-1,
            **options,
        )

    def take_over(self) -> tuple[int, bytes]:
        """The number of this director, and the sealed state of the one before, or nothing.

        Raises:
            NoServer: when the cluster does not answer.
        """
        try:
            found: tuple[int, bytes] = self._ray.get(
                self._state.take_over.remote(), timeout=_ANSWER_S
            )
        except self._ray.exceptions.RayError as error:
            raise NoServer(
                f"the Ray cluster does not answer: {_first_line(error)}. See `ray status` there."
            ) from error
        return found

    def keep(self, epoch: int, kept: bytes) -> None:
        """Has a sealed state kept; does not wait for it."""
        self._keeping = self._state.keep.remote(epoch, kept)

    def is_replaced(self) -> bool:
        """Whether a state was not kept because another director has taken over."""
        if self._keeping is None or not self._ray.wait([self._keeping], timeout=0)[0]:
            return False
        ref, self._keeping = self._keeping, None
        with suppress(self._ray.exceptions.RayError):  # it is kept the next time
            return not self._ray.get(ref)
        return False

    def start(self, name: str, settings: MemberSettings) -> None:
        """Starts a member, as soon as the cluster has room for it."""
        kind = self._actor(
            _MemberActor,
            name,
            max_concurrency=_THREADS,
            scheduling_strategy="SPREAD",
            **_resources(settings),
        )
        self._actors[name] = kind.remote(self._pool, name, settings.to_json())

    def send(self, name: str, message: bytes) -> Any:
        """Sends a sealed message; what `collect` takes.

        Raises:
            LookupError: when there is no such member in the cluster.
        """
        actor = self._actors.get(name)
        if actor is None:
            try:
                actor = self._actors[name] = self._ray.get_actor(name)
            except ValueError as error:
                raise LookupError(name) from error
        return actor.ask.remote(message)

    def collect(self, sent: Mapping[str, Any], timeout_s: float) -> dict[str, bytes | str]:
        """The answers that have come, by member: a sealed report, or why there is none.

        Returns when all are there, or after `timeout_s`.
        """
        if not sent:
            time.sleep(timeout_s)
            return {}
        names = {ref: name for name, ref in sent.items()}
        ready, _ = self._ray.wait(
            list(names), num_returns=len(names), timeout=timeout_s, fetch_local=True
        )
        return {names[ref]: self._read(ref) for ref in ready}

    def _read(self, ref: Any) -> bytes | str:
        try:
            answer: bytes = self._ray.get(ref, timeout=_ANSWER_S)
        except self._ray.exceptions.RayError as error:
            return _first_line(error)
        return answer

    def kill(self, name: str) -> str:
        """Ends a member's actor, and its server with it; it is not started again.

        Returns:
            why Ray does not end it, in which case it may go on; empty when there is none any more.
        """
        try:
            actor = self._actors.get(name) or self._ray.get_actor(name)
            self._ray.kill(actor, no_restart=True)
        except ValueError:  # Ray knows none of that name
            pass
        except self._ray.exceptions.RayError as error:
            return _first_line(error)
        self._actors.pop(name, None)
        return ""

    def forget_state(self) -> None:
        """Ends the actor that keeps the state: the pool is no more."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._state, no_restart=True)

    def close(self) -> None:
        """Leaves the cluster; members go on."""
        self._ray.shutdown()


def _check_answers(address: str) -> None:
    """Returns when something listens there: Ray would try for minutes.

    Raises:
        NoServer: when nothing does.
    """
    try:
        place = Address.parse(f"tcp://{address}").place
        socket.create_connection(place, _CONNECT_S).close()
    except OSError as error:
        raise NoServer(
            f"nothing answers at {address}, where the Ray cluster of the pool should be ({error}). "
            "Start its head, or correct [ray] address in pool.toml."
        ) from error


def _check_token_mode(address: str) -> None:
    """Returns when a cluster refuses who has no token, which a process of its own tries.

    Raises:
        ConfigurationError: when it does not.
        NoServer: when that cannot be found out.
    """
    require_ray()
    own = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    try:
        tried = subprocess.run(  # noqa: S603  our own program, without a shell
            [sys.executable, "-P", "-m", __name__, json.dumps({"enters": address})],
            env=environment | {"RAY_AUTH_MODE": "disabled"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoServer(
            f"the Ray cluster at {address} has not answered for {_START_S:.0f} s. See whether its "
            "head is up (ray status)."
        ) from error
    if tried.returncode == _REFUSED:
        return
    if tried.returncode:
        raise NoServer(
            f"it cannot be found out whether the Ray cluster at {address} asks for a token: "
            f"{_last_line(tried.stderr)}. See whether its head is up, and has the Ray of this "
            "environment (ray --version)."
        )
    raise ConfigurationError(
        f"the Ray cluster at {address} lets in who has no token, and who is in can run code on all "
        "of its nodes. Start its head and its nodes with RAY_AUTH_MODE=token and one token (ray "
        "get-auth-token --generate), or leave [ray] address out for a cluster of the pool's own."
    )


def _enter(address: str) -> int:
    """Tries to ask the head of a cluster without a token; the exit code."""
    from ray.exceptions import AuthenticationError

    raylet: Any = import_module("ray._raylet")  # what is public starts much more
    try:
        raylet.GcsClient(address=address).internal_kv_keys(b"", None, _CONNECT_S)
    except AuthenticationError:
        return _REFUSED
    return 0


def _resources(settings: MemberSettings) -> dict[str, Any]:
    """What a member takes of its node, in Ray's words."""
    resources = dict(settings.resources)
    if settings.platform == "tpu":
        resources["TPU"] = float(settings.devices)
    cpus = settings.devices if settings.platform == "cpu" else 1
    gpus = settings.devices if settings.platform == "gpu" else 0
    return {"num_cpus": cpus, "num_gpus": gpus, "resources": resources}


def _first_line(error: BaseException) -> str:
    """What an error of Ray's says, short: the last line that is no more of a trace."""
    return _last_line(str(error)) or type(error).__name__


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(lines[-1:])[:300]


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if "enters" in given:
        sys.exit(_enter(given["enters"]))
    try:
        _hold_cluster(RaySettings(**given["settings"]), given["folder"])
    except JaxdError as error:
        sys.stderr.write(f"jaxd: {error}\n")
        sys.exit(1)
