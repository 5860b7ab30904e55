"""A stock rpyc echo server on a Unix socket: `python -m benchmarks.echo_server PATH`."""

from __future__ import annotations

import sys

import rpyc
from rpyc.utils.server import ThreadedServer

from benchmarks.answering import serve_until_input_closes


class Echo(rpyc.Service):  # type: ignore[misc]  # rpyc has no types
    """Answers with what it was given."""

    def exposed_echo(self, data: bytes) -> bytes:
        """The same bytes."""
        return data


def main() -> None:
    """Serves until the input closes."""
    server = ThreadedServer(Echo, socket_path=sys.argv[1])
    server.listener.listen()  # before the port is printed: start() listens again, later
    serve_until_input_closes(server.start, path=sys.argv[1])


if __name__ == "__main__":
    main()
