from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_server.__main__ import check_jax, main


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """Leaves the logger as it was found."""
    logger = logging.getLogger("jaxd")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def test_a_server_that_cannot_start_says_why_in_one_line(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with exit code 1 and without a traceback."""
    assert main(["--listen", "tcp://127.0.0.1:0"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("jaxd: tcp://127.0.0.1:0 without a token")
    assert said.count("\n") == 1


def test_a_jax_that_is_too_old_for_a_server_is_refused(
    runtime: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a worker is started that cannot use it; by version, and not by text."""
    for version in ("0.10.0", "0.11.2.dev1", "1.0"):
        check_jax(version)
    with pytest.raises(ConfigurationError, match=r"has jax 0\.9\.2, and a server needs 0\.10"):
        check_jax("0.9.2")
    monkeypatch.setattr("jaxd_server.__main__.version", lambda _: "0.8.3")
    assert main([]) == 1
    assert "pip install --upgrade 'jaxd[server]'" in capsys.readouterr().err


UNSUPPORTED = """
import sys
from collections import namedtuple as named
sys.version_info = named("Version", "major minor micro releaselevel serial")(3, 99, 0, "final", 0)
{start}
"""


@pytest.mark.parametrize(
    "start",
    [
        "from jaxd_server.__main__ import main\nraise SystemExit(main([]))",
        "import jaxd\njaxd.persistent_call(lambda x: x)(1.0)",
    ],
    ids=["server", "client"],
)
def test_a_python_whose_code_is_not_read_is_refused_at_both_ends(runtime: Path, start: str) -> None:
    """With the versions that are read."""
    command = [sys.executable, "-c", UNSUPPORTED.replace("{start}", start)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot read that of cpython 3.99. Use CPython 3.11 to 3." in done.stderr


UNSTARTABLE = """
from jaxd_server.__main__ import main
raise SystemExit(main([], worker_command=["/no/such/program"]))
"""


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_is_named(runtime: Path) -> None:
    """After as many attempts as for one that ends at once; the server goes on."""
    command = [sys.executable, "-c", UNSTARTABLE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if "worker_broken" in line:
                break
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
    assert server.returncode == 0
    assert sum("worker_not_started" in line for line in said) == 5
    assert "/no/such/program" in said[-1]
