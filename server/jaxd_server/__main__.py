"""`python -m jaxd_server`: what `jaxd serve` becomes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from jaxd_protocol.errors import JaxdError
from jaxd_server.auth.tls_setup import ready_for_tls
from jaxd_server.config.options import parse_arguments
from jaxd_server.processes.host import WORKER_COMMAND, Host
from jaxd_server.runtime import logs


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
        logs.configure(options.log_format, "host")
        return Host(options, worker_command).run()
    except JaxdError as error:
        sys.stderr.write(f"jaxd: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
