"""Modules, and what is read of the state that they and Python keep."""

from __future__ import annotations

import decimal
import json
import locale
import logging
import numbers
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.values.modules import IGNORED_ATTRIBUTES, impurity
from tests.ids import row
from tests.shared.fingerprint.defining import define, digest_of, function, walk_of

HELPERS = "RATE = 1\ndef scale(x): return x * RATE\ndef shift(x): return x + 1"


def test_where_a_module_lies_does_not_count() -> None:
    """Nor how it was loaded, nor what pytest has put there."""
    one, other = define(HELPERS), define(HELPERS)
    other.__file__, other.__doc__ = "/elsewhere.py", "Says."
    vars(other)["@pytest_ar"] = object()
    assert digest_of(one) == digest_of(other)
    assert {"__file__", "__doc__", "__spec__", "__builtins__"} <= IGNORED_ATTRIBUTES


def test_a_change_of_a_module_is_noticed() -> None:
    """One that counts whole: also a new name."""
    module = define(HELPERS)
    guards = walk_of(module).guards
    vars(module)["NEW"] = 1
    assert not guards.hold()


def test_an_extension_counts_by_the_bytes_of_its_file(tmp_path: Path) -> None:
    """It cannot travel: whoever touches it on a server is told so."""

    def made(content: bytes) -> bytes:
        file = tmp_path / f"fast{EXTENSION_SUFFIXES[0]}"
        file.write_bytes(content)
        module = define("", name="fast")
        module.__file__ = str(file)
        walked = walk_of(module)
        assert walked.reach.unpicklable[id(module)].reason == "it is a compiled extension module"
        assert walked.fingerprint.unshared == ()
        return walked.fingerprint.digest

    assert made(b"one") == made(b"one") != made(b"other")


def test_what_no_key_can_hold_is_said() -> None:
    """In the words of a warning."""
    rows: list[tuple[str, str, str]] = [
        ("time", "time", "the clock (time.time)"),
        ("threading", "current_thread", "which thread it is (current_thread)"),
        ("time", "perf_counter_ns", "the clock"),
        ("datetime", "datetime.now", "the clock"),
        ("datetime", "date.today", "the clock"),
        ("random", "random", "Python's global random state"),
        ("random", "shuffle", "Python's global random state"),
        ("numpy.random", "rand", "numpy's global random state"),
        ("numpy.random.mtrand", "normal", "numpy's global random state"),
        ("posix", "urandom", "the operating system (urandom)"),
        ("os", "getpid", "the operating system"),
    ]
    for module, name, what in rows:
        with row((module, name, what)):
            assert (impurity(module, name) or "").startswith(what)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("time", "sleep"), ("time", ""), ("datetime", "datetime"), ("datetime", "timedelta")),
        *(("random", "Random"), ("random", "seed"), ("random", ""), ("jax.random", "normal")),
        *(("numpy.random", name) for name in ("default_rng", "Generator.normal", "")),
        *(("numpy", "sum"), ("numpy", "load"), ("builtins", "open"), ("builtins", "len")),
        *(("os", "environ"), ("posix", "listdir"), ("posixpath", "join"), ("mylib.time", "time")),
        *(("threading", "Lock"), ("uuid", "uuid4")),
    ],
)
def test_what_depends_on_arguments_alone_is_nothing_to_say(module: str, name: str) -> None:
    """Or is recorded while it is traced. Also where only its name is like one of the others."""
    assert impurity(module, name) is None


@pytest.mark.parametrize(
    "body",
    [
        "return click.get_current_context().params['lr']",
        "return click.get_current_context(silent=True) is None",
        "return current()",
        "return decorated(x)",
    ],
)
def test_click_s_context_is_refused_while_there_is_one(body: str) -> None:
    """Without one the function means the same everywhere, until there is."""
    click: Any = pytest.importorskip("click")
    decorated = click.pass_context(function("return x"))
    current = click.get_current_context
    made = function(body, click=click, current=current, decorated=decorated)
    walked = walk_of(made)
    assert walked.guards.hold()
    with click.Context(click.Command("c")):
        assert not walked.guards.hold()
        with pytest.raises(PackingError, match=r"reads click's context .*outside of the function"):
            walk_of(made)


@pytest.mark.parametrize(
    "body",
    [
        "return gin.query_parameter('scaled.by')",
        "return gin.get_configurable('scaled')(x)",
        "return query('scaled.by')",
    ],
)
def test_gin_s_bindings_are_refused(body: str) -> None:
    """A server has none."""
    gin: Any = pytest.importorskip("gin")
    made = function(body, gin=gin, query=gin.query_parameter)
    with pytest.raises(PackingError, match=r"reads gin's bindings .*outside of the function"):
        walk_of(made)


