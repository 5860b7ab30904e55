from __future__ import annotations

import pickle
from typing import Any

from jaxd_protocol.nested import PlainInside, nested


def double(x: Any, n: int = 2) -> Any:
    """Twice as much."""
    return x * n


class Persistent(PlainInside):
    def __init__(self, options: Any = None) -> None:
        self.__wrapped__ = double
        self.jit_options = options


class Model:
    step = nested(lambda self, x: x + 1.0, ())


def arrived(options: Any) -> Any:
    """What comes of a persistent function on its way to a server."""
    return pickle.loads(pickle.dumps(Persistent(options)))


def test_it_arrives_as_the_function_itself() -> None:
    """Or, when it says how it is jitted, as that function jitted."""
    assert arrived(None) is double
    found = arrived((("static_argnames", ("n",)),))
    assert found.__wrapped__ is double
    assert (found.__name__, found.__doc__) == ("double", "Twice as much.")
    assert float(found(1.5, n=4)) == 6.0
    assert repr(found).startswith("<persistent <function double")


def test_it_travels_on_as_what_it_is() -> None:
    """A function that holds it may be packed where it has arrived."""
    options = (("static_argnums", (1,)),)
    again = pickle.loads(pickle.dumps(arrived(options)))
    assert (again.__wrapped__, again.jit_options) == (double, options)


def test_found_on_an_instance_it_is_a_method() -> None:
    """As any function; found on the class it is itself."""
    assert float(Model().step(1.0)) == 2.0
    assert Model.step is vars(Model)["step"]
