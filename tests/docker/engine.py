"""A container engine for the tests: Docker's own where there is one, else one that is set up here.

Without Docker's daemon, podman answers on a socket that the `docker` command talks to. Debian's
packages are all that this takes; a base image is made of them too, under the name that the
Dockerfile asks for. It stands in for the real one: Debian's Python, the same steps.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_PACKAGES = (
    *("podman", "buildah", "runc", "catatonit"),
    *("containernetworking-plugins", "iptables", "mmdebstrap", "docker-compose"),
)
_STAND_IN_PYTHON = "3.11"
_SOURCES = "/etc/apt/sources.list.d/debian.sources"
_CERTIFICATES = os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt"
_START_S = 30.0
_MOST_PROCESSES = 30000


class NoEngine(Exception):
    """There is none, and none can be set up here; says why."""


@dataclass
class Engine:
    """Builds and runs images.

    Attributes:
        command: what to type for `docker`.
        build_command: what to type for `docker build`.
        python: the minor version to build for.
        environment: for both commands.
        is_real: whether it is Docker's own, on the real base image.
        health_command: what runs a container's health check where nothing does by itself.
    """

    command: tuple[str, ...] = ("docker",)
    build_command: tuple[str, ...] = ("docker", "build")
    python: str = ".".join(map(str, sys.version_info[:2]))
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    is_real: bool = True
    health_command: tuple[str, ...] = ()

    def docker(self, *words: str, check: bool = True) -> str:
        """What `docker` prints, on both of its channels.

        Raises:
            AssertionError: when it fails; says how.
        """
        return self._run([*self.command, *words], check=check)

    def build(self, tag: str, *words: str) -> str:
        """Builds the image of this checkout; what that prints."""
        words = (
            "-f",
            "docker/Dockerfile",
            "-t",
            tag,
            "--build-arg",
            f"PYTHON={self.python}",
            *words,
        )
        return self._run([*self.build_command, *words, "."])

    def compose(self, *words: str, **environment: str) -> str:
        """What `docker compose` prints, or its older form, which is a command of its own."""
        is_plugin = self._process([*self.command, "compose", "version"]).returncode == 0
        command = [*self.command, "compose"] if is_plugin else ["docker-compose"]
        return self._run([*command, *words], environment=environment)

    def is_healthy(self, name: str) -> bool:
        """Whether the health check of a container says so now."""
        if self.health_command:
            return self._process([*self.health_command, name]).returncode == 0
        return self.docker("inspect", "--format", "{{.State.Health.Status}}", name) == "healthy"

    def code(self, *words: str) -> int:
        """The exit code of `docker`."""
        return self._process([*self.command, *words]).returncode

    def _process(
        self, command: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**self.environment, **(environment or {})},
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    def _run(
        self,
        command: list[str],
        *,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        done = self._process(command, environment)
        said = done.stdout.strip()
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}\nexit code {done.returncode}\n{said}")
        return said


@contextmanager
def an_engine() -> Iterator[Engine]:
    """Docker's, or podman's until the block ends.

    Raises:
        NoEngine: when there is neither; says what is missing.
    """
    if shutil.which("docker") and Engine().code("version") == 0:
        yield Engine()
        return
    _install_podman()
    directory = Path(tempfile.mkdtemp(prefix="jaxd-engine-", dir="/var/tmp"))
    try:
        with _podman(directory) as engine:
            yield engine
    finally:
        overlay = directory / "store" / "overlay"
        subprocess.run(["umount", "-l", str(overlay)], check=False, capture_output=True)
        shutil.rmtree(directory, ignore_errors=True)


def _install_podman() -> None:
    needed = ("podman", "runc", "mmdebstrap", "iptables", "docker-compose")
    missing = [name for name in needed if not _which(name)]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get") or not os.path.exists(_SOURCES):
        raise NoEngine(
            f"no Docker engine answers, and {', '.join(missing)} cannot be installed: that takes "
            "root on Debian 12"
        )
    quiet = ["apt-get", "-qq"]
    for words in (["update"], ["install", "-y", "--no-install-recommends", *_PACKAGES]):
        done = subprocess.run(
            [*quiet, *words],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NoEngine(f"apt-get {words[0]} failed: {done.stderr.strip()}")


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@contextmanager
def _podman(directory: Path) -> Iterator[Engine]:
    configuration = directory / "containers.conf"
    configuration.write_text(_configuration(), encoding="utf-8")
    environment = os.environ | {"CONTAINERS_CONF": str(configuration)}
    podman = ["podman", "--root", str(directory / "store"), "--runroot", str(directory / "run")]
    _make_base(podman, environment, directory)
    socket = directory / "podman.sock"
    service = subprocess.Popen(
        [*podman, "system", "service", "--time=0", f"unix://{socket}"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(socket, service)
        engine = Engine(
            ("docker",) if shutil.which("docker") else ("podman", "--url", f"unix://{socket}"),
            (*podman, "build", *_build_words(directory)),
            _STAND_IN_PYTHON,
            environment | {"DOCKER_HOST": f"unix://{socket}"},
            is_real=False,
            health_command=(*podman, "healthcheck", "run"),
        )
        _try(engine)
        yield engine
    finally:
        subprocess.run(
            [*podman, "rm", "-fa", "-t", "2"], env=environment, check=False, capture_output=True
        )
        service.terminate()
        service.wait()


def _configuration() -> str:
    """Limits that a container may have here: podman asks for more than is allowed, and cannot."""
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return f"""\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={_MOST_PROCESSES}:{_MOST_PROCESSES}"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def _make_base(podman: list[str], environment: Mapping[str, str], directory: Path) -> None:
    """A Debian with its Python, under the name of the base that the Dockerfile asks for."""
    archive = directory / "base.tar"
    name = f"python:{_STAND_IN_PYTHON}-slim"
    bootstrap = [
        *("mmdebstrap", "-q", "--variant=minbase"),
        "--include=ca-certificates,python3,python3-pip,python3-venv",
        '--customize-hook=ln -s python3 "$1/usr/bin/python"',
        '--customize-hook=rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
        *("bookworm", str(archive), _SOURCES),
    ]
    load = [*podman, "import", "-q", "-c", 'CMD ["python3"]', str(archive), name]
    for command in (bootstrap, load):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoEngine(f"no base image can be made: {done.stderr.strip()[-500:]}")
    archive.unlink()


def _build_words(directory: Path) -> tuple[str, ...]:
    """As a machine without a daemon builds: in a chroot, on its own network and certificates."""
    pip = directory / "pip.conf"
    pip.write_text("[global]\ncert = /run/host-certificates.crt\n", encoding="utf-8")
    return (
        *("--format", "docker"),  # the other one has no HEALTHCHECK
        *("--isolation", "chroot", "--network", "host", "--pull-never"),
        *("-v", f"{_CERTIFICATES}:/run/host-certificates.crt:ro"),
        *("-v", f"{pip}:/etc/pip.conf:ro"),
    )


def _try(engine: Engine) -> None:
    """Runs something, with a port: not every sandbox allows that."""
    base = f"python:{_STAND_IN_PYTHON}-slim"
    try:
        engine.docker("run", "--rm", "--publish", "127.0.0.1::1", base, "true")
    except AssertionError as error:
        raise NoEngine(f"containers cannot run here: {error}") from error


def _wait_for(socket: Path, service: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while not socket.exists():
        if service.poll() is not None or time.monotonic() > deadline:
            raise NoEngine("podman's service does not answer")
        time.sleep(0.05)
