"""`jaxd warm`: builds ahead what a lockfile holds, and records lockfiles."""

from __future__ import annotations

import argparse
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.api.client import Client
from jaxd.cli.child_program import check_not_inline, handling_interrupts, run_program
from jaxd.cli.query import OUTCOME_WORDS, add_query_options, client_of, print_json
from jaxd.dispatch.caller import Caller
from jaxd.events.progress import Progress
from jaxd_protocol.base.process import start_thread
from jaxd_protocol.base.terminal import duration, print_message
from jaxd_protocol.errors import ConfigurationError, JaxdError

if TYPE_CHECKING:
    from jaxd.dispatch.warm import RecordedFunction, Verdict
    from jaxd_protocol.messages.recipes import Recipe, RecordedCall


SUMMARY = "build the programs of a lockfile ahead of calls, or record one"
EXAMPLE = "jaxd warm --record warm.lock -- python train.py; jaxd warm warm.lock"

_BAR_WIDTH: Final = 20
_RECORDING: Final = "jaxd warm --record warm.lock -- python train.py"
_CHECK_WORDS: Final = {"hit": "ready", "load": "on disk", "compile": "to be compiled"}
_MAX_CONCURRENT: Final = 8
"""Builds that are requested at the same time; how many run at once is decided by the server."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.usage = "jaxd warm [--check] FILE, or jaxd warm --record FILE [-- COMMAND ...]"
    parser.add_argument("file", metavar="FILE", help="the lockfile")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--record",
        action="store_true",
        help="write it: the calls that the server gets while COMMAND runs, or until Ctrl-C",
    )
    how.add_argument(
        "--check",
        action="store_true",
        help="build nothing; exit with 1 if anything would have to be compiled",
    )
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Builds, checks or records; starts a local server where a call would start one.

    Returns:
        0; 1 when something could not be built, or `--check` found something to be compiled; with
        a COMMAND its own exit code.

    Raises:
        ConfigurationError: when the lockfile cannot be used.
        JaxdError: when there is no server.
    """
    if arguments.record:
        return _record(arguments)
    if arguments.program:
        raise ConfigurationError(
            "a program behind -- is run only while a lockfile is recorded. Add --record."
        )
    return _build(arguments)


@contextmanager
def _client(server: str | None) -> Iterator[Client]:
    with client_of(server, starts=True) as client:
        check_not_inline(client.caller.settings, "none to be warmed")
        client.caller.session.connection()
        yield client


# recording --------------------------------------------------------------------------------------


def _record(arguments: argparse.Namespace) -> int:
    from jaxd.cli.lockfile import check_writable, write_lockfile
    from jaxd.dispatch.warm import recipe_mark, recipes_since

    check_writable(arguments.file)
    with _client(arguments.server) as client:
        mark = recipe_mark(client.caller)
        code = 0
        if arguments.program:
            code = run_program(arguments.program, arguments.server, _RECORDING)
        else:
            told = "recording the calls of the server; Ctrl-C ends"
            wait_for_interrupt(lambda: print_message(told))
        try:
            recipes, left_out = recipes_since(client.caller, mark)
            write_lockfile(arguments.file, recipes)
        except Exception as error:  # noqa: BLE001  the program has run: its exit code counts
            print_message(error)
            return code or 1
    _report_recorded(arguments, recipes, left_out)
    return code


def _report_recorded(
    arguments: argparse.Namespace,
    recipes: Sequence[Recipe],
    left_out: Sequence[Mapping[str, str]],
) -> None:
    count = sum(len(recipe.calls) for recipe in recipes)
    for each in left_out:
        print_message(f"{each['name']} is not recorded: {each['reason']}")
    if arguments.json:
        report = {"file": arguments.file, "functions": len(recipes), "programs": count}
        print_json({**report, "left_out": left_out})
    else:
        print_message(f"recorded {count} programs of {len(recipes)} functions in {arguments.file}")


def wait_for_interrupt(ready: Callable[[], None]) -> None:
    """Returns after Ctrl-C or SIGTERM; calls `ready` once their handlers are installed."""
    ended = threading.Event()
    with handling_interrupts(lambda *_: ended.set()):
        ready()
        ended.wait()


# building ---------------------------------------------------------------------------------------


def _build(arguments: argparse.Namespace) -> int:
    from jaxd.cli.lockfile import read_lockfile

    recipes = read_lockfile(arguments.file)
    is_terminal = sys.stderr.isatty()
    has_bar = is_terminal and sys.stdout.isatty()
    is_listed = not arguments.json and not has_bar
    bar = BuildBar(sum(len(recipe.calls) for recipe in recipes), is_terminal)
    started = time.monotonic()
    done = []
    with _warnings_printed(), _client(arguments.server) as client:
        client.caller.session.progress.made = bar
        with closing(build_all(client, recipes, check=arguments.check)) as results:
            for each in results:
                done.append(each)
                bar.advance(None if each.error is None else f"jaxd: {each.function}: {each.error}")
                if is_listed and each.verdict is not None:
                    print(_outcome_line(each, arguments.check), flush=True)
        bar.close()
    return _summarise(arguments, done, time.monotonic() - started)


