"""Classes are registered on the server as they are at their client, and for nobody else."""

from __future__ import annotations

import json

import pytest

from tests.live_server import LiveServer

PROGRAM = """
import json, numbers, sys
import pkgutil
from jaxd import persistent_call

class Square:
    side = 2.0

square = Square()
is_registered = sys.argv[1] == "registered"
if is_registered:
    numbers.Real.register(Square)

    @pkgutil.iter_importer_modules.register(Square)
    def modules(square, prefix=""):
        return [("a", False), ("b", False)]

@persistent_call(fallback="error")
def step(x):
    found = list(pkgutil.iter_importer_modules(square))
    return x + isinstance(square, numbers.Number) * 10 + len(found)

@persistent_call(static_argnums=1, fallback="error")
def given(x, shape):
    return x + isinstance(shape, numbers.Number) * 10 + isinstance(shape, Square)

print(json.dumps([float(step(1.0)), float(given(1.0, square))]))
"""


def _answers(live: LiveServer, program: str, *arguments: str) -> list[float]:
    done = live.run(program, *arguments)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_registration_holds_for_its_client_alone(live: LiveServer) -> None:
    """With an abstract class, and of a form of a library's function: whoever comes first."""
    assert _answers(live, PROGRAM, "plain") == [1.0, 2.0]
    assert _answers(live, PROGRAM, "registered") == [13.0, 12.0]
    assert _answers(live, PROGRAM, "plain") == [1.0, 2.0]


LATE = """
import json, numbers
import jax
from types import SimpleNamespace
from jaxd import persistent_call
from jaxd.errors import PackingError

class Pair:
    def __init__(self, one, two): self.one, self.two = one, two

pair, space = Pair(2.0, 3.0), SimpleNamespace(a=1.0)

@persistent_call(fallback="error")
def leaves(x):
    return x + len(jax.tree.leaves(pair))

@persistent_call(fallback="error")
def spaces(x):
    return x + len(jax.tree.leaves(space))

@persistent_call(fallback="error")
def number(x):
    return x + isinstance(pair, numbers.Number)

def flatten(pair): return (pair.one, pair.two), None
def entries(space): return (1.0, 2.0), None

found = [float(each(0.0)) for each in (leaves, spaces, number)]
jax.tree_util.register_pytree_node(Pair, flatten, lambda _, both: Pair(*both))
numbers.Number.register(Pair)
found += [float(leaves(0.0)), float(number(0.0))]
jax.tree_util.register_pytree_node(SimpleNamespace, entries, lambda _, both: SimpleNamespace())
try:
    spaces(0.0)
except PackingError as error:
    found.append("hold for all clients" in str(error))
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.libraries("jax")
def test_a_late_registration_is_noticed(live: LiveServer) -> None:
    """Of a class of the user's it holds at the next call; of an installed one it is refused."""
    assert _answers(live, LATE) == [1.0, 1.0, 0.0, 2.0, 1.0, True]
