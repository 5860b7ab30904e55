"""`jaxd demo`: one training script, run from fresh processes; the second compiles nothing.

Each runs this module: `python -m jaxd.cli.commands.demo persistent 30` trains a small network for
30 epochs by calls of a jaxd server, `… jit 30` the same on jax in its own process. So little is
imported at the top: that is part of what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from jaxd_protocol.base.terminal import table
from jaxd_protocol.errors import JaxdError

SUMMARY = "train from two fresh processes; the second compiles nothing"
EXAMPLE = "jaxd demo --epochs 50"

LAYERS: Final = ((64, 128), (128, 64), (64, 10))
BATCH: Final = 32
TEST_IMAGES: Final = 360
LEAST_ACCURACY: Final = 0.9

_HIDDEN = ("JAXD_", "JAX_COMPILATION_CACHE", "JAX_ENABLE_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE")
_NOTE = """
The times are seconds from the start of a process. The first result is the first loss as a number:
what the user waits for. Traced and compiled: how often the server did so for the process."""

Run = dict[str, Any]


def _seconds(name: str) -> Callable[[Run], str]:
    return lambda run: f"{run[name] - run['started_at']:.2f} s"


_COLUMNS: Final[dict[str, Callable[[Run], str]]] = {
    "": lambda run: run["label"],
    "imports done": _seconds("ready_at"),
    "first result": _seconds("first_at"),
    "end": _seconds("ended_at"),
    "traced": lambda run: str(run.get("traces", "-")),
    "compiled": lambda run: str(run.get("compiles", "-")),
    "accuracy": lambda run: f"{run['accuracy']:.1%}",
    "imports jax": lambda run: "yes" if run["imports_jax"] else "no",
}


def train_epoch(params: Any, batches: Any, test: Any) -> tuple[Any, Any, Any]:
    """One pass over all minibatches: images (steps, batch, 64), labels (steps, batch).

    Returns:
        The weights, the mean loss, and the accuracy on the test images.
    """
    import jax
    import jax.numpy as jnp

    def logits(params: Any, images: Any) -> Any:
        *hidden, last = params
        for weights in hidden:
            images = jnp.maximum(images @ weights, 0)
        return images @ last

    def loss(params: Any, images: Any, labels: Any) -> Any:
        log_probability = jax.nn.log_softmax(logits(params, images))
        return -jnp.mean(jnp.take_along_axis(log_probability, labels[:, None], axis=1))

    def step(params: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda w, g: w - 0.2 * g, params, gradient), value

    params, losses = jax.lax.scan(step, params, batches)
    images, labels = test
    accuracy = (logits(params, images).argmax(axis=-1) == labels).mean()
    return params, losses.mean(), accuracy


def train(mode: str, epochs: int) -> Run:
    """Trains on handwritten digits, and reports the times of its steps and the accuracy."""
    import numpy as np
    from sklearn.datasets import load_digits

    if mode == "jit":
        from jax import jit

        run_epoch: Any = jit(train_epoch)
    else:
        from jaxd import persistent_call

        run_epoch = persistent_call(train_epoch)

    rng, digits = np.random.default_rng(0), load_digits()
    order = rng.permutation(len(digits.target))
    images, labels = (digits.data[order] / 16).astype("f4"), digits.target[order].astype("i4")
    test = images[:TEST_IMAGES], labels[:TEST_IMAGES]
    images, labels = images[TEST_IMAGES:], labels[TEST_IMAGES:]
    params: Any = [rng.normal(0, (2 / n) ** 0.5, (n, out)).astype("f4") for n, out in LAYERS]
    ready_at, first_at, accuracy = time.time(), 0.0, 0.0
    for _ in range(epochs):
        at = rng.permutation(len(labels) // BATCH * BATCH).reshape(-1, BATCH)
        params, loss, accuracy = run_epoch(params, (images[at], labels[at]), test)
        float(loss)
        first_at = first_at or time.time()
    report = {"ready_at": ready_at, "first_at": first_at, "accuracy": float(accuracy)}
    return {**report, "imports_jax": "jax" in sys.modules}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    from jaxd.cli.query import positive_int

    parser.add_argument(
        "--epochs",
        type=positive_int,
        default=30,
        metavar="N",
        help="passes over the images in each run (default: 30)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the table: 0 when all in it is as promised, 1 when something is not.

    Raises:
        JaxdError: when something that the demo needs is missing or failed.
    """
    runs = _measured(arguments.epochs)
    rows = [[cell(run) for cell in _COLUMNS.values()] for run in runs]
    wrong = complaints(runs)
    print("\n".join([table([list(_COLUMNS), *rows]), _NOTE, *wrong]))
    return 1 if wrong else 0


