"""Each error is that of `jax.jit`, in a process that may have no jax."""

from __future__ import annotations

import enum
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxd import PersistentFunction, persistent_call
from jaxd.api.options import (
    check_arguments,
    check_function,
    check_option_values,
    inline_of,
    names_of,
    packed_shardings,
    positions_of,
)
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import CONFIG_DEFAULTS, Options
from tests.client.fresh_process import in_a_fresh_process
from tests.ids import row
from tests.live_server import LiveServer


def plain(x: Any, n: int, flag: bool = True) -> Any:
    """A function as they usually are."""
    return x


def mixed(x: Any, /, n: int, *rest: Any, flag: bool = True, **more: Any) -> Any:
    """One with every kind of parameter."""
    return x


def generator(x: Any) -> Iterator[Any]:
    yield x


@pytest.mark.parametrize(
    "function",
    [plain, functools.partial(plain, n=1), "text".upper, max, jax.jit(plain), type("C", (), {})],
)
def test_what_can_be_called_can_be_traced(function: Any) -> None:
    """Classes and objects too."""
    check_function(function)


@pytest.mark.parametrize(
    "function",
    [3, "text", None, staticmethod(plain), generator, functools.partial(generator, 1)],
    ids=["number", "text", "none", "staticmethod", "generator", "partial generator"],
)
def test_what_cannot_is_refused_as_jax_does(function: Any) -> None:
    """With the same type of error, and its first words."""
    with pytest.raises(TypeError) as theirs:
        jax.jit(function)
    with pytest.raises(TypeError) as ours:
        check_function(function)
    assert str(ours.value).startswith(str(theirs.value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (1, (1,)), ((0, 2), (0, 2)), ([1], (1,)), (np.int64(1), (1,)), (True, (1,))],
)
def test_positions(value: Any, expected: Any) -> None:
    """Integers of any kind, alone or several."""
    assert positions_of(value) == expected
    several: Any = np.array([1, 2])
    assert positions_of(several) == (1, 2)


@pytest.mark.parametrize("value", ["x", 1.5, (None,), (1.5,)])
def test_positions_are_integers(value: Any) -> None:
    """As jax says."""
    with pytest.raises(TypeError):
        jax.jit(plain, static_argnums=value)
    with pytest.raises(TypeError):
        positions_of(value)


def test_names() -> None:
    """Text, alone or several; the order of a set says nothing."""
    assert names_of(None) is None
    assert names_of("n") == ("n",)
    assert names_of(["n", "flag"]) == ("n", "flag")
    assert names_of({"n", "flag"}) == ("flag", "n")
    wrong: Any
    for wrong in (1, [1]):
        with pytest.raises(TypeError):
            names_of(wrong)


_FITTING: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (plain, {}),
    (plain, {"static_argnums": (1,)}),
    (plain, {"static_argnums": (-3,)}),
    (plain, {"static_argnames": ("flag",)}),
    (plain, {"static_argnums": (1,), "donate_argnums": (0,)}),
    (mixed, {"static_argnums": (7,)}),
    (mixed, {"static_argnames": ("other",)}),
    (functools.partial(plain, n=1), {"static_argnames": ("flag",)}),
    (max, {"static_argnums": (7,)}),
]


def test_parameters_that_there_are() -> None:
    """jax takes them too."""
    for function, given in _FITTING:
        with row((function, given)):
            jax.jit(function, **given)
            check_arguments(function, Options(**given))


_WRONG: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (plain, {"static_argnums": (3,)}),
    (plain, {"static_argnums": (-4,)}),
    (plain, {"donate_argnums": (5,)}),
    (plain, {"static_argnames": ("other",)}),
    (plain, {"donate_argnames": ("other",)}),
    (mixed, {"static_argnames": ("x",)}),
    (mixed, {"donate_argnames": ("rest",)}),
    (plain, {"static_argnums": (1,), "donate_argnums": (1,)}),
    (plain, {"static_argnames": ("n",), "donate_argnums": (1,)}),
    (functools.partial(plain, n=1), {"static_argnums": (2,)}),
    (max, {"donate_argnames": ("x",)}),
]


def test_parameters_that_there_are_not() -> None:
    """The error is jax's, word for word."""
    for function, given in _WRONG:
        with row((function, given)):
            with pytest.raises(ValueError, match=r"Jitted|intersect|signature") as theirs:
                jax.jit(function, **given)
            with pytest.raises(ValueError, match=r"Jitted|intersect|signature") as ours:
                check_arguments(function, Options(**given))
            assert str(ours.value) == str(theirs.value)


def test_inline() -> None:
    """Yes or no as jax reads it; a member of `jax.Inline`, where jax has that, by its value."""

    class Inline(enum.Enum):
        LATE = "jax_late"

    assert [inline_of(value) for value in (True, 0, "yes", Inline.LATE)] == [
        True,
        False,
        True,
        "jax_late",
    ]


