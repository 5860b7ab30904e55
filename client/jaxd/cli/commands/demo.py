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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from jaxd_protocol.base.terminal import table
from jaxd_protocol.errors import ConfigurationError, JaxdError, ServerStartFailed

SUMMARY = "train on real digits from two fresh processes; the second compiles nothing"
EXAMPLE = "jaxd demo --epochs 50"

LAYERS: Final = ((64, 128), (128, 64), (64, 10))
BATCH: Final = 32
TEST_IMAGES: Final = 360
LEAST_ACCURACY: Final = 0.9

_HIDDEN = ("JAXD_", "JAX_COMPILATION_CACHE", "JAX_ENABLE_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE")
_HEADS = (
    "",
    "imports done",
    "first result",
    "end",
    "traced",
    "compiled",
    "accuracy",
    "imports jax",
)
_NOTE = """
The times are seconds from the start of a process. The first result is the first loss as a number:
what the user waits for. Traced and compiled: how often the server did so for the process."""


def train_epoch(params: Any, velocity: Any, batches: Any, test: Any) -> tuple[Any, Any, Any, Any]:
    """One pass over all minibatches: images (steps, batch, 64), labels (steps, batch).

    Returns:
        The weights, their velocity, the mean loss, and the accuracy on the test images.
    """
    import jax
    import jax.numpy as jnp

    def logits(params: Any, images: Any) -> Any:
        *hidden, last = params
        for weights, bias in hidden:
            images = jnp.maximum(images @ weights + bias, 0)
        return images @ last[0] + last[1]

    def loss(params: Any, x: Any, y: Any) -> Any:
        log_probability = jax.nn.log_softmax(logits(params, x))
        return -jnp.mean(jnp.take_along_axis(log_probability, y[:, None], axis=1))

    def step(state: Any, batch: Any) -> Any:
        params, velocity = state
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.02 * g, velocity, gradient)
        return (jax.tree.map(jnp.add, params, velocity), velocity), value

    (params, velocity), losses = jax.lax.scan(step, (params, velocity), batches)
    images, labels = test
    accuracy = (logits(params, images).argmax(axis=-1) == labels).mean()
    return params, velocity, losses.mean(), accuracy


def train(mode: str, epochs: int) -> dict[str, float]:
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
    steps = len(labels) // BATCH
    params: Any = [
        (rng.normal(0, np.sqrt(2 / fan_in), (fan_in, out)).astype("f4"), np.zeros(out, "f4"))
        for fan_in, out in LAYERS
    ]
    velocity: Any = [(np.zeros_like(weights), np.zeros_like(bias)) for weights, bias in params]
    ready_at, first_at, accuracy = time.time(), 0.0, 0.0
    for _ in range(epochs):
        at = rng.permutation(len(labels))[: steps * BATCH].reshape(steps, BATCH)
        params, velocity, loss, accuracy = run_epoch(
            params, velocity, (images[at], labels[at]), test
        )
        float(loss)
        first_at = first_at or time.time()
    report = {"ready_at": ready_at, "first_at": first_at, "accuracy": float(accuracy)}
    return {**report, "imports_jax": "jax" in sys.modules}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--epochs",
        type=_positive,
        default=30,
        metavar="N",
        help="passes over the images in each run (default: 30)",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table: 0 when all in it is as promised, 1 when something is not.

    Raises:
        JaxdError: when something that the demo needs is missing or failed.
    """
    runs = _measured(arguments.epochs)
    wrong = complaints(runs)
    print("\n".join([table([_HEADS, *map(_row, runs)]), _NOTE, *wrong]))
    return 1 if wrong else 0


def complaints(runs: list[dict[str, Any]]) -> list[str]:
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


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    times = (
        f"{run[name] - run['started_at']:.2f} s" for name in ("ready_at", "first_at", "ended_at")
    )
    counts = (str(run.get(name, "-")) for name in ("traces", "compiles"))
    return (
        run["label"],
        *times,
        *counts,
        f"{run['accuracy']:.1%}",
        "yes" if run["imports_jax"] else "no",
    )


def _measured(epochs: int) -> list[dict[str, Any]]:
    import signal
    from importlib.util import find_spec
    from tempfile import TemporaryDirectory

    from jaxd import connect
    from jaxd_protocol.network.local_server import make_private_directory, runtime_dir

    missing = [name for name in ("jax", "sklearn") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"no {' and no '.join(missing)} here. Run: pip install 'jaxd[server,demo]'"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server is stopped
    # Beside the local server's directory: the path of a Unix socket has to be short.
    place = make_private_directory(runtime_dir())
    with TemporaryDirectory(prefix="demo-", dir=place) as directory, _server(directory) as address:
        # Untimed, or the first run would pay for the disk.
        imports = [sys.executable, "-P", "-c", "import cloudpickle, jax, rpyc, sklearn.datasets"]
        subprocess.run(imports, env=environment(), check=False)  # noqa: S603  our own program
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
def _server(directory: str) -> Iterator[str]:
    """Runs a server in `directory` and yields its address; the local server is not touched."""
    from jaxd.connection.control_client import send_request
    from jaxd.connection.local_server import SERVER_COMMAND
    from jaxd_protocol.network.addresses import Address
    from jaxd_protocol.network.local_server import LocalServerFiles

    files = LocalServerFiles(directory)
    address, cache = str(Address.unix(files.socket)), os.path.join(directory, "cache")
    command = [*SERVER_COMMAND, "--auto", "--listen", address, "--cache-dir", cache]
    with open(files.log, "w+", encoding="utf-8") as log:
        server = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)  # noqa: S603
        try:
            state = "starting"
            while state in {"starting", "dead"}:
                if server.poll() is not None:
                    log.seek(0)
                    raise ServerStartFailed(f"the server ended. Its log:\n{log.read()}")
                time.sleep(0.05)
                state = (send_request(files.control, {"ask": "status"}) or {}).get(
                    "worker_state", state
                )
            yield address
        finally:
            server.terminate()
            server.wait()


def run_script(label: str, mode: str, epochs: int, **variables: str) -> dict[str, Any]:
    """The report of `train` from a fresh process, and when that began and ended.

    Raises:
        JaxdError: when the process failed; what it printed has gone to standard error.
    """
    # -P: a folder named jaxd where the user happens to stand must not be what is imported.
    command = [sys.executable, "-P", "-m", "jaxd.cli.commands.demo", mode, str(epochs)]
    started_at = time.time()
    process = subprocess.run(  # noqa: S603  our own program
        command, env=environment(**variables), stdout=subprocess.PIPE, check=False
    )
    if process.returncode:
        raise JaxdError(f"{label} ended with code {process.returncode}; why stands above.")
    report = json.loads(process.stdout.splitlines()[-1])
    return {"label": label, "started_at": started_at, "ended_at": time.time(), **report}


def environment(**variables: str) -> dict[str, str]:
    """That of this process without what would spoil the comparison, and `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    # Several processes share the device in turn with the server: none may take all its memory.
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **kept, **variables}


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], int(sys.argv[2]))))
