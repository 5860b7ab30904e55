from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import pytest
from jax.experimental import io_callback

from jaxd_protocol.fingerprint import CallbackList, walk
from jaxd_protocol.fingerprint.code.callbacks import (
    callback_references,
    cell_origin,
    code_at,
    loads_given_to_callbacks,
    nested_codes,
)
from jaxd_protocol.fingerprint.data_model import Origin

seen: list[Any] = []


class History:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def add(self, value: Any) -> None:
        self.items.append(value)


history = History()


def note(value: Any) -> None:
    """Is given to jax."""
    seen.append(value)


def helper(value: Any) -> None:
    """Is not."""
    seen.append(value)


def a_method(x: Any) -> None:
    jax.debug.callback(seen.append, x)


def a_lambda(x: Any) -> None:
    jax.debug.callback(lambda v: seen.append(abs(v)), x)


def a_function(x: Any) -> None:
    jax.debug.callback(note, x, ordered=True)


def with_other_calls(x: Any) -> None:
    jax.debug.callback(note, abs(x + 1), [str(x), max(1, 2)], k=len("ab"))


def a_nested_function(x: Any) -> None:
    def tell(value: Any) -> None:
        seen.append(value)

    jax.debug.callback(tell, x)


def in_a_loop(x: Any) -> Any:
    def tell(value: Any) -> None:
        seen.append(value)

    def body(c: Any, _: Any) -> Any:
        io_callback(tell, None, c)
        return c, None

    return jax.lax.scan(body, x, length=2)


def an_object(x: Any) -> None:
    io_callback(history.add, None, x)


def by_its_module(x: Any) -> None:
    jax.experimental.io_callback(history.add, None, x)


def closing_over(into: list[Any]) -> Callable[..., Any]:
    def f(x: Any) -> None:
        jax.debug.callback(lambda v: into.append(abs(v)), x)

    return f


GIVEN = [
    a_method,
    a_lambda,
    a_function,
    with_other_calls,
    a_nested_function,
    in_a_loop,
    an_object,
    by_its_module,
    closing_over(seen),
]


def the_length(x: Any) -> Any:
    jax.debug.callback(seen.append, x)
    return x * len(seen)


def one_of_two(x: Any, first: bool = True) -> None:
    jax.debug.callback(seen.append if first else helper, x)


def another_argument(x: Any) -> None:
    jax.debug.callback(print, x, len(seen))


def anothers_callback(x: Any) -> None:
    functools.callback(seen.copy(), x)  # type: ignore[attr-defined]


def called_as_well(x: Any) -> Any:
    def tell(value: Any) -> Any:
        return value * len(seen)

    jax.debug.callback(tell, x)
    return tell(x)


def made_by_a_call(x: Any) -> None:
    jax.debug.callback(functools.partial(print, len(seen)), x)


COUNTED = [
    the_length,
    one_of_two,
    another_argument,
    anothers_callback,
    called_as_well,
    made_by_a_call,
]


def fingerprints(function: Callable[..., Any]) -> list[bytes]:
    """One before what it reaches has changed, and one after."""
    found = []
    for turn in range(2):
        seen[:], history.items[:] = [turn] * turn, [turn] * turn
        found.append(walk(function, "f").fingerprint.digest)
    return found


@pytest.mark.parametrize("function", GIVEN)
def test_what_is_only_called_back_is_not_in_the_key(function: Callable[..., Any]) -> None:
    """A list that fills would otherwise compile the program anew at each call."""
    before, after = fingerprints(function)
    assert before == after


@pytest.mark.parametrize("function", GIVEN)
def test_it_is_not_watched_either(function: Callable[..., Any]) -> None:
    """So that a call after it is as quick as before."""
    guards = walk(function, "f").guards
    seen.append(1)
    history.items.append(1)
    assert guards.hold()
    assert guards.complete


@pytest.mark.parametrize("function", COUNTED)
def test_what_may_decide_about_a_result_is_in_the_key(function: Callable[..., Any]) -> None:
    """One stale result is worse than a thousand compilations."""
    before, after = fingerprints(function)
    assert before != after


def test_live_objects_have_numbers_of_their_own() -> None:
    """In the order in which the code names them; one that is named twice has one."""

    def f(x: Any) -> None:
        jax.debug.callback(seen.append, x)
        jax.debug.callback(note, x)
        jax.debug.callback(seen.extend, [x])

    assert walk(f, "f").reach.callback_only == [seen, note]


