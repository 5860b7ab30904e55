"""A link of 100 Mbit/s to a port of loopback: `python -m benchmarks.slow_link PORT`."""

from __future__ import annotations

import sys
import threading

from tests.end_to_end.throttle import MBIT, Throttle

from benchmarks.answering import serve_until_input_closes

LATENCY_S = 0.001


def main() -> None:
    """Serves until the input closes."""
    link = Throttle(int(sys.argv[1]), 100 * MBIT, LATENCY_S)
    serve_until_input_closes(threading.Event().wait, port=link.port)


if __name__ == "__main__":
    main()
