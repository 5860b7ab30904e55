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
    nested_codes,
)
from jaxd_protocol.fingerprint.data_model import Origin
from tests.ids import row
from tests.shared.fingerprint.defining import define, function

seen: list[Any] = []


class History:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def add(self, value: Any) -> None:
        self.items.append(value)


history = History()


def note(value: Any) -> None:
    seen.append(value)


def helper(value: Any) -> None:
    seen.append(value)


def made(_: Any) -> Any:
    return seen.append


NAMES: dict[str, Any] = {"jax": jax, "io_callback": io_callback, "functools": functools}
NAMES |= {"history": history, "seen": seen, "note": note, "helper": helper, "made": made}
CLOSING_OVER = """
def make(into):
    def f(x): jax.debug.callback(lambda v: into.append(abs(v)), x)
    return f
"""
A_METHOD = "jax.debug.callback(seen.append, x)"
A_LAMBDA = "jax.debug.callback(lambda v: seen.append(abs(v)), x)"
TELL = "def tell(value): return value * len(seen)\n"
IN_A_LOOP = f"""
{TELL}
def body(c, _):
    io_callback(tell, None, c)
    return c, None
return jax.lax.scan(body, x, length=2)
"""
GIVEN = [
    function(body, **NAMES)
    for body in (
        *(A_METHOD, A_LAMBDA, IN_A_LOOP, "jax.debug.callback(note, x, ordered=True)"),
        "jax.debug.callback(note, abs(x + 1), [str(x), max(1, 2)], k=len('ab'))",
        f"{TELL}jax.debug.callback(tell, x)",
        "io_callback(history.add, None, x)",
        "jax.experimental.io_callback(history.add, None, x)",
    )
] + [define(CLOSING_OVER, **NAMES).make(seen)]
CALLED_AS_WELL = f"{TELL}jax.debug.callback(tell, x)\nreturn tell(x)"
ONE_OF_TWO = "jax.debug.callback(seen.append if x else helper, x)"
COUNTED = [
    function(body, **NAMES)
    for body in (
        *(f"{A_METHOD}\nreturn x * len(seen)", ONE_OF_TWO, CALLED_AS_WELL),
        "jax.debug.callback(print, x, len(seen))",
        "functools.callback(seen.copy(), x)",
        "jax.debug.callback(functools.partial(print, len(seen)), x)",
    )
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
    """A list that fills would else compile the program anew at each call; nor is it watched."""
    before, after = fingerprints(function)
    assert before == after
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


BY_ANOTHER_NAME = """
add, tell = history.add, functools.partial(note, 1)
either = helper if x else add
jax.debug.callback(tell, x)
jax.debug.callback(either, x)
"""
IN_A_PARTIAL = """
jax.debug.callback(functools.partial(note, 1), x)
io_callback(functools.partial(lambda v: v, 1), None, x)
"""
WITH_A_LIST = """
jax.debug.callback(note, *[x])
more = {}
jax.debug.callback(seen.append, x, **more)
io_callback(result_shape_dtypes=None, callback=helper)
"""
AROUND_IT = """
try:
    jax.debug.callback(seen.append, x if x > 1 else -1, [each for each in x if each])
except ValueError:
    jax.debug.callback(note, x)
finally:
    for each in x:
        jax.debug.callback(helper, each)
with x:
    return [jax.debug.callback(history.add, each) for each in x]
"""
BY_IMPORT = """
import logging as logs
import xml.dom as dom
from os.path import join
jax.debug.callback(logs.info, x)
io_callback(join, None, x)
io_callback(dom.getDOMImplementation, None, x)
"""
A_PARAMETER = """
def body(c, _):
    jax.debug.callback(log, c)
    return c, other.update
jax.debug.callback(other.update, x)
return body
"""
BESIDE_IT = """
def inner(v): return helper(v)
def tell(v): return inner(v)
@functools.lru_cache
def decorated(v): return inner(v)
jax.debug.callback(tell, x)
jax.debug.callback(decorated, x)
return inner(x)
"""
NOT_KNOWN = """
log = log or made(x)
jax.debug.callback(log, x)
jax.debug.callback(made(x), x)
jax.debug.callback([note][0], x)
functools.callback(note, x)
for each in (note, helper):
    jax.debug.callback(each, x)
"""
CALLED: list[tuple[str, set[str]]] = [
    (A_METHOD, {"seen.append"}),
    (A_LAMBDA, {"<lambda>"}),
    (IN_A_LOOP, {"tell"}),
    (CALLED_AS_WELL, {"tell"}),
    (ONE_OF_TWO, {"seen.append", "helper"}),
    (IN_A_PARTIAL, {"note", "<lambda>"}),
    (BY_ANOTHER_NAME, {"note", "helper", "history.add"}),
    (WITH_A_LIST, {"note", "helper", "seen.append"}),
    (AROUND_IT, {"seen.append", "note", "helper", "history.add"}),
    (BY_IMPORT, {"logging.info", "os.path.join", "xml.dom.getDOMImplementation"}),
    (A_PARAMETER, {"log", "other.update"}),
    (BESIDE_IT, {"tell"}),
    (NOT_KNOWN, set()),
    ("helper(x)", set()),
]


def test_what_may_be_called() -> None:
    """All that the code says, and nothing that it only reaches."""
    for body, wanted in CALLED:
        with row((body, wanted)):
            assert given_in(function(body, "x, log=None, *, other=None", **NAMES)) == wanted


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
    for reader, counts in ((only_gives, False), (reads_as_well, True)):
        found = set()
        for turn in range(2):
            history.items[:] = [turn] * turn
            listed = CallbackList([history.add, note])
            found.add(walk(reader, "f", listed=listed).fingerprint.digest)
        assert len(found) == 1 + counts
    plain = walk(only_gives, "f").fingerprint.digest
    listings = ([note], [helper], [note, helper], [helper, note])
    digests = {
        walk(only_gives, "f", listed=CallbackList(each)).fingerprint.digest for each in listings
    }
    assert len(digests | {plain}) == 5  # a program names them by number
