from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.remote_frames import RemoteFrame, frames_of, traceback_of


def caught(function: Callable[[], Any]) -> BaseException:
    """What it raises."""
    with pytest.raises(BaseException) as found:  # noqa: PT011  whatever it is
        function()
    return found.value


def inner(table: dict[str, int]) -> int:
    """Fails in the middle of a line."""
    return 1 + table["a"] + 2


def outer() -> int:
    """Calls it over two lines."""
    return inner(
        {},
    )


def shown(error: BaseException) -> str:
    """As Python shows its traceback, from here on."""
    text = "".join(traceback.format_tb(error.__traceback__))
    return text[text.index("in outer") :]


def test_a_traceback_is_shown_as_where_it_came_from() -> None:
    """File, line, name, the text of the line, and what of it has failed."""
    error = caught(outer)
    wanted = shown(error)
    error.__traceback__ = traceback_of(frames_of(error), with_jax=False)
    assert shown(error) == wanted
    assert 'table["a"]' in wanted
    assert "^^^^" in wanted
    assert [each.name for each in traceback.extract_tb(error.__traceback__)][-2:] == [
        "outer",
        "inner",
    ]


def in_module(name: str, body: str) -> Callable[..., Any]:
    """A function of a module of that name."""
    home: dict[str, Any] = {"__name__": name}
    exec(compile(body, f"{name}.py", "exec"), home)
    return home["f"]  # type: ignore[no-any-return]


def test_only_the_users_frames_are_taken() -> None:
    """Not those of the server, and of jax only those that the user's code has called."""
    fail = in_module("users", "def f(): return {}['a']")
    jaxs = in_module("jax._src.api", "def f(g): return g()")
    server = in_module("jaxd_server.pipeline", "def f(g): return g()")
    machinery = in_module("concurrent.futures", "def f(g): return g()")
    call = in_module("users", "def f(g): return g()")

    error = SimpleNamespace()
    steps = [server, machinery, jaxs, server, call, jaxs, server]
    run: Callable[..., Any] = fail
    for step in reversed(steps):
        run = partial(step, run)
    raised = caught(run)
    modules = [RemoteFrame(*each).module for each in frames_of(raised)]
    own = [module for module in modules if module != __name__]
    assert [m for m in own if m.startswith(("jaxd_server", "concurrent"))] == ["concurrent.futures"]
    error.__traceback__ = traceback_of(frames_of(raised), with_jax=False)
    names = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert not [name for name in names if name.startswith("jax")]
    with_jax = traceback_of(frames_of(raised), with_jax=True)
    assert len([*traceback.walk_tb(with_jax)]) == len(modules)


def test_without_the_users_code_there_are_none() -> None:
    """Then it is jax or the server that has failed, and the whole text is shown."""
    error = caught(in_module("jaxd_server.pipeline", "def f(): return {}['a']"))
    while error.__traceback__ and error.__traceback__.tb_next:  # those of this test
        error.__traceback__ = error.__traceback__.tb_next
    assert frames_of(error) == ()
    assert traceback_of((), with_jax=True) is None


def test_a_recursion_without_end_is_cut() -> None:
    """Its beginning and its end say it all."""

    def again() -> Any:
        return again()

    assert len(frames_of(caught(again))) == 200


@pytest.mark.parametrize("line", [1, 63, 64, 5000, 100_000])
def test_lines_and_columns_of_any_size(line: int) -> None:
    """As CPython packs them; and those that are not known."""
    place = RemoteFrame("gone.py", "m", "f", line, line + 70, 4, 300)
    trace = traceback_of((tuple(place),), with_jax=True)
    assert trace is not None
    ((frame, at),) = traceback.walk_tb(trace)
    assert at == line
    assert set(frame.f_code.co_positions()) == {(line, line + 70, 4, 300)}
    unknown = traceback_of((tuple(place._replace(column=-1)),), with_jax=True)
    assert re.search(rf'File "gone.py", line {line}, in f', "".join(traceback.format_tb(unknown)))
