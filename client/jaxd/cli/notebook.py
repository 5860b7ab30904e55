"""`%load_ext jaxd`: the magics `%jaxd` and `%%jaxd`, and progress in the cell.

`jaxd.load_ipython_extension` is that of this module. IPython is imported here alone, and only when
it has asked for the extension.
"""

from __future__ import annotations

import ast
import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, suppress
from functools import partial
from html import escape
from typing import Any, ClassVar, Final

from jaxd.api.launch.jit_hook import HookedJit, JitHook, hooked
from jaxd.cli.query import ask_server, server_address
from jaxd.connection.settings import Settings
from jaxd.events.progress import displays
from jaxd_protocol.base.terminal import duration, suggestion
from jaxd_protocol.errors import JaxdError, NoServer

_MAGIC: Final = "%%jaxd"
_DEFAULT: Final = "default"
_WARM_WORDS: Final = {"hit": "was ready", "load": "loaded from disk", "compile": "compiled"}

_HELP: Final = """Looks at jaxd's server, and steers it, from a notebook.

%jaxd [status]        what the server is doing and has done
%jaxd why f(x, y)     whether that call would compile, and why; runs nothing
%jaxd why f           the same of all calls of f; without a function, the last five builds
%jaxd warm f(x, y)    builds what that call needs; runs nothing
%jaxd restart         a fresh worker, warm from disk (--force: also where arrays are lost)
%jaxd server          which server calls go to, and what it has
%jaxd server ADDRESS  sends there the calls of functions that were not called yet; `default`: the
                      server that the environment or the configuration file names
%jaxd functions, values, devices, start, stop   as on the command line, with its options

%%jaxd as the first line of a cell: what the cell, and libraries that it calls, give to jax.jit is
served, as by `jaxd run`. Functions that it jits stay so.

`%jaxd why` returns its answer: why = %jaxd why f(x).
"""


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext jaxd`.

    Args:
        shell: IPython's.
    """
    global _loaded  # noqa: PLW0603  one for each shell, of which a process has one
    if _loaded is None:
        _loaded = _Extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext jaxd`, and by `%reload_ext` before it loads it."""
    global _loaded  # noqa: PLW0603
    if _loaded is not None:
        _loaded.unload(shell)
        _loaded = None


class CellDisplay:
    """Shows the progress line in the output of the cell that runs. See `events.progress`."""

    is_shared: ClassVar[bool] = False

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Shows a line in the place of the one before; what ends in a newline stays."""
        line = text.rstrip("\n")
        data = {"text/plain": line, "text/html": _line_html(line)}
        with suppress(Exception):  # a kernel that ends: no call depends on what is shown
            if self._handle is not None:
                self._handle.update(data, raw=True)
            elif line:
                from IPython.display import display

                self._handle = display(data, raw=True, display_id=True)
        if line != text or not line:
            self._handle = None


def _line_html(line: str) -> str:
    return f'<small style="opacity: 0.7">{escape(line)}</small>' if line else ""


