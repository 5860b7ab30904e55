"""`python -m jaxd_server` with the fake worker: the real host, in a process of its own."""

from __future__ import annotations

import os
import sys

from jaxd_server.__main__ import main

if __name__ == "__main__":
    fake_worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_worker.py")
    sys.exit(main(worker_command=[sys.executable, "-P", fake_worker]))
