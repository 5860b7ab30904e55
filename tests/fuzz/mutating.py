"""Changes bytes as a fuzzer does where there is no atheris; seeded, so that it can be repeated."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

_MAX_BYTES: Final = 1 << 14
_INTERESTING: Final = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\x00" * 4,
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff" * 8,
    b"\x00" * 7 + b"\x01",
    b"\xed\xa0\x80",  # a lone surrogate
    b"-1",
    b"NaN",
    b"1e999",
    b"[" * 64,
    b"..",
    b"/",
    b"%00",
)


def mutations(seeds: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """The seeds, and then changes of them without end; what is kept is changed again."""
    yield from seeds
    pool = list(seeds) or [b""]
    rng = random.Random(seed)
    for _ in count():
        data = bytearray(rng.choice(pool))
        for _ in range(1 << rng.randrange(4)):
            _change(data, pool, rng)
        changed = bytes(data[:_MAX_BYTES])
        if rng.random() < 0.01:  # without coverage to go by, a few are taken further
            pool.append(changed)
            if len(pool) > 4 * len(seeds) + 64:
                pool.pop(len(seeds))
        yield changed


def _change(data: bytearray, pool: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(9):
        case 0 if data:
            data[at - 1] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[at - 1] = rng.randrange(256)
        case 2:
            data[at:at] = rng.choice(_INTERESTING)
        case 3:
            piece = rng.choice(_INTERESTING)
            data[at : at + len(piece)] = piece
        case 4:
            del data[at : at + rng.randrange(1, 9)]
        case 5:
            end = at + rng.randrange(1, 33)
            data[at:at] = data[at:end]
        case 6:
            other = rng.choice(pool)
            start = rng.randrange(len(other) + 1)
            data[at:] = other[start:]
        case 7:
            other = rng.choice(pool)
            start = rng.randrange(len(other) + 1)
            data[at:at] = other[start : start + rng.randrange(1, 33)]
        case _:
            data[at:at] = rng.randbytes(rng.randrange(1, 5))
