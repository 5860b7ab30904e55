"""Values that are drawn from a seed: texts, paths, numbers, plain values and JSON."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

CANARIES: Final = ("canary/file.txt", "canary/pipe", "canary/sub/inner.npy", "canary")
"""In the victim's working directory: files, a FIFO, which hangs who opens it, and a folder."""

PATHS: Final = (
    *CANARIES,
    *CANARIES,
    "canary/new.npy",
    "canary/archive.zip",
    "http://127.0.0.1:1/x",
)
SECRET_FILES: Final = (".env", "canary/link", "/etc/passwd", "../x", "canary/../.env", "~/.env")
"""Of a client, which it shows to nobody: hidden, linked to from its folder, or outside of it."""

_TEXTS: Final = ("", "w", "r", "wb", "rb", "a", "text", "utf-8", "touch canary/ran", "1 + 1", "os")
DTYPES: Final = ("float32", "int32", "uint8", "bool", "float64", "bfloat16", "complex64")
_SPECIAL: Final = (  # noqa: SIM905
    "__globals__ __class__ __dict__ __init__ __mro__ __module__ __code__ __func__"
    " __self__ __wrapped__ __closure__ __builtins__ __reduce__ f_globals gi_frame"
).split()
NUMBERS: Final = (0, 1, -1, 2, 3, 7, 255, 1 << 31, -(1 << 63), 1 << 70)


class WeightedChoice:
    """Something to draw from, each with its weight."""

    def __init__(self, values: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        self.values = values
        self._sums = None if weights is None else list(accumulate(weights))

    def __call__(self, rng: random.Random) -> Any:
        if self._sums is None:
            return rng.choice(self.values)
        return rng.choices(self.values, cum_weights=self._sums)[0]


class RandomValues:
    """What one message is drawn from.

    Args:
        inventory: what is loaded in the victim, see `inventory`.
        seed: of everything.

    Attributes:
        rng: that of the present message.
        counts: messages and their parts so far, by kind and name.
        inventory: see above.
        of: what it says of the function that the present message is about.
    """

    def __init__(self, inventory: Mapping[str, Any], seed: int) -> None:
        self._seed = seed
        self.rng = random.Random(seed)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.inventory = inventory
        self.of: Mapping[str, Any] = next(iter(inventory["own"].values()))

    def begin(self, number: int) -> None:
        """What is drawn next belongs to the message of that number."""
        self.rng = random.Random((self._seed << 40) + number)

    def text(self) -> str:
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            return str(rng.choice(_TEXTS))
        if kind < 0.6:
            return rng.choice(PATHS)
        if kind < 0.8:
            return self.template()
        return str(rng.choice(self.inventory["modules"]))

    def template(self) -> str:
        """A format that walks from what it is given to what hangs there."""
        rng = self.rng
        path = rng.choice(("0", "", "x"))
        while True:
            name = rng.choice(_SPECIAL if rng.random() < 0.7 else ("environ", "os", "func", "args"))
            path += f".{name}" if rng.random() < 0.75 else f"[{name}]"
            if rng.random() < 0.5:
                return f"{{{path}}}"

    def bytes(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((0, 1, 8, 16, 40)))

    def plain(self, depth: int) -> Any:
        """What a literal can be."""
        rng = self.rng
        kind = rng.randrange(10 if depth else 8)
        if kind < 2:
            return rng.choice((None, True, False))
        if kind < 4:
            return rng.choice(NUMBERS)
        if kind < 6:
            return self.text()
        if kind == 6:
            return rng.choice((0.0, 1.5, float("inf"), 1j))
        if kind == 7:
            return self.bytes()
        return tuple(self.plain(depth - 1) for _ in range(rng.randrange(4)))

    def json(self, depth: int = 2) -> Any:
        rng = self.rng
        kind = rng.randrange(8 if depth else 6)
        if kind < 2:
            return rng.choice((None, True, 0, -1, 1e300, 1 << 70))
        if kind < 6:
            return self.text()
        if kind == 6:
            return [self.json(depth - 1) for _ in range(rng.randrange(3))]
        return {self.text(): self.json(depth - 1) for _ in range(rng.randrange(3))}