class BuildBar(Progress):
    """A progress bar of many builds, in one line. It replaces the `Progress` of a caller.

    Args:
        total: how many builds there are.
        shown: whether stderr is a terminal; else only failures are printed.
    """

    def __init__(self, total: int, shown: bool) -> None:
        super().__init__()
        self._total = total
        self._is_shown = shown
        self._done = 0

    def advance(self, failure: str | None = None) -> None:
        """Counts one more build; a failure is printed in a line of its own."""
        if not self._is_shown:
            if failure is not None:
                print(failure, file=sys.stderr)
            return
        with self._lock:
            self._done += 1
            if failure is not None:
                self._put(f"{failure}\n")
            self._put(self._bar())
        self._write()

    def close(self) -> None:
        """Clears the line."""
        if self._is_shown:
            with self._lock:
                self._put("")
            self._write()

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """A call is in another stage."""
        if kind == "stage":  # one line has no room for the reasons of many builds
            super().event(connection, number, kind, content)

    def finish(self, connection: object, number: int, *, ready: bool = True) -> None:
        """A call is over; `advance` shows it."""
        with self._lock:
            self._finished[connection, number] = None
            self._calls.pop((connection, number), None)

    def _show(self, call: Any) -> None:
        self._put(f"{self._bar()}  {call.stage} {call.function} … {call.seconds:.0f} s")

    def _bar(self) -> str:
        filled = _BAR_WIDTH * self._done // max(1, self._total)
        return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {self._done}/{self._total}"


def _outcome_line(done: BuildOutcome, check: bool) -> str:
    assert done.verdict is not None
    if check:
        return f"{_CHECK_WORDS[done.verdict]}: {done.function}"
    return f"{OUTCOME_WORDS[done.verdict]} {done.function} in {duration(done.seconds)}"


def _summarise(arguments: argparse.Namespace, done: Sequence[BuildOutcome], seconds: float) -> int:
    """Prints how many programs there are of each kind, and a warning of those not on disk.

    Returns:
        The exit code of the command.
    """
    words: Mapping[str, str] = _CHECK_WORDS if arguments.check else OUTCOME_WORDS
    counts = {verdict: sum(each.verdict == verdict for each in done) for verdict in words}
    failed = [
        {"function": each.function, "error": each.error} for each in done if each.verdict is None
    ]
    unkept = [each.function for each in done if each.kept is False]
    if arguments.json:
        report = {"file": arguments.file, **counts, "failed": failed, "not_kept": unkept}
        print_json({**report, "seconds": round(seconds, 3)})
    else:
        parts = [f"{counts[verdict]} {word}" for verdict, word in words.items()]
        parts += [f"{len(failed)} failed"] if failed else []
        print(f"{', '.join(parts)}; {duration(seconds)}")
    if unkept:
        print_message(
            f"warning: {len(unkept)} of {len(done)} programs are not on disk, such as {unkept[0]}: "
            "they are ready only as long as this server runs, and an image that is made of its "
            "disk, such as Docker's, would not hold them. f.why() of the function says why."
        )
    return 1 if failed or (arguments.check and counts["compile"]) else 0


@contextmanager
def _warnings_printed() -> Iterator[None]:
    """Prints warnings without a source line: they are about functions of the lockfile."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print_message(f"warning: {message}")
        yield


class BuildOutcome(NamedTuple):
    """The outcome for one recorded call.

    Attributes:
        function: its name with the arguments, for people.
        verdict: how its program was made ready, or would be; None after an error.
        seconds: how long that took.
        error: why it failed, in one line.
        kept: whether it is on disk now; None: unknown.
    """

    function: str
    verdict: Verdict | None = None
    seconds: float = 0.0
    error: str | None = None
    kept: bool | None = None


def build_all(
    client: Client, recipes: Iterable[Recipe], *, check: bool = False
) -> Generator[BuildOutcome, None, None]:
    """Has the server build all that is not ready; yields the outcome of each when it is done.

    Closed early, it starts no further builds and closes the client's connection.

    Args:
        client: of the server.
        recipes: of the recorded calls.
        check: build nothing; the verdicts say what would be done.
    """
    from jaxd.dispatch.warm import RecordedFunction

    functions = [RecordedFunction(recipe) for recipe in recipes]
    calls = [(function, call) for function in functions for call in function.recipe.calls]
    left, results = deque(calls), SimpleQueue[BuildOutcome]()
    work = client.caller, left, results, check
    try:
        for _ in calls[:_MAX_CONCURRENT]:  # daemons: Ctrl-C must not wait for them
            start_thread(
                threading.Thread(target=_build_each, args=work, name="jaxd-warm", daemon=True)
            )
        for _ in calls:
            yield results.get()
    except BaseException:
        left.clear()
        client.close()  # ends the waiting of those that are under way
        raise


def _build_each(
    caller: Caller,
    left: deque[tuple[RecordedFunction, RecordedCall]],
    results: SimpleQueue[BuildOutcome],
    check: bool,
) -> None:
    """Builds one recorded call after the other until none is left."""
    while True:
        try:
            recorded, call = left.popleft()
        except IndexError:
            return
        results.put(_build_call(caller, recorded, call, check=check))


def _build_call(
    caller: Caller, recorded: RecordedFunction, call: RecordedCall, *, check: bool
) -> BuildOutcome:
    from jaxd.dispatch.warm import warm

    name = _call_text(recorded, call)
    try:
        if check:
            return BuildOutcome(name, recorded.verdict(caller, call))
        warmed = warm(caller, recorded.call(caller, call))
    except Exception as error:  # noqa: BLE001  whatever the function raises; the others go on
        text = " ".join(str(error).split())
        is_own = isinstance(error, JaxdError)
        return BuildOutcome(name, error=text if is_own else f"{type(error).__name__}: {text}")
    return BuildOutcome(name, warmed.verdict, warmed.seconds, kept=warmed.kept)


def _call_text(recorded: RecordedFunction, call: RecordedCall) -> str:
    """``train_step(x=float32[128,8], batch=dict of 3, steps=10)``."""
    from jaxd_protocol.explain.argument_shapes import argument_shapes

    try:
        forms = argument_shapes(call.skeleton, recorded.recipe.parameters)
    except JaxdError:
        return recorded.name
    given = ", ".join(f"{name}={argument.form}" for name, argument in forms.items())
    return f"{recorded.name}({given})"
