from __future__ import annotations

import functools
import logging
import operator
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.events.jax_callbacks import CallbackTable
from jaxd.request.arguments import encode_arguments
from jaxd.results.reader import ResultReader
from jaxd_protocol.errors import CallbackError, ProtocolError, ResultError
from jaxd_protocol.fingerprint import CallbackList, walk
from jaxd_protocol.fingerprint.client_object import ClientObject
from jaxd_protocol.fingerprint.data_model import CallbackCandidates
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS
from jaxd_protocol.pytree import dump_literal
from jaxd_server.codec.result_encoder import ResultEncoder
from jaxd_server.user_code.callback_targets import (
    CallbackTargets,
    pack_callback,
    read_callback,
    recording_arguments,
    runs_on_server,
)

held: list[Any] = []


class Box:
    def put(self, value: Any) -> None:
        """Is bound."""
        held.append(value)

    def other(self, value: Any) -> None:
        """Is bound, and given nowhere."""


box = Box()


def note(value: Any, *more: Any, **named: Any) -> None:
    """Is given."""
    held.append((value, more, named))


made: list[Callable[..., Any]] = []


def traced(x: Any, cb: Any = None) -> None:
    """Gives what is in the table, and keeps what it makes in place, as it is made."""
    table = np.arange(3)
    items = {"a": [4, (1, "two")], "b": {1, 2}}
    jax.debug.callback(box.put, x)
    jax.debug.callback(note, x)
    jax.debug.callback(cb.put, x)

    def inner(value: Any, more: int = 2, *, last: str = "l") -> Any:
        return value * 4 + more, table.tolist(), items, last

    def tell(value: Any) -> Any:
        return inner(value) if value > 0 else tell(-value)

    def hold(value: Any) -> Any:
        return x, value

    jax.debug.callback(inner, x)
    jax.debug.callback(tell, x)
    jax.debug.callback(hold, x)
    made[:] = [inner, tell, hold]


def targets(function: Any = traced) -> CallbackCandidates:
    """As both ends find them."""
    return walk(function, "f").reach.targets


def there_and_back(function: Any, listed: tuple[Any, ...] = (), arguments: Any = None) -> Any:
    """What a client finds."""
    callback_target, arrays = CallbackTargets("f", targets(), CallbackList(listed).entries).at(
        function
    )
    dump_literal(callback_target)  # or it could not travel
    return CallbackTable(targets(), listed, arguments).function_at(callback_target, arrays)


