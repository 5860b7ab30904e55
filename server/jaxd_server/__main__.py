"""`python -m jaxd_server`: what `jaxd serve` becomes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from jaxd_protocol.errors import ConfigurationError, JaxdError
from jaxd_server.auth.tls_setup import ready_for_tls
from jaxd_server.config.options import parse_arguments
from jaxd_server.processes.host import WORKER_COMMAND, Host
from jaxd_server.runtime import logs

_OLDEST_JAX: Final = (0, 10)


def check_jax(installed: str | None = None) -> None:
    """Returns when a worker can use the jax of this environment, which is not imported here.

    Args:
        installed: its version; None: the one that is installed.

    Raises:
        ConfigurationError: when it is older than those that the adapters know.
    """
    try:
        found = version("jax") if installed is None else installed
    except PackageNotFoundError:
        return  # as where it is no package: the worker says what is missing
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < _OLDEST_JAX:
        oldest = ".".join(map(str, _OLDEST_JAX))
        raise ConfigurationError(
            f"this environment has jax {found}, and a server needs {oldest} or later. Run: "
            "pip install --upgrade 'jaxd[server]'. A client may have an older one."
        )


def main(argv: Sequence[str] | None = None, worker_command: Sequence[str] = WORKER_COMMAND) -> int:
    """Serves as `argv` says (default: `sys.argv[1:]`); returns the exit code.

    Returns:
        0 after a drained stop, 1 when the server could not start or had to be killed.
    """
    # inherited from a program whose `jax.jit` is served; that of a server is jax's own
    os.environ.pop("JAXD", None)
    os.environ.pop("JAXD_TRACE", None)  # whose functions may import the client
    try:
        options = ready_for_tls(parse_arguments(argv))
        from jaxd_protocol.fingerprint.code import bytecode  # noqa: F401  not every Python's

        check_jax()
        logs.configure(options.log_format, "host")
        return Host(options, worker_command).run()
    except JaxdError as error:
        sys.stderr.write(f"jaxd: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
