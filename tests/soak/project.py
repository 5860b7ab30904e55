"""The program that each client of the soak runs, its files, and the edits that are made to them."""

from __future__ import annotations

import builtins
import os
import random
import string
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

HELPER: Final = """
BIAS = $bias


def scale(x):
    return x * $factor + BIAS


def shifted(x, by=$shifted):
    return x - by


class Scale:
    width = $width

    def __init__(self, rate):
        self.rate, self.unread = rate, object

    def apply(self, x):
        return x * self.rate + self.width
"""

MAIN: Final = '''
"""What this client computes: comment $comment."""

import helper
import numpy as np
from helper import Scale, shifted

RATE = $rate
TABLE = {"gain": $gain, "unread": $comment}
OFFSETS = np.array([$offset, 2.0], np.float32)
LEVELS = [$level, 1.0]
model = Scale($model)
heard = []


class Mishap(Exception):
    pass


def make(shift):
    def add(x):
        return x + shift

    return add


closed = make($closed)


def step(x, by=$default):
    # $comment
    read = RATE * by + TABLE["gain"] + OFFSETS[0] + LEVELS[0]
    return helper.scale(x) * $constant + closed(x) + model.apply(x) + shifted(x) + read


def inside(x):
    import helper

    return helper.scale(x) - $constant


def relax(x, steps, mode="up"):
    import jax

    change = RATE if mode == "up" else -TABLE["gain"]
    return jax.lax.fori_loop(0, steps, lambda _, y: y * 0.5 + change, x)


def update(state, batch):
    w = state["w"] * 0.5 + batch[:8].mean() * RATE + closed(0.0)
    return {"w": w, "n": state["n"] + 1}, w.sum()


def noise(seed, x):
    import jax

    return x + jax.random.normal(jax.random.key(seed), x.shape) * RATE


def energy(x, scale):
    import jax.numpy as jnp

    return jnp.sum(helper.scale(x) ** 3) * scale * RATE


def large(x):
    return model.apply(x) * RATE


def tell(x):
    import jax
    from jax.experimental import io_callback

    def body(_, y):
        jax.debug.print("{}", y[0], ordered=True)
        io_callback(heard.append, None, y[0], ordered=True)
        return y * 0.5 + RATE

    return jax.lax.fori_loop(0, 3, body, x)


def fail(x, kind):
    if kind == "value":
        raise ValueError(f"{RATE} of {x.shape}")
    if kind == "own":
        raise Mishap(RATE, TABLE["gain"])
    return {"": x}[kind]


def busy(x, rounds):
    import jax

    return jax.lax.fori_loop(0, rounds, lambda _, y: y * 0.999 + RATE, x)


def endless(x):
    while True:
        x = x + RATE
'''

_NUMBERS: Final = (0.25, 0.5, 0.75, 1.25, 1.5, 2.5)
"""Few, so that clients meet each other's programs and come back to their own."""

SLOTS: Final = (
    *("bias", "factor", "shifted", "width", "rate", "gain", "offset", "level", "model"),
    *("closed", "default", "constant", "comment"),
)
"""What an edit may change; the last of them is no change."""

LIVE: Final = {
    "rate": "RATE = {}",
    "gain": "TABLE['gain'] = {}",
    "offset": "OFFSETS[0] = {}",
    "level": "LEVELS[0] = {}",
    "model": "model.rate = {}",
    "closed": "closed = make({})",
    "bias": "helper.BIAS = {}",
    "width": "Scale.width = {}",
    "default": "step.__defaults__ = ({},)",
}
"""What a running program may do to itself, and the statement that does it."""


class Version(NamedTuple):
    """What a program computes with.

    Attributes:
        numbers: of `SLOTS`, in order: what its files say.
        done: statements that were executed after they were loaded.
    """

    numbers: tuple[float, ...]
    done: tuple[str, ...] = ()

    def edited(self, chance: random.Random) -> Version:
        """The same with one of its files edited."""
        slot = chance.randrange(len(SLOTS))
        numbers = list(self.numbers)
        numbers[slot] = chance.choice([one for one in _NUMBERS if one != numbers[slot]])
        return Version(tuple(numbers))

    def changed(self, chance: random.Random) -> tuple[Version, str]:
        """The same after a statement more, and that statement."""
        statement = LIVE[chance.choice(list(LIVE))].format(chance.choice(_NUMBERS))
        return self._replace(done=(*self.done, statement)), statement

    def texts(self) -> Mapping[str, str]:
        """Its files, by name."""
        numbers = dict(zip(SLOTS, self.numbers, strict=True))
        return {
            "helper.py": string.Template(HELPER).substitute(numbers),
            "main.py": string.Template(MAIN).substitute(numbers),
        }


def original(seed: int) -> Version:
    """One to begin with."""
    chance = random.Random(seed)
    return Version(tuple(chance.choice(_NUMBERS) for _ in SLOTS))


def write(version: Version, folder: Path) -> None:
    """Its files, each of which is there as a whole at any time."""
    for name, text in version.texts().items():
        new = folder / f".{name}"
        new.write_text(text)
        os.replace(new, folder / name)


def load(version: Version) -> types.ModuleType:
    """The program, in modules that nobody else sees: for who wants to know the right answer."""
    modules: dict[str, types.ModuleType] = {}

    def find(name: str, *args: Any, **kwargs: Any) -> Any:
        return modules[name] if name in modules else __import__(name, *args, **kwargs)

    for file, text in version.texts().items():
        module = types.ModuleType(Path(file).stem)
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": find}
        exec(compile(text, file, "exec"), vars(module))
        modules[module.__name__] = module
    for statement in version.done:
        exec(statement, vars(modules["main"]))
    return modules["main"]
