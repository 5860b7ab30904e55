"""The compose files, read and run by compose itself."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docker.conftest import IMAGE
from tests.docker.container import Container
from tests.docker.engine import ROOT, Engine
from tests.docker.test_container import PROGRAM
from tests.docker.test_files import UID

pytestmark = pytest.mark.docker

PORTS = 'ports: ["18861:18861"]'


@pytest.fixture
def project(engine: Engine, image: str) -> Iterator[Path]:
    """A copy of the files for this image, with a token and on a free port of this machine alone."""
    folder = Path(tempfile.mkdtemp(prefix="jaxdtest", dir="/var/tmp"))
    for file in (ROOT / "docker").glob("compose*.yaml"):
        text = file.read_text()
        assert PORTS in text or file.name != "compose.cpu.yaml"
        text = text.replace(PORTS, 'ports: ["127.0.0.1::18861"]')
        (folder / file.name).write_text(text)
    token = folder / "jaxd.token"
    token.write_text("a-token-for-tests-only\n")
    token.chmod(0o400)
    os.chown(token, UID, UID)
    yield folder
    shutil.rmtree(folder)


def test_the_service_on_a_gpu_is_hardened_as_the_other_one(engine: Engine, project: Path) -> None:
    """compose itself says what `extends` comes to."""
    said = engine.compose("-f", str(project / "compose.yaml"), "config", JAXD_PYTHON="3.13")
    service = yaml.safe_load(said)["services"]["jaxd"]
    assert service["image"] == "jaxd:cuda13-py3.13"
    assert service["build"]["args"] == {"ACCELERATOR": "cuda13", "PACKAGES": "", "PYTHON": "3.13"}
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_the_service_comes_up_and_answers(
    engine: Engine, project: Path, client_python: str
) -> None:
    """With the token of the file; after `down` and `up` it is the same server, and warm."""
    if os.geteuid() != 0:
        pytest.skip("only root can give the token to the container's user")
    engine.docker("tag", IMAGE, f"jaxd:py{engine.python}")
    compose = ("-f", str(project / "compose.cpu.yaml"))
    environment = {"JAXD_PYTHON": engine.python, "JAXD_NAME": "gpu-host"}
    seen = []
    try:
        for _ in range(2):
            engine.compose(*compose, "up", "--no-build", "--detach", **environment)
            name = engine.compose(*compose, "ps", "--quiet", **environment).splitlines()[-1]
            one = Container(engine, name, client_python, "/run/secrets/jaxd_token")
            one.wait_until_healthy()
            assert "tls://gpu-host:18861#sha256=" in engine.docker("logs", name)
            seen.append((one.call(PROGRAM), one.address.partition("#")[2]))
            engine.compose(*compose, "down", "--timeout", "30", **environment)
    finally:
        engine.compose(*compose, "down", "--volumes", "--timeout", "30", **environment)
    (first, pin), (second, same_pin) = seen
    assert (first["compiles"], second["compiles"], second["traces"]) == (1, 0, 0)
    assert pin == same_pin
