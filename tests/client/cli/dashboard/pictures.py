"""The pictures of docs/dashboard.md: a real server at work, as Chromium shows it.

python -m tests.client.cli.dashboard.pictures docs
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from PIL import Image

from tests.client.cli.dashboard.running import chromium, dashboard, go, opened, until
from tests.live_server import live_server

_WORK: Final = """
import sys
import threading
import time
import numpy as np
import jaxd

name, seconds = sys.argv[1], float(sys.argv[2])
random = np.random.default_rng(0)

@jaxd.persistent_call(donate_argnums=0)
def train_step(weights, x, y):
    import jax
    import jax.numpy as jnp

    def loss(weights):
        h = x
        for w in weights[:-1]:
            h = jnp.tanh(h @ w)
        return jnp.mean((h @ weights[-1] - y) ** 2)

    value, slopes = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, s: w - 0.01 * s, weights, slopes), value

@jaxd.persistent_call
def predict(weights, x):
    import jax.numpy as jnp

    for w in weights[:-1]:
        x = jnp.tanh(x @ w)
    return jnp.argmax(x @ weights[-1], -1)

@jaxd.persistent_call
def augment(images, shift):
    import jax
    import jax.numpy as jnp

    noise = jax.random.normal(jax.random.key(0), images.shape) * 0.1
    return jnp.roll(images, shift, axis=1) + noise

@jaxd.persistent_call
def spectrum(signal):
    import jax.numpy as jnp

    return jnp.log1p(jnp.abs(jnp.fft.rfft2(signal)))

@jaxd.persistent_call
def normalise(x):
    if x.shape[0] == 7:
        raise ValueError("seven rows")
    return (x - x.mean(0)) / (x.std(0) + 1e-6)

def array(*shape):
    return random.standard_normal(shape, "f4")

weights = jaxd.put([array(512, 512) * 0.05 for _ in range(6)] + [array(512, 10)])
fixed = jaxd.put([array(512, 512) for _ in range(4)] + [array(512, 10)], name=f"{name} weights")
x, y = array(64, 512), array(64, 10)
others = (
    (augment, (array(32, 64, 64), np.int32(3))),
    (spectrum, (array(256, 256),)),
    (predict, (fixed, array(8, 512))),
)
threads = [threading.Thread(target=function, args=args) for function, args in others]
for thread in threads:
    thread.start()
until = time.monotonic() + seconds
turn = 0
while time.monotonic() < until:
    weights, loss = train_step(weights, x, y)
    predict(fixed, x[: 8 * (1 + turn % 400 // 100)])
    spectrum(array(256, 256))
    normalise(array(16, 4))
    if turn % 600 == 599:
        try:
            normalise(array(7, 4))
        except ValueError:
            pass
    turn += 1
    time.sleep(0.004)
for thread in threads:
    thread.join()
"""
_SIZE: Final = {"width": 1200, "height": 860}


def main(folder: Path) -> None:
    """Writes them there."""
    with ExitStack() as stack:
        live = stack.enter_context(live_server())
        board = stack.enter_context(
            dashboard(
                *("jaxd.cli", "dashboard", "--no-open", "--server", live.unix),
                environment=live.environment,
            )
        )
        browser = stack.enter_context(chromium())
        page = stack.enter_context(opened(browser, board.link, viewport=_SIZE))
        program = live.directory / "train.py"
        program.write_text(_WORK)
        command = [sys.executable, str(program)]
        subprocess.run([*command, "first", "4"], env=live.environment, check=True)
        page.emulate_media(color_scheme="dark")
        go(page, "builds")
        page.wait_for_timeout(1000)
        page.locator(".gantt [data-box]").nth(2).hover()
        page.screenshot(path=folder / "dashboard-dark.png")
        page.emulate_media(color_scheme="light")
        go(page, "overview")
        subprocess.run([*command, "second", "4"], env=live.environment, check=True)
        workers = [
            subprocess.Popen([*command, name, "25"], env=live.environment)
            for name in ("alpha", "beta")
        ]
        until(page, "document.querySelectorAll('.page table')[0].rows.length > 5")
        page.wait_for_timeout(15_000)
        page.screenshot(path=folder / "dashboard-light.png")
        go(page, "functions")
        page.get_by_role("link", name="train_step").click()
        page.get_by_role("button", name="HLO").click()
        page.wait_for_selector(".lines:not([hidden])")
        page.get_by_label("Search in the text").fill("tanh")
        page.wait_for_timeout(1000)
        page.screenshot(path=folder / "dashboard-function.png", full_page=True)
        for each in workers:
            each.wait()
    for picture in folder.glob("dashboard-*.png"):
        few = Image.open(picture).convert("RGB").quantize(192, dither=Image.Dither.NONE)
        few.save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