def test_two_lists_are_not_one() -> None:
    """Whether two callbacks fill the same list is in the key: a program names them by number."""

    def of(one: list[Any], two: list[Any]) -> Callable[..., Any]:
        def f(x: Any) -> None:
            jax.debug.callback(one.append, x)
            jax.debug.callback(two.append, x)

        return f

    same, different = of(seen, seen), of(seen, [])
    assert walk(same, "f").fingerprint.digest != walk(different, "f").fingerprint.digest


def test_code_without_callbacks_is_not_looked_at() -> None:
    """As nearly all is."""
    assert loads_given_to_callbacks(helper.__code__) == (frozenset(), frozenset())


def given_in(function: Callable[..., Any]) -> set[str]:
    """What may be called, as code would write it."""
    found = walk(function, "f").reach.targets
    names = {id(seen): "seen", id(history): "history", id(note): "note", id(helper): "helper"}
    said = {
        ".".join((names.get(id(each.root), each.module or "?"), *each.names))
        for each in found.objects
        if each.root is not None or each.module
    }
    code = (code_at(owner.__code__, path)[-1].co_name for owner, path in found.codes)
    parameters = (".".join((each.name, *each.names)) for each in found.parameters)
    return {*said, *code, *parameters}


def in_a_partial(x: Any) -> None:
    jax.debug.callback(functools.partial(note, 1), x)
    io_callback(functools.partial(lambda v: v, 1), None, x)


def by_another_name(x: Any, loud: bool = True) -> None:
    log, tell = history.add, functools.partial(note, 1)
    either = helper if loud else log
    jax.debug.callback(tell, x)
    jax.debug.callback(either, x)


def with_a_list(x: Any) -> None:
    jax.debug.callback(note, *[x])
    more: dict[str, Any] = {}
    jax.debug.callback(seen.append, x, **more)
    io_callback(result_shape_dtypes=None, callback=helper)


def around_it(x: Any) -> Any:
    try:
        jax.debug.callback(seen.append, x if x > 1 else -1, [each for each in x if each])
    except ValueError:
        jax.debug.callback(note, x)
    finally:
        for each in x:
            jax.debug.callback(helper, each)
    with x:
        return [jax.debug.callback(history.add, each) for each in x]


def by_import(x: Any) -> None:
    import logging as log
    import xml.dom as dom  # noqa: PLR0402  another instruction
    from os.path import join

    jax.debug.callback(log.info, x)
    io_callback(join, None, x)
    io_callback(dom.getDOMImplementation, None, x)


def a_parameter(x: Any, log: Any, *, other: Any = None) -> Any:
    def body(c: Any, _: Any) -> Any:
        jax.debug.callback(log, c)
        return c, other.update

    jax.debug.callback(other.update, x)
    return body


def beside_it(x: Any) -> Any:
    def inner(v: Any) -> Any:
        return helper(v)

    def tell(v: Any) -> Any:
        return inner(v)

    @functools.lru_cache
    def decorated(v: Any) -> Any:
        return inner(v)

    jax.debug.callback(tell, x)
    jax.debug.callback(decorated, x)
    return inner(x)


def made(_: Any) -> Any:
    return seen.append


def not_known(x: Any, log: Any = None) -> None:
    log = log or made(x)
    jax.debug.callback(log, x)
    jax.debug.callback(made(x), x)
    jax.debug.callback([note][0], x)
    functools.callback(note, x)  # type: ignore[attr-defined]
    for each in (note, helper):
        jax.debug.callback(each, x)


CALLED: list[tuple[Any, set[str]]] = [
    (a_method, {"seen.append"}),
    (a_lambda, {"<lambda>"}),
    (in_a_loop, {"tell"}),
    (called_as_well, {"tell"}),
    (one_of_two, {"seen.append", "helper"}),
    (in_a_partial, {"note", "<lambda>"}),
    (by_another_name, {"note", "helper", "history.add"}),
    (with_a_list, {"note", "helper", "seen.append"}),
    (around_it, {"seen.append", "note", "helper", "history.add"}),
    (by_import, {"logging.info", "os.path.join", "xml.dom.getDOMImplementation"}),
    (a_parameter, {"log", "other.update"}),
    (beside_it, {"tell"}),
    (not_known, set()),
    (helper, set()),
]


@pytest.mark.parametrize(("function", "wanted"), CALLED)
def test_what_may_be_called(function: Callable[..., Any], wanted: set[str]) -> None:
    """All that the code says, and nothing that it only reaches."""
    assert given_in(function) == wanted