def complaints(runs: list[Run]) -> list[str]:
    """What did not go as promised; nothing when the demo has succeeded."""
    found = [
        f"The second process caused {n} {what}."
        for what in ("traces", "compiles")
        if (n := runs[1][what])
    ]
    found += [
        f"{each['label']}: {each['accuracy']:.1%} of the test digits were recognised, less than "
        f"{LEAST_ACCURACY:.0%}. Train for more epochs (--epochs)."
        for each in runs
        if each["accuracy"] < LEAST_ACCURACY
    ]
    if any(each["imports_jax"] for each in runs[:2]):
        found.append("A client process imported jax; it should have no need of it.")
    return found


def _measured(epochs: int) -> list[Run]:
    import signal
    from tempfile import TemporaryDirectory

    from jaxd import connect
    from jaxd.cli.query import require_packages
    from jaxd_protocol.network.local_server import make_private_directory, runtime_dir

    require_packages("the demo", "server,demo", "jax", "sklearn")
    hide_settings()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server is stopped
    # Beside the local server's directory: the path of a Unix socket has to be short.
    place = make_private_directory(runtime_dir())
    with TemporaryDirectory(prefix="demo-", dir=place) as folder, server_in(folder) as address:
        # Untimed, or the first run would pay for the disk.
        imports = [sys.executable, "-P", "-c", "import cloudpickle, jax, rpyc, sklearn.datasets"]
        subprocess.run(imports, check=False)  # noqa: S603  our own program
        runs, traces, compiles = [], 0, 0
        for label in ("jaxd, first process", "jaxd, second process"):
            timed = run_script(label, "persistent", epochs, JAXD_SERVER=address, JAXD_AUTOSTART="0")
            with connect(address) as client:
                now = client.statistics()
            runs.append(
                timed | {"traces": now.traces - traces, "compiles": now.compiles - compiles}
            )
            traces, compiles = now.traces, now.compiles
    return [*runs, run_script("jax.jit", "jit", epochs)]


@contextmanager
def server_in(directory: str) -> Iterator[str]:
    """Runs a server in `directory` and yields its address; the local server is not touched.

    An interrupt waits until the server has started: before that it could not be stopped.
    """
    from jaxd.cli.child_program import deferring_interrupts
    from jaxd.connection.control_client import stop_and_wait
    from jaxd.connection.local_server import SERVER_COMMAND, start_background
    from jaxd_protocol.network.addresses import Address
    from jaxd_protocol.network.local_server import LocalServerFiles

    files = LocalServerFiles(directory)
    cache = ("--cache-dir", os.path.join(directory, "cache"))
    try:
        with deferring_interrupts():
            start_background(files, server_command=(*SERVER_COMMAND, *cache))
        yield str(Address.unix(files.socket))
    finally:
        stop_and_wait(files.control, now=True)


def run_script(label: str, mode: str, epochs: int, **variables: str) -> Run:
    """The report of `train` from a fresh process, and when that began and ended.

    Raises:
        JaxdError: when the process failed; what it printed has gone to standard error.
    """
    # -P: a folder named jaxd where the user happens to stand must not be what is imported.
    command = [sys.executable, "-P", "-m", "jaxd.cli.commands.demo", mode, str(epochs)]
    started_at = time.time()
    process = subprocess.run(  # noqa: S603  our own program
        command, env=os.environ | variables, stdout=subprocess.PIPE, check=False
    )
    if process.returncode:
        raise JaxdError(f"{label} ended with code {process.returncode}; why stands above.")
    report = json.loads(process.stdout.splitlines()[-1])
    return {"label": label, "started_at": started_at, "ended_at": time.time(), **report}


def hide_settings() -> None:
    """Removes from the environment what would spoil the comparison."""
    for name in [name for name in os.environ if name.startswith(_HIDDEN)]:
        del os.environ[name]
    # Several processes share the device in turn with the server: none may take all its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], int(sys.argv[2]))))