class _Extension:
    """What is registered with a shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._hooks: list[JitHook | None] = []  # of the cells that run, the innermost last
        line = partial(_run_line, shell)
        line.__doc__ = self._cell.__func__.__doc__ = _HELP  # type: ignore[attr-defined]
        shell.register_magic_function(line, "line", "jaxd")
        shell.register_magic_function(self._cell, "cell", "jaxd")
        shell.input_transformers_cleanup.append(self._without_magic)
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)
        shell.set_hook("complete_command", _complete, str_key="%jaxd")
        if hasattr(shell, "kernel"):
            displays.notebook = CellDisplay()

    def unload(self, shell: Any) -> None:
        """Undoes it."""
        displays.notebook = None
        shell.events.unregister("pre_run_cell", self._before)
        shell.events.unregister("post_run_cell", self._after)
        shell.input_transformers_cleanup.remove(self._without_magic)
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("jaxd", None)

    def _before(self, info: Any) -> None:
        first = info.raw_cell.lstrip().partition("\n")[0]
        self._hooks.append(_installed_hook() if first.strip() == _MAGIC else None)

    def _after(self, _: Any = None) -> None:
        hook = self._hooks.pop() if self._hooks else None
        if hook is None:
            return
        hook.remove()
        for name, value in list(self._shell.user_ns.items()):
            if isinstance(value, HookedJit):  # `from jax import jit` in the cell
                self._shell.user_ns[name] = value.__wrapped__

    def _cell(self, line: str, cell: str) -> None:
        # where another magic passes the cell on; a cell of its own is seen to by `_without_magic`
        if line.strip():
            raise _options_error()
        self._hooks.append(_installed_hook())
        try:
            self._shell.run_cell(f"# {_MAGIC}\n{cell}")
        finally:
            self._after()

    def _without_magic(self, lines: list[str]) -> list[str]:
        """The lines of a cell, whose magic is a comment: each keeps its number in tracebacks.

        Raises:
            UsageError: when there is something behind it.
        """
        words = lines[0].split() if lines else []
        if words[:1] != [_MAGIC] or self._hooks:  # while a cell runs, one of its magics asks
            return lines
        if len(words) > 1:
            raise _options_error()
        rest = lines[1:]
        return rest if rest and rest[0].startswith("%%") else [f"# {lines[0]}", *rest]


def _installed_hook() -> JitHook:
    hook = JitHook(make=partial(hooked, place="auto"))
    hook.install()
    return hook


def _options_error() -> Exception:
    return _usage_error(f"{_MAGIC} takes no options. Write the cell below it; %jaxd? has help.")


_loaded: _Extension | None = None


def _complete(_: Any, event: Any) -> list[str]:
    from IPython.core.error import TryNext

    if len(event.line[: len(event.line) - len(event.symbol)].split()) > 1:
        raise TryNext
    return list(_SUBCOMMANDS)


# the line magic -----------------------------------------------------------------------------------


def _usage_error(text: str) -> Exception:
    from IPython.core.error import UsageError

    error: Exception = UsageError(text)
    return error


def _run_line(shell: Any, line: str) -> Any:
    word, _, rest = line.strip().partition(" ")
    run = _SUBCOMMANDS.get(word or "status")
    if run is None:
        near = suggestion(word, _SUBCOMMANDS) or f". There are: {', '.join(_SUBCOMMANDS)}"
        stop = "" if near.endswith("?") else "."
        raise _usage_error(f"there is no %jaxd {word}{near}{stop} %jaxd? has help.")
    try:
        return run(shell, rest.strip())
    except JaxdError as error:
        text = f"{type(error).__name__}: {error}"
        error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]  # IPython's
        raise


def _command(*words: str) -> Callable[[Any, str], None]:
    """What runs a command of the command line."""

    def run(_: Any, rest: str) -> None:
        from jaxd.cli.__main__ import run_words  # imports all commands

        said = io.StringIO()
        try:
            with redirect_stderr(said):
                code = run_words([*words, *rest.split()])
        except SystemExit as end:
            code = int(end.code or 0)
        text = said.getvalue().removeprefix("jaxd: ").rstrip()
        if code:
            raise _usage_error(text or f"%jaxd {words[0]} has failed. %jaxd status may say why.")
        if text:
            print(text, file=sys.stderr)

    return run


def _why(shell: Any, rest: str) -> Any:
    if not rest or rest.startswith("--"):
        return _command("why")(shell, rest or "--recent 5")
    function, args, kwargs = _asked(shell, rest, "why")
    return function.why(*args, **kwargs)


def _warm(shell: Any, rest: str) -> None:
    function, args, kwargs = _asked(shell, rest, "warm")
    warmed = function.warm(*args, **kwargs)
    for each in warmed if isinstance(warmed, list) else [warmed]:
        took = "" if each.verdict == "hit" else f" in {duration(each.seconds)}"
        print(f"{function.__name__}: {_WARM_WORDS[each.verdict]}{took}")


def _asked(shell: Any, text: str, what: str) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """The function of the user's, and the arguments, in a call that is not made.

    Raises:
        UsageError: when it is no call, cannot be evaluated, or is not of a persistent function.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise _usage_error(
            f"{text!r} is no function and no call. Write it as in the cell: %jaxd {what} f(x, y)."
        ) from None
    call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
    given = ast.Call(ast.Name("__given", ast.Load()), [call.func, *call.args], call.keywords)
    code = compile(ast.fix_missing_locations(ast.Expression(given)), f"%jaxd {what}", "eval")
    try:
        (function, *args), kwargs = eval(code, shell.user_ns, {"__given": lambda *a, **k: (a, k)})  # noqa: S307  the user's
    except Exception as error:  # noqa: BLE001  of the user's own code
        raise _usage_error(f"{text!r} raises {type(error).__name__}: {error}.") from None
    if not hasattr(function, what):
        raise _usage_error(
            f"{ast.unparse(call.func)} is no persistent function. Decorate it with "
            f"@persistent_call, or have its cell begin with {_MAGIC}."
        )
    return function, tuple(args), kwargs


def _server(_: Any, rest: str) -> None:
    if rest == _DEFAULT:
        os.environ.pop("JAXD_SERVER", None)
    elif rest:
        Settings.resolve(server=rest)  # is it an address?
        os.environ["JAXD_SERVER"] = rest
    if rest:
        print(f"functions that were not called yet are called at {server_address(None)}")
        return
    info = ask_server(None, "info")
    print(f"server   {info['server']}")
    for name in ("versions", "platform", "devices"):
        if info.get(name):
            print(f"{name:<8} {_flat(info[name])}")


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _status(shell: Any, rest: str) -> None:
    try:
        _command("status")(shell, rest)
    except NoServer as error:  # which is an answer
        print(error)


_SUBCOMMANDS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "status": _status,
    "why": _why,
    "warm": _warm,
    "server": _server,
    **{
        name: _command(name)
        for name in ("restart", "functions", "values", "devices", "start", "stop")
    },
}
