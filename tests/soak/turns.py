"""What a client does in one turn with functions; each turn is right, or raises."""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Final

import numpy as np

from jaxd.errors import Cancelled, DeadlineExceeded, JaxdError
from tests.soak.program import Derived, Program, WrongAnswer

Turn = Callable[[Program, random.Random], None]

SIZES: Final = (4, 64)
LARGE: Final = 1 << 17


def numbers(chance: random.Random, size: int = 0) -> Any:
    """Some, of which sums and products are exact."""
    first = chance.randrange(-8, 9)
    return np.arange(first, first + (size or chance.choice(SIZES)), dtype=np.float32) / 4


def kinds(program: Program, chance: random.Random) -> None:
    """Programs that differ in nothing but dtypes, or in whether jax has numbers of 64 bits."""
    x = numbers(chance, 4)
    for _ in range(3):
        dtype = chance.choice(["float32", "float16", "int32", "float64"])
        program.check(chance.choice(["step", "inside"]), x.astype(dtype), x64=chance.random() < 0.5)


def small(program: Program, chance: random.Random) -> None:
    """Calls that are warm, one after the other."""
    for _ in range(chance.randrange(4, 12)):
        x = numbers(chance)
        if chance.random() < 0.5:
            program.check("step", x)
        elif chance.random() < 0.5:
            program.check("step", x, by=chance.choice([0.5, 2.0]))
        else:
            program.check("inside", x)


def static(program: Program, chance: random.Random) -> None:
    """Arguments that are part of the program."""
    for _ in range(4):
        how: dict[str, Any] = {
            "steps": chance.randrange(1, 4),
            "mode": chance.choice(["up", "down"]),
        }
        program.check("relax", numbers(chance, 4), statics=("steps", "mode"), **how)
        if chance.random() < 0.3:
            program.check("relax", numbers(chance, 4), how["steps"])  # which is an argument here


def in_flight(program: Program, chance: random.Random) -> None:
    """Calls that were submitted together, small and large ones."""
    large = chance.random() < 0.3
    name, sizes = ("large", (LARGE,)) if large else ("step", SIZES)
    xs = [numbers(chance, chance.choice(sizes)) for _ in range(2 if large else 8)]
    futures = [program.function(name).submit(x) for x in xs]
    for x, future in zip(xs, futures, strict=True):
        program.compare(future.result(), program.expected(name, x).result, name, x)


def mapped(program: Program, chance: random.Random) -> None:
    """Many in flight, in order."""
    xs = [numbers(chance, 4) for _ in range(40)]
    for x, found in zip(xs, program.function("inside").map(xs), strict=True):
        program.compare(found, program.expected("inside", x).result, "map", x)


DERIVED: Final[tuple[Derived, ...]] = (
    (("grad", ()),),
    (("value_and_grad", ()),),
    (("grad", (("argnums", 1),)),),
    (("vmap", (("in_axes", (0, None)),)),),
    (("grad", ()), ("vmap", (("in_axes", (0, None)),))),
    (("jacfwd", ()),),
)


def derived(program: Program, chance: random.Random) -> None:
    """Derivatives and mapped functions, by name."""
    how = chance.choice(DERIVED)
    x = numbers(chance, 4)
    rows = x.reshape(2, 2) if how[-1][0] == "vmap" else x
    program.check("energy", rows, float(chance.choice([0.5, 2.0])), derived=how)


def random_numbers(program: Program, chance: random.Random) -> None:
    """Of a seed that is an argument."""
    program.check("noise", chance.randrange(100), numbers(chance, 64))


def calling_back(program: Program, chance: random.Random) -> None:
    """What a program prints and calls back happens here, once, and in order."""
    x, heard = numbers(chance, 4), program.module.heard
    expected = program.expected("tell", x)
    heard.clear()
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            found = program.function("tell")(x)
    except JaxdError:
        program.compare(heard, list(expected.heard[: len(heard)]), "called back", x)
        program.compare(said.getvalue(), expected.said[: len(said.getvalue())], "said", x)
        raise
    program.compare(
        (found, heard, said.getvalue()),
        (expected.result, list(expected.heard), expected.said),
        "tell",
        x,
    )


def failing(program: Program, chance: random.Random) -> None:
    """What a function raises is raised here, and the next call is right."""
    kind, x = chance.choice(["value", "own", "other"]), numbers(chance)
    scope = vars(program.module)
    wanted: tuple[type[Exception], Any] = {
        "value": (ValueError, (f"{scope['RATE']} of {x.shape}",)),
        "own": (scope["Mishap"], (scope["RATE"], scope["TABLE"]["gain"])),
        "other": (KeyError, ("other",)),
    }[kind]
    try:
        found = program.function("fail", static_argnames=("kind",))(x, kind=kind)
    except wanted[0] as error:
        if error.args != wanted[1]:
            raise WrongAnswer(f"raised {error!r} instead of {wanted[1]}") from None
    else:
        raise WrongAnswer(f"{kind}: returned {found!r} instead of {wanted}")
    program.check("step", x)


def given_up(program: Program, chance: random.Random) -> None:
    """Calls that would never end, and one that waits behind them."""
    future = program.function("endless").submit(numbers(chance, 4))
    time.sleep(chance.uniform(0, 0.2))
    future.cancel()
    try:
        raise WrongAnswer(f"what never ends returned {future.result()!r}")
    except (Cancelled, CancelledError):
        program.check("step", numbers(chance, 4))


def late(program: Program, chance: random.Random) -> None:
    """A deadline that passes."""
    try:
        found = program.function("endless", timeout_s=0.1)(numbers(chance, 1))
    except DeadlineExceeded:
        program.check("inside", numbers(chance, 4))
    else:
        raise WrongAnswer(f"what never ends returned {found!r}")


def busy(program: Program, chance: random.Random) -> None:
    """Programs that run for some milliseconds."""
    program.check("busy", numbers(chance, 4), chance.choice([20_000, 100_000]))


def edited(program: Program, chance: random.Random) -> None:
    """After each edit of a file the answer is that of the new text; also after going back."""
    before, x = program.version, numbers(chance, 4)
    program.check("step", x)
    for _ in range(chance.randrange(1, 3)):
        program.edit(chance)
        _look(program, chance, x)
    if chance.random() < 0.4:
        program.become(before)
        _look(program, chance, x)


def changed(program: Program, chance: random.Random) -> None:
    """After a change of what runs, the answer is the new one, of the same persistent function."""
    x = numbers(chance, 4)
    program.check("step", x)
    for _ in range(chance.randrange(1, 4)):
        program.change(chance)
        _look(program, chance, x)


def _look(program: Program, chance: random.Random, x: Any) -> None:
    program.check("step", x)
    other = chance.choice(["inside", "relax", "energy", "noise"])
    if other == "relax":
        program.check("relax", x, steps=2, statics=("steps", "mode"))
    elif other == "inside":
        program.check("inside", x)
    elif other == "energy":
        program.check("energy", x, 2.0, derived=DERIVED[0])
    else:
        program.check("noise", 7, x)


TURNS: Final[dict[Turn, int]] = {
    small: 30,
    kinds: 5,
    static: 6,
    in_flight: 8,
    mapped: 4,
    derived: 6,
    random_numbers: 4,
    calling_back: 4,
    failing: 5,
    given_up: 2,
    late: 2,
    busy: 3,
    edited: 12,
    changed: 10,
}
"""How often each of them is taken, compared with the others."""


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
"""What a client that has jax does besides: jax over code that calls the server."""