def around(own: Any) -> Callable[..., Any]:
    """Makes a function whose inner one closes over all kinds of things."""

    def f(parameter: Any, assigned: Any) -> Any:
        import logging

        alias = history.items
        same = own
        of_it = parameter.lr
        computed = len(seen)
        assigned = assigned or 1
        either = seen if computed else history
        part = functools.partial(note, 1)

        def beside() -> Any:
            return beside

        changed: Any = seen

        def changes() -> None:
            nonlocal changed
            changed = helper

        def inner() -> Any:
            return (own, parameter, assigned, logging, alias, same, of_it), (
                computed,
                either,
                part,
                beside,
                changed,
            )

        return inner, changes

    return f


CELLS = {
    "own": ("own", "own", None),
    "parameter": ("parameter", "parameter", None),
    "assigned": ("local", "assigned", None),
    "logging": ("static", "logging", ("module", "logging", ())),
    "alias": ("static", "alias", ("global", "history", ("items",))),
    "same": ("own", "own", None),
    "of_it": ("parameter", "parameter", None),
    "computed": ("local", "computed", None),
    "either": ("local", "either", None),
    "part": ("local", "part", None),
    "beside": ("static", "beside", ("code", "beside", ())),
    "changed": ("local", "changed", None),
}


@pytest.mark.parametrize("name", CELLS)
def test_what_a_variable_of_inner_code_holds(name: str) -> None:
    """As far as the code around it says; what is assigned twice, or computed, may be anything."""
    function = around(1)
    names = [each.co_name for each in nested_codes(function.__code__)]
    codes = code_at(function.__code__, (names.index("inner"),))
    cell = cell_origin(codes, name)
    origin = None if cell.origin is None else cell.origin[:3]
    if origin is not None and origin[0] == "code":  # which number it has depends on the Python
        origin = ("code", nested_codes(codes[-2])[int(origin[1])].co_name, origin[2])
    assert (cell.kind, cell.name, origin) == CELLS[name]


ROUND = """
def f(n):
    for _ in range(n):
        one = other
        other = one
    return lambda: one
"""


def test_variables_that_are_assigned_each_other_may_be_anything() -> None:
    """There is no end to where they come from."""
    (code,) = (
        each for each in compile(ROUND, "round", "exec").co_consts if hasattr(each, "co_code")
    )
    (inner,) = nested_codes(code)
    assert cell_origin([code, inner], "one")[:3] == ("local", 0, "other")


def test_many_variables_that_are_assigned_each_other_are_looked_through_soon() -> None:
    """Not one way after the other: there are more than anybody can count."""
    names = [f"v{number}" for number in range(14)]
    lines = [f"    {a} = {b}" for a in names for b in names if a != b]
    text = "\n".join(["def f(x):", *lines, "    v0 = note", "    jax.debug.callback(v3, x)"])
    (code,) = nested_codes(compile(text, "many", "exec"))
    assert callback_references(code, ()).objects == (Origin("global", "note"),)


def test_objects_of_which_something_else_is_read_travel() -> None:
    """With a stand-in for what is only given away."""

    def f(x: Any) -> Any:
        jax.debug.callback(history.add, x)
        return x * history.scale  # type: ignore[attr-defined]

    history.scale = 2  # type: ignore[attr-defined]
    try:
        reach = walk(f, "f").reach
    finally:
        del history.scale  # type: ignore[attr-defined]
    assert id(history) not in reach.replacements
    part = reach.partial_reads[id(history)]
    assert (part.names, part.given["add"].names) == ({"scale"}, ("add",))


def reads_as_well(x: Any) -> Any:
    helper(history.add)
    return x * len(history.items)


def only_gives(x: Any) -> Any:
    helper(history.add)
    helper(note)
    return x


def test_what_is_listed_is_not_in_the_key() -> None:
    """Wherever the function reaches it; unless it reads its object in another way as well."""
    for function, counts in ((only_gives, False), (reads_as_well, True)):
        found = set()
        for turn in range(2):
            history.items[:] = [turn] * turn
            listed = CallbackList([history.add, note])
            found.add(walk(function, "f", listed=listed).fingerprint.digest)
        assert len(found) == 1 + counts
    plain = walk(only_gives, "f").fingerprint.digest
    listings = ([note], [helper], [note, helper], [helper, note])
    digests = {
        walk(only_gives, "f", listed=CallbackList(each)).fingerprint.digest for each in listings
    }
    assert len(digests | {plain}) == 5  # a program names them by number
