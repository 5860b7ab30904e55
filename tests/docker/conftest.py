"""One engine and one image for all tests of a run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.clients import client_environment
from tests.docker.container import Container
from tests.docker.engine import Engine, NoEngine, an_engine

IMAGE = "jaxd:test"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Docker's, or one that is set up here; without either the tests are skipped."""
    try:
        with an_engine() as engine:
            yield engine
    except NoEngine as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """The image of this checkout, on the CPU."""
    engine.build(IMAGE)
    return IMAGE


@pytest.fixture(scope="session")
def client_python(engine: Engine) -> Iterator[str]:
    """The interpreter of an environment with the client and no jax, of the image's Python."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-client-", dir="/var/tmp"))
    yield client_environment(engine.python, directory)
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def container(engine: Engine, image: str, client_python: str) -> Iterator[Container]:
    """A server in a container that may write nowhere but to its volume, and is healthy."""
    one = Container.run(engine, image, client_python)
    yield one
    one.remove()
