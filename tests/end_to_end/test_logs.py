"""What a user does with an error: looks at the lines of its call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live_server import run_client, source_environment

FAILING = """
import numpy as np
from jaxd import persistent_call

@persistent_call
def scaled(x):
    return x @ x

try:
    scaled(np.ones((2, 3), "f4"))
except TypeError as error:
    print(error.call_id)
"""


@pytest.mark.slow
def test_the_lines_of_a_call_are_found_by_its_error(runtime: Path) -> None:
    """With the server that was started for it, and nothing but the id."""
    environment = source_environment(runtime)
    failed = run_client(FAILING, environment=environment)
    call = failed.stdout.strip()
    assert call, failed.stderr
    try:
        said = jaxd("logs", "--call", call, environment=environment)
        assert said.count("\n") == 1
        assert f" call_failed call={call} function=scaled " in said
        assert " error=TypeError blame=function phase=building " in said
        named = jaxd("logs", "--function", "scaled", environment=environment)
        assert named == said
    finally:
        jaxd("stop", "--now", environment=environment)


def jaxd(*words: str, environment: dict[str, str]) -> str:
    """What the command prints."""
    command = [sys.executable, "-P", "-m", "jaxd.cli", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=50
    ).stdout
