"""Python imports this when it starts with this folder on its path: a worker is the victim."""

import os
import sys

if "JAXD_HOSTILE_FOLDER" in os.environ and "jaxd_server.processes.worker.worker" in sys.orig_argv:
    sys.path.append(os.environ["JAXD_HOSTILE_ROOT"])
    from tests.hostile.victim_server import watch

    watch(os.environ["JAXD_HOSTILE_FOLDER"])
