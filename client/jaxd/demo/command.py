"""The command `jaxd demo`: a server of its own, five fresh processes, one table."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import NoReturn

from jaxd.demo.plot import write_plot
from jaxd.demo.report import COUNTERS, Report
from jaxd.demo.runs import DemoFailed, Run, read_files_once, run_training
from jaxd.demo.server import Counters, counters_now, private_server
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.paths import private_directory, runtime_dir

__all__ = ["run"]

_NEEDED = {"jax": "server", "sklearn": "demo", "matplotlib": "demo"}


def run(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; see `jaxd.demo.main`."""
    options = _parser().parse_args(argv)
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        _check_installed()
        report = _measure(options.epochs, _made(options.output))
    except (DemoFailed, JaxdError) as error:
        print(f"jaxd demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\njaxd demo: interrupted; the server has been stopped.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    print(json.dumps(report.as_json(), indent=2) if options.json else report.as_text())
    return 1 if report.complaints else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxd demo",
        description="Trains a small network on 1,797 real handwritten digits from two fresh "
        "processes. The first compiles, the second does not. The same script on plain jax, and "
        "on jax with its disk cache warm, stands beside it.",
        epilog="example: jaxd demo --output /tmp/digits --json",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="demo-output",
        help="where the plot goes (default: ./demo-output)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--epochs",
        type=_positive,
        default=30,
        metavar="N",
        help="passes over the images in each run (default: 30)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({_NEEDED[name] for name in missing}, reverse=True))
        raise DemoFailed(f"{', '.join(missing)} not found. Run: pip install 'jaxd[{extras}]'")


def _made(directory: str) -> str:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise DemoFailed(
            f"cannot make the directory {directory}: {error.strerror}. Choose another: --output DIR"
        ) from error
    return os.path.abspath(directory)


def _leave(_number: int, _frame: object) -> NoReturn:
    """Makes SIGTERM unwind as Ctrl-C does, so that the server is stopped."""
    raise SystemExit(128 + signal.SIGTERM)


def _measure(epochs: int, output: str) -> Report:
    # Beside the local server's directory: the path of a Unix socket has to be short.
    place = private_directory(runtime_dir())
    with tempfile.TemporaryDirectory(prefix="demo-", dir=place) as directory:
        cold, second, before, after = _measure_jaxd(epochs, directory)
        plain, disk = _measure_jax(epochs, directory)
    _say(6, "drawing")
    plot = write_plot((cold, second, plain, disk), output)
    return Report(cold, second, plain, disk, before, after, plot)


def _measure_jaxd(epochs: int, directory: str) -> tuple[Run, Run, Counters, Counters]:
    _say(1, "starting a server of its own")
    read_files_once()
    with private_server(directory) as address:
        variables = {"JAXD_SERVER": address, "JAXD_AUTOSTART": "0"}
        _say(2, "jaxd, first process")
        cold = run_training("jaxd, first process", "persistent", epochs, variables)
        before = counters_now(address, COUNTERS)
        _say(3, "jaxd, second process")
        second = run_training("jaxd, second process", "persistent", epochs, variables)
        return cold, second, before, counters_now(address, COUNTERS)


def _measure_jax(epochs: int, directory: str) -> tuple[Run, Run]:
    cached = {
        "JAX_COMPILATION_CACHE_DIR": os.path.join(directory, "jax-cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    _say(4, "plain jax.jit")
    plain = run_training("jax.jit", "jit", epochs, {})
    _say(5, "jax.jit with its disk cache, filled by a run of its own")
    run_training("jax.jit, filling its disk cache", "jit", epochs, cached)
    return plain, run_training("jax.jit, disk cache warm", "jit", epochs, cached)


def _say(step: int, what: str) -> None:
    """Progress, for a person at a terminal only."""
    if sys.stderr.isatty():
        print(f"[{step}/6] {what} ...", file=sys.stderr, flush=True)
