"""Stock rpyc, a cached method, 100 bytes there and back: `rpyc_echo PATH`."""

from __future__ import annotations

import sys

from rpyc.utils.factory import unix_connect

from benchmarks.answering import answer_requests, measure_median


def main() -> None:
    """Measures until the input closes."""
    echo = unix_connect(sys.argv[1]).root.echo
    payload = b"x" * 100
    answer_requests({"small": measure_median(lambda: echo(payload))})


if __name__ == "__main__":
    main()
