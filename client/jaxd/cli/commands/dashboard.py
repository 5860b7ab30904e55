"""`jaxd dashboard`: what a server does, in a browser."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jaxd.cli.query import add_server_option, require_packages
from jaxd_protocol.errors import ConfigurationError

SUMMARY = "show in a browser what a server does, has done and has saved"
EXAMPLE = "jaxd dashboard --port 8765 --no-open"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="N",
        help="port of 127.0.0.1 that it listens on (default: a free one); name one to reach it "
        "through ssh -L N:127.0.0.1:N",
    )
    parser.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="open it in the browser of this machine (default: on a desktop, from a terminal)",
    )
    add_server_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serves the dashboard until Ctrl-C; starts no server.

    Returns:
        0: never; it ends by a signal.

    Raises:
        NoServer: when none runs.
        ConfigurationError: when starlette and uvicorn are not installed, or the port is taken.
        JaxdError: when a server runs but does not answer.
    """
    require_packages("the dashboard", "dashboard", "starlette", "uvicorn")
    import jaxd
    from jaxd.cli.dashboard.access import Access
    from jaxd.cli.dashboard.app import serve

    with _listener(arguments.port) as listener, jaxd.watch(arguments.server) as watch:
        access = Access(listener.getsockname()[1])
        print(
            f"dashboard of {watch.address}\n\n    {access.link}\n\n"
            "The link opens once, in one browser. Ctrl-C ends the dashboard.",
            flush=True,
        )
        opens = _has_desktop() if arguments.open is None else arguments.open
        with _opened(access.link, opens):
            serve(watch, listener, access)
    return 0


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to 65535, or 0 for a free one")
    return int(text)


def _listener(port: int) -> socket.socket:
    """Listens on 127.0.0.1.

    Raises:
        ConfigurationError: when the port is taken.
    """
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on port {port} of 127.0.0.1: {error.strerror}. Choose another: --port"
        ) from error


def _has_desktop() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.stdout.isatty() and any(os.environ.get(name) for name in names)


@contextmanager
def _opened(link: str, is_wanted: bool) -> Iterator[None]:
    """Has a browser open the link, out of a private file: arguments of processes are public."""
    if not is_wanted:
        yield
        return
    import html
    import tempfile
    import webbrowser

    with tempfile.NamedTemporaryFile("w", prefix="jaxd-dashboard-", suffix=".html") as file:
        target = html.escape(link)
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">')
        file.flush()
        if not webbrowser.open(f"file://{file.name}"):
            print("No browser was found: open the link yourself.", flush=True)
        yield
