from __future__ import annotations

import inspect
import linecache
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol.messages.tracebacks import (
    RemoteFrame,
    code_mark,
    format_traceback,
    frames_of,
    traceback_of,
)
from tests.live_server import source_environment


def caught(function: Callable[[], Any]) -> BaseException:
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


def test_a_frame_of_known_code_counts_its_lines_from_where_the_code_begins() -> None:
    """As `inspect` does, by which IPython shows the lines of a cell."""
    codes = {code_mark(each.__code__): each.__code__ for each in (inner, outer)}
    frames = frames_of(caught(outer))
    made = traceback_of(
        frames, with_jax=False, find_code=lambda mark: [codes[mark]] if mark in codes else ()
    )
    lines = [
        inspect.getsourcelines(frame)[0][line - frame.f_code.co_firstlineno].strip()
        for frame, line in traceback.walk_tb(made)
        if frame.f_code.co_name in ("inner", "outer")
    ]
    assert lines == ["return inner(", 'return 1 + table["a"] + 2']
    firsts = {frame.f_code.co_firstlineno for frame, _ in traceback.walk_tb(made)}
    assert {inner.__code__.co_firstlineno, outer.__code__.co_firstlineno} <= firsts


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
    server = in_module("jaxd_server.execution.pipeline", "def f(g): return g()")
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
    error = caught(in_module("jaxd_server.execution.pipeline", "def f(): return {}['a']"))
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
    place = RemoteFrame("gone.py", "m", "f", line, line + 70, 4, 300, b"", 0)
    trace = traceback_of((tuple(place),), with_jax=True)
    assert trace is not None
    ((frame, at),) = traceback.walk_tb(trace)
    assert at == line
    assert set(frame.f_code.co_positions()) == {(line, line + 70, 4, 300)}
    unknown = traceback_of((tuple(place._replace(column=-1)),), with_jax=True)
    assert re.search(rf'File "<gone.py>", line {line}, in f', "".join(traceback.format_tb(unknown)))


# which files are opened ---------------------------------------------------------------------------

SECRET = "secret = 42"


def naming(file: str, line: int = 1) -> BaseException:
    """An exception that is said to have been raised there."""
    error = ValueError("wrong")
    frame = RemoteFrame(file, "users", "f", line, line, 0, 6, b"", 0)
    error.__traceback__ = traceback_of((tuple(frame),), with_jax=False)
    return error


def test_a_file_that_is_none_of_this_process_is_not_read(tmp_path: Path) -> None:
    """It is named, and that is all; also in the chain of another exception."""
    path = tmp_path / "diary.txt"
    path.write_text(SECRET)
    outer = KeyError("outer")
    outer.__cause__ = naming(str(path))
    shown = "".join(traceback.format_exception(outer))
    assert f'File "<{path}>", line 1, in f' in shown
    assert "secret" not in shown
    assert str(path) not in linecache.cache


def test_a_file_of_a_module_is_read() -> None:
    """Wherever it is: this process has loaded it."""
    shown = "".join(traceback.format_exception(naming(__file__, 1)))
    assert "from __future__ import annotations" in shown


def test_lines_of_a_notebook_are_shown() -> None:
    """They are no file, and lie where Python looks for them."""
    cell = "/tmp/ipykernel_1/2.py"
    linecache.cache[cell] = (len(SECRET), None, [SECRET], cell)
    try:
        assert SECRET in "".join(traceback.format_exception(naming(cell)))
    finally:
        del linecache.cache[cell]


def test_an_uncaught_exception_opens_no_file_that_a_server_names(tmp_path: Path) -> None:
    """Not even one that never ends: the interpreter itself shows it, in its own way."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = (
        "from jaxd_protocol.messages.tracebacks import traceback_of\n"
        "error = ValueError('wrong')\n"
        f"frame = ({str(fifo)!r}, 'users', 'f', 1, 1, 0, 6, b'', 0)\n"
        "error.__traceback__ = traceback_of((frame,), with_jax=False)\n"
        "raise error\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=source_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert f"<{fifo}>" in done.stderr
    assert done.stderr.endswith("ValueError: wrong\n")


def test_what_goes_back_quotes_nothing_that_the_other_end_has_named() -> None:
    """Else it could read the files of modules line by line; lines of this end's own go along."""
    try:
        try:
            raise naming(__file__, 1)
        except ValueError as error:
            raise KeyError("outer") from error
    except KeyError as error:
        group = ExceptionGroup("all", [error])
        assert "from __future__" in "".join(traceback.format_exception(group))
        text = format_traceback(group)
    assert "from __future__" not in text
    assert f'File "{__file__}", line 1, in f' in text
    assert "raise KeyError" in text


def test_the_text_of_an_exception_is_that_of_python() -> None:
    """Where nothing of it has come from elsewhere."""
    error = caught(outer)
    assert format_traceback(error) == "".join(traceback.format_exception(error))


@pytest.mark.slow
def test_a_statement_is_as_long_as_one_can_be() -> None:
    """Python 3.13 shows every line of it; and no more frames are made than one end sends."""
    frame = ("f.py", "users", "f", 1, 1 << 30, 0, 6, b"", 0)
    error = ValueError("wrong")
    error.__traceback__ = traceback_of((frame,) * 5000, with_jax=False)
    found = traceback.extract_tb(error.__traceback__)
    assert len(found) == 200
    assert found[0].end_lineno in (None, 1)


def test_a_module_that_is_loaded_lazily_is_not_loaded_to_look(tmp_path: Path) -> None:
    """The other end names files and categories; looking for them runs nobody's code."""
    (tmp_path / "springs.py").write_text("raise SystemExit('it was run')\n")
    program = (
        "import importlib.util, sys\n"
        "spec = importlib.util.find_spec('springs')\n"
        "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "sys.modules['springs'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "from jaxd.events.output import _module_of, _warning_category\n"
        "from jaxd_protocol.messages.tracebacks import display_file\n"
        "print(display_file('x.py'), _module_of('x.py'))\n"
        "print(_warning_category({'category': ['springs', 'W'], 'bases': []}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **source_environment(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "<x.py> None\n<class 'UserWarning'>\n", done.stderr