def trace(x: Any = 1.0, function: Any = traced) -> None:
    """Runs the function as jax does, but calls nothing back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.debug, "callback", lambda *_, **__: None)
        function(x, box)


def test_what_the_code_gives() -> None:
    """As itself, as a method of the same object, where a stand-in came; and what is listed."""
    assert there_and_back(note) is note
    assert there_and_back(box.put) == box.put
    given = targets()
    given.objects = [each._replace(number=5) for each in given.objects if each.names]
    callback_target, _ = CallbackTargets("f", given).at(ClientObject(5, ("put",)))
    assert CallbackTable(given).function_at(callback_target, ()) == box.put
    other = Box()
    listed = (held.append, other.other, len)
    assert there_and_back(ClientObject(1, ("other",), True), listed) == other.other
    assert there_and_back(Box().other, listed) == other.other
    assert there_and_back(len, listed) is len
    with pytest.raises(CallbackError, match="several of that name"):
        there_and_back(Box().other, (other.other, Box().other))


def test_an_argument_of_the_function() -> None:
    """Found by what it was called with."""
    found: list[Any] = []
    given = targets()

    def f(x: Any, cb: Any) -> None:
        found.append(CallbackTargets("f", given).at(cb.put))

    other = Box()
    recording_arguments(f, given)(1, other)
    ((callback_target, _),) = found
    assert CallbackTable(given, (), ((1, other), {})).function_at(callback_target, ()) == other.put
    with pytest.raises(CallbackError):  # of another object
        recording_arguments(lambda x, cb: f(x, Box()), given)(1, other)


def test_functions_that_traced_code_makes_are_made_again() -> None:
    """Of the same code, with what they hold: numbers, arrays, containers, each other."""
    trace()
    for function in made[:2]:
        again = there_and_back(function)
        assert again is not function
        assert again(2) == function(2) == (10, [0, 1, 2], {"a": [4, (1, "two")], "b": {1, 2}}, "l")
    partial = there_and_back(functools.partial(made[0], 1, last="x"))
    assert partial(5)[::3] == (9, "x")


def test_a_tracer_cannot_leave() -> None:
    """Under `jax.jit` it is an error as well; this one says what to do."""
    given = targets()

    def f(x: Any) -> Any:
        trace(x)
        with pytest.raises(CallbackError, match="Pass it as an argument"):
            CallbackTargets("f", given).at(made[2])
        return x

    jax.jit(f)(1.0)


def test_a_function_that_holds_no_data_is_refused() -> None:
    """The client would not have it; what stands in for an object is none."""
    trace(box.put)
    with pytest.raises(CallbackError, match=r"holds a method, which is no data.*callbacks="):
        CallbackTargets("f", targets()).at(made[2])
    trace(ClientObject(0, (), True))
    with pytest.raises(CallbackError, match="holds an object of the client's, which is no data"):
        CallbackTargets("f", targets()).at(made[2])


@pytest.mark.parametrize(
    "function",
    [lambda value: value, box.other, trace, ClientObject(9), functools.partial(trace, 1)],
)
def test_what_the_code_does_not_give_is_refused(function: Any) -> None:
    """While it is traced, with what to do."""
    with pytest.raises(CallbackError, match=r"f gives .* to jax.debug.callback .*callbacks="):
        CallbackTargets("f", targets()).at(function)


def test_of_two_closures_of_the_same_code_each_has_its_own() -> None:
    """They are told apart by their cells."""
    makers: list[Any] = []

    def of(into: list[Any]) -> Any:
        def f(x: Any) -> None:
            def tell(value: Any) -> None:
                into.append(value)

            jax.debug.callback(tell, x)
            makers.append(tell)

        return f

    lists: list[list[Any]] = [[], []]
    one, two = map(of, lists)

    def both(x: Any) -> None:
        one(x)
        two(x)

    given = targets(both)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.debug, "callback", lambda *_: None)
        both(1)
    for number, function in enumerate(makers):
        callback_target, _ = CallbackTargets("f", given).at(function)
        CallbackTable(given).function_at(callback_target, ())(number)
    assert lists == [[0], [1]]


def test_what_stays_on_the_server() -> None:
    """Python's own and jax's own; what the user has written never, nor what a library offers."""
    stay: list[Any] = [
        print,
        logging.info,
        sys.stdout.write,
        functools.partial(print, 1),
        jnp.sin,
        np.save,
    ]
    go: list[Any] = [
        ClientObject(0),
        traced,
        box.put,
        held.append,
        functools.partial(traced),
        lambda: 0,
    ]
    assert all(map(runs_on_server, stay))
    assert not any(map(runs_on_server, go))
    assert not runs_on_server(pytest.importorskip("optax").adam)
    assert runs_on_server(operator.attrgetter("x")) is runs_on_server(operator.itemgetter(1))


CALLBACK_TARGET = ("partial", ("given", 0), (("held", 0),), ())


def arrived(*args: Any, held: tuple[Any, ...] = (), **kwargs: Any) -> Any:
    """What a client reads."""
    (skeleton, blob), buffers = pack_callback(CALLBACK_TARGET, held, args, kwargs)
    return ResultReader({}).read(skeleton, blob, buffers, "auto")


def test_what_cannot_travel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the word that it was for a callback."""

    def refuse(*_: Any) -> None:
        raise ResultError("it has no form")

    monkeypatch.setattr(ResultEncoder, "node", refuse)
    with pytest.raises(CallbackError, match=r"given something that cannot travel: it has no form"):
        arrived(1)


@pytest.mark.parametrize("argument", [len, [print], {"k": jnp.float32}], ids=["one", "in", "class"])
def test_a_function_is_no_argument(argument: Any) -> None:
    """The client would refuse it."""
    with pytest.raises(CallbackError, match="given a function as an argument"):
        arrived(argument)


def test_results_are_read_as_arguments_are() -> None:
    """Trees of arrays and numbers."""
    result = {"a": np.arange(3), "b": (1.5, None)}
    encoded = encode_arguments((result,), {}, NO_STATIC_ARGS, {})
    back = read_callback((encoded.skeleton, encoded.blob), encoded.buffers)
    assert back["a"].tolist() == [0, 1, 2]
    assert back["b"] == (1.5, None)


def test_results_of_jax_are_read_as_those_of_numpy() -> None:
    """Of 64 bits and weakly typed ones, too: nothing goes to the device, which waits for them."""
    with jax.enable_x64(True):
        result = jnp.arange(3.0), jnp.asarray(1.5), jnp.arange(1000) + (1 << 40)
    encoded = encode_arguments((result,), {}, NO_STATIC_ARGS, {})
    back = read_callback((encoded.skeleton, encoded.blob), encoded.buffers)
    assert [(type(x), x.dtype) for x in back] == [(np.ndarray, x.dtype) for x in result]
    assert back[2][-1] == (1 << 40) + 999


def test_another_answer_is_refused() -> None:
    """As of a client that knows no such question."""
    with pytest.raises(ProtocolError, match="callback's result cannot be read"):
        read_callback((1, 2), ())
