"""Names of functions on the wire."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd.identity import Identity, Spec
from jaxd_protocol.calls import Options
from jaxd_protocol.errors import PackingError


def fingerprint(function: Any) -> bytes:
    """That of the function, with no options."""
    return Identity(function, Options()).fingerprint


def make(scale: Any) -> Any:
    """A function that closes over a value."""
    return lambda x: x * scale


def test_the_same_function_has_the_same_fingerprint() -> None:
    """Packed again, or made again from the same code with an equal closure."""
    assert fingerprint(make(2.0)) == fingerprint(make(2.0))
    assert len(fingerprint(make(2.0))) == 16


@pytest.mark.parametrize("other", [3.0, 2, "2.0", (2.0,)], ids=repr)
def test_another_closure_is_another_function(other: Any) -> None:
    """In value or in type."""
    assert fingerprint(make(2.0)) != fingerprint(make(other))


HELPERS = "def helper(x):\n    return x + {number}\n\ndef step(x):\n    return helper(x) * 2\n"


def test_a_changed_helper_is_another_function() -> None:
    """What a function calls is part of what it means."""

    def defined(number: int) -> Any:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(HELPERS.format(number=number), names)
        return names["step"]

    assert fingerprint(defined(1)) == fingerprint(defined(1))
    assert fingerprint(defined(1)) != fingerprint(defined(2))


@pytest.mark.parametrize(
    "options",
    [
        Options(static_argnums=(0,)),
        Options(static_argnames=("x",)),
        Options(donate_argnums=(0,)),
        Options(keep_unused=True),
        Options(inline=True),
        Options(compiler_options=(("a", 1),)),
        Options(config=(("jax_enable_x64", True),)),
        Options(extra_key="a"),
        Options(extra_key=1),
        Options(extra_key=True),
    ],
    ids=str,
)
def test_options_are_part_of_the_key_and_not_of_the_fingerprint(options: Options) -> None:
    """The same code under other options is sent once and compiled twice."""
    plain, other = Identity(make(2.0), Options()), Identity(make(2.0), options)
    assert plain.fingerprint == other.fingerprint
    assert Spec(plain, Options()).key != Spec(other, options).key
    assert Spec(other, options).key == Spec(plain, options).key


def test_it_has_the_name_that_people_know() -> None:
    """Also where there is no function object."""
    import functools

    class Model:
        def __call__(self, x: Any) -> Any:
            return x

    assert Identity(make, Options()).name == "make"
    assert Identity(functools.partial(make, 1), Options()).name == "partial"
    assert Identity(Model(), Options()).name.endswith("Model")


def test_static_arguments_are_found_by_position_and_name() -> None:
    """As jax.jit infers them."""

    def function(x: Any, mode: str, *, flag: bool = False) -> Any:
        return x

    found = Identity(function, Options(static_argnames=("mode", "flag"))).statics
    assert (found.positions, found.names) == (frozenset({1}), frozenset({"mode", "flag"}))
    assert not Identity(function, Options()).statics


def test_what_cannot_travel_is_named() -> None:
    """Together with the function that reaches it."""
    lock = threading.Lock()

    def holds(x: Any) -> Any:
        return lock, x

    with pytest.raises(PackingError, match=r"holds.*lock"):
        Identity(holds, Options())