def test_shardings_are_packed_the_same_way_each_time() -> None:
    """So that the key is the same in each process; None is as if they were not given."""
    mesh = jax.make_mesh((1,), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    one, other = (
        packed_shardings("in_shardings", (jax.sharding.NamedSharding(mesh, spec), None))
        for _ in range(2)
    )
    assert one == other != b""
    assert packed_shardings("in_shardings", [jax.sharding.NamedSharding(mesh, spec), None]) == one
    assert packed_shardings("in_shardings", None) == b""


def test_this_process_has_its_own_shardings_again() -> None:
    """With what stands beside them, as the optimizer of a training state; others have copies."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    made = jax.tree_util.Partial(lambda: None, sharding)  # a node with a function of its own
    packed = packed_shardings("out_shardings", made)
    assert Options(out_shardings=packed).jit_arguments() == {"out_shardings": made}
    copy = Options.from_bytes(Options(out_shardings=packed).to_bytes())
    assert copy.jit_arguments()["out_shardings"].func is not made.func


def test_what_is_no_sharding_is_refused() -> None:
    """As jax does it; without jax there is none."""
    with pytest.raises(TypeError, match="in_shardings leaf specifications are expected"):
        packed_shardings("in_shardings", ("x", None))
    program = (
        "from jaxd.api.options import packed_shardings\n"
        "try: packed_shardings('out_shardings', 'x')\n"
        "except TypeError: print(1)\n"
    )
    assert in_a_fresh_process(program) == 1


CLIENT = SimpleNamespace(caller=None)


def test_a_value_that_is_not_usable() -> None:
    """An error that says what is, already where the decorator stands."""
    rows: list[tuple[dict[str, Any], str]] = [
        ({"results": "torch"}, "'auto', 'numpy', 'jax'"),
        ({"results": None}, "'auto', 'numpy', 'jax'"),
        ({"timeout_s": "3"}, "Give seconds"),
        ({"timeout_s": True}, "Give seconds"),
        ({"timeout_s": 0}, "positive number"),
        ({"timeout_s": -1.0}, "positive number"),
        ({"timeout_s": math.nan}, "positive number"),
        ({"timeout_s": math.inf}, "leave it out to wait without end"),
        ({"timeout_s": 1e300}, "positive number"),
        ({"strict": 1}, "True or False"),
        ({"strict": None}, "True or False"),
        ({"ship": "files"}, "'value', 'source'"),
        ({"ship": None}, "'value', 'source'"),
        ({"config": ["jax_enable_x64"]}, "Write it as"),
        ({"config": {"jax_platforms": "cpu"}}, "jax_enable_x64"),
        ({"config": {"jax_enable_x64": 1}}, "True or False"),
        ({"config": {"jax_default_matmul_precision": 3}}, "text or None"),
        ({"config": {"jax_default_prng_impl": None}}, "such as 'threefry2x32'"),
        ({"client": "tcp://gpu:1"}, "jaxd.connect"),
        ({"client": CLIENT, "server": "tcp://gpu:1"}, "Leave out server="),
        ({"client": CLIENT, "host": "gpu"}, "Leave out host="),
        ({"client": CLIENT, "port": 1}, "Leave out port="),
        ({"client": CLIENT, "token": "secret"}, "Leave out token="),
        ({"compiler_options": [("a", 1)]}, "Write it as"),
        ({"compiler_options": {1: 1}}, "Write it as"),
        ({"callbacks": print}, "Write it as callbacks="),
        ({"callbacks": [print, "log"]}, "Write it as callbacks="),
        ({"callbacks": {print: 1}}, "Write it as callbacks="),
    ]
    for options, hint in rows:
        with row((options, hint)), pytest.raises(ConfigurationError, match=hint):
            persistent_call(**options)


def test_a_value_that_is() -> None:
    """Also None, where leaving the option out means the same."""
    rows: list[dict[str, Any]] = [
        {},
        {"client": None, "server": "tcp://gpu:1", "timeout_s": None, "config": None},
        {"client": CLIENT, "server": None, "results": "numpy", "timeout_s": 0.5},
        {"strict": True},
        {"ship": "source"},
        {"config": dict(CONFIG_DEFAULTS), "timeout_s": 1},
        {"config": {"jax_default_matmul_precision": "highest"}},
        {"compiler_options": {"xla_embed_ir_in_executable": True}},
    ]
    for options in rows:
        with row(options):
            check_option_values(options)


def step(x: float, y: float = 2.0) -> float:
    """Adds."""
    return x + y


def test_bare_with_options_and_plain() -> None:
    """All of them give a persistent function; nothing is looked for or started."""
    for made in (
        persistent_call(step),
        persistent_call()(step),
        persistent_call(static_argnames="y")(step),
        persistent_call(step, port=1),
        persistent_call(step, server="unix:///tmp/none.sock", timeout_s=3),
    ):
        assert isinstance(made, PersistentFunction)
        assert made.__wrapped__ is step


def test_the_function_keeps_its_name_signature_and_docstring() -> None:
    """For people and for tools."""
    made: Any = persistent_call(step)
    assert (made.__name__, made.__doc__, made.__module__) == ("step", "Adds.", __name__)
    assert inspect.signature(made) == inspect.signature(step)
    assert inspect.signature(made, follow_wrapped=False) == inspect.signature(step)


def test_an_unknown_option_is_named() -> None:
    """Together with those that exist."""
    with pytest.raises(TypeError, match=r"static_argname'.*static_argnames"):
        persistent_call(step, static_argname="y")  # type: ignore[call-overload]


def test_the_environment_is_read_at_the_first_call(
    live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decorator at the top of a file does not fix where the function runs."""
    made = persistent_call(lambda x: x + 1)
    monkeypatch.setenv("JAXD_SERVER", live.unix)
    assert float(made(1.0)) == 2.0
    monkeypatch.setenv("JAXD_SERVER", "unix:///tmp/none.sock")
    assert float(made(2.0)) == 3.0