def _with_a_click_context(click: Any) -> AbstractContextManager[Any]:
    made: AbstractContextManager[Any] = click.Context(click.Command("c"))
    return made


@contextmanager
def _with_a_binding(gin: Any) -> Iterator[None]:
    gin.external_configurable(len, "a_name_of_this_test")
    gin.bind_parameter("a_name_of_this_test.obj", [1])
    try:
        yield
    finally:
        gin.clear_config()


@contextmanager
def _with_a_precision(decimal: Any) -> Iterator[None]:
    with decimal.localcontext(prec=5):
        yield


@pytest.mark.parametrize(
    ("library", "holding"),
    [
        ("click", _with_a_click_context),
        ("gin", _with_a_binding),
        ("decimal", _with_a_precision),
    ],
)
def test_a_late_module_may_import_a_library_as_long_as_that_holds_nothing(
    library: str,
    holding: Callable[[Any], AbstractContextManager[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server runs the module, without what the library holds here."""
    found = pytest.importorskip(library)
    (tmp_path / f"late_{library}.py").write_text(f"import {library}\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = function(f"import late_{library}; return x")
    walked = walk_of(made)
    assert walked.guards.hold()
    with holding(found):
        assert not walked.guards.hold()
        with pytest.raises(PackingError, match=f"which {library} keeps where no key can see it"):
            walk_of(made)
    assert walked.guards.hold()


class Base:
    """A class of the user's."""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return x * len(object.__subclasses__())", "which classes were derived from object"),
        ("return x * len(Path.__subclasses__())", "which classes were derived from Path"),
        ("return x, pathlib.Path.__subclasses__()", "which classes were derived from Path"),
        ("return known(Path)", "which classes were derived from Path"),
    ],
)
def test_what_python_holds_is_refused(body: str, what: str) -> None:
    """The server has its own."""
    names: dict[str, Any] = {
        "pathlib": pathlib,
        "Path": pathlib.Path,
        "known": function("return x.__subclasses__()"),
    }
    made = function(body, Base=Base, **names)
    with pytest.raises(PackingError, match=f"reads {what} .*outside of the function"):
        walk_of(made)


@pytest.mark.parametrize(
    "body",
    [
        "log.debug('seen'); return x",
        "return x if log.isEnabledFor(10) else -x",
        "return x * sys.getrecursionlimit()",
        "return x, locale.getlocale()",
        "return x, os.getcwd()",
        "return x, os.path.expandvars('$RATE')",
        "jax.debug.callback(lambda: log.isEnabledFor(10)); return x",
        "return isinstance(x, numbers.Number)",
        "return isinstance(x, Mapping)",
        "return decimal.Decimal(1)",
    ],
)
def test_what_changes_nothing_is_not_refused(body: str) -> None:
    """To log, to ask in this process, to use classes as they were installed.

    What is read of the process while a function is traced is recorded then.
    """
    jax: Any = pytest.importorskip("jax")
    log = logging.getLogger("a")
    own: dict[str, Any] = {"os": os, "sys": sys, "locale": locale}
    modules: dict[str, Any] = {"numbers": numbers, "decimal": decimal, **own}
    assert walk_of(function(body, jax=jax, log=log, Mapping=Mapping, **modules)).guards.hold()


@pytest.mark.parametrize(
    "body", ["return x * decimal.Decimal(1)", "return x, decimal.getcontext().prec"]
)
def test_another_context_of_decimal_is_refused(body: str) -> None:
    """Flags that calculations have set are none."""
    made = function(body, decimal=decimal)
    with decimal.localcontext() as context:
        context.flags[decimal.Inexact] = True
        walked = walk_of(made)
        assert walked.guards.hold()
        context.prec = 5
        assert not walked.guards.hold()
        with pytest.raises(PackingError, match="reads decimal's context"):
            walk_of(made)


def test_a_form_of_the_user_s_of_an_installed_function_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server's function has only those that were installed."""
    source = "import functools\n@functools.singledispatch\ndef convert(x): return x\n"
    made: dict[str, Any] = {"__name__": "json"}
    exec(compile(source, json.__file__, "exec"), made)
    monkeypatch.setattr(json, "convert", made["convert"], raising=False)
    uses = function("return json.convert(x)", json=json)
    assert walk_of(uses).guards.hold()
    made["convert"].register(Base, lambda x: 2 * x)
    assert walk_of(uses).guards.hold()  # it is a part of the class
    made["convert"].register(float, lambda x: 2 * x)
    with pytest.raises(PackingError, match=r"uses json.convert, with which .* is registered"):
        walk_of(uses)
