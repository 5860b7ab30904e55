"""What a client that has jax does besides: jax over code that calls the server."""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np

from tests.soak.program import Program, WrongAnswer
from tests.soak.turns import Turn, numbers


def _near(program: Program, found: Any, expected: Any, *what: Any) -> None:
    # Another program than jax makes of the whole: the last bits may differ.
    program.calls += 1
    if not np.allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5):
        raise WrongAnswer(f"{what}\nof version {program.version}:\n{found}\nbut\n{expected}")


def differentiated(program: Program, chance: random.Random) -> None:
    """`jax.grad` of a call."""
    import jax

    x = numbers(chance, 4)
    found = jax.grad(lambda x: program.function("energy")(x, 2.0) * 3.0)(x)
    expected = program.expected("energy", x, 2.0, derived=(("grad", ()),)).result
    _near(program, found, expected * 3, "grad", x)


def inside_of_jit(program: Program, chance: random.Random) -> None:
    """A call in a program of the client's own, mapped."""
    import jax

    rows = numbers(chance, 6).reshape(3, 2)
    found = jax.jit(jax.vmap(program.function("step")))(rows)
    expected = program.expected("step", rows, derived=(("vmap", ()),)).result
    _near(program, found, expected, "vmap", rows)


TURNS_OF_JAX: Final[dict[Turn, int]] = {differentiated: 3, inside_of_jit: 3}
