"""`pytest --jaxd`: what tests jit is answered by one warm server, for all workers and the next run.

Without the option or `jaxd = true` in the ini file it only has a marker and two fixtures; it loads
neither jax nor rpyc then.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from jaxd.api.client import Client
    from jaxd.api.launch.summary import Summary, VerificationReport

_OUTPUT: Final = "jaxd_summary"
"""Under this name a worker of xdist sends what it has counted."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--jaxd`, `--jaxd-server`, `--jaxd-verify`, and `jaxd` in the ini file."""
    group = parser.getgroup("jaxd", "a warm server for what tests jit")
    group.addoption(
        "--jaxd",
        action="store_true",
        default=False,
        help="answer what tests and their libraries give to jax.jit from a server that keeps it "
        "compiled, also for the next run",
    )
    group.addoption(
        "--jaxd-server",
        metavar="ADDRESS",
        help="another server than the local one of this environment",
    )
    group.addoption(
        "--jaxd-verify",
        action="store_true",
        default=False,
        help="with --jaxd: trace everything here as well, and fail tests that were answered by "
        "another program",
    )
    parser.addini("jaxd", "as --jaxd", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known, also for runs without a server."""
    config.addinivalue_line(
        "markers", "jaxd(enabled): with False the test uses plain jax.jit, also with --jaxd"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Installs the hook before any conftest imports jax.

    Raises:
        UsageError: when an option of a served run is given, and this is none.
    """
    options = early_config.known_args_namespace
    if not (options.jaxd or early_config.getini("jaxd")):
        if options.jaxd_server or options.jaxd_verify:
            raise pytest.UsageError("--jaxd-server and --jaxd-verify need --jaxd. Add it.")
        return
    from jaxd.api.launch import variables
    from jaxd.api.launch.process import begin

    # for this process, the workers of xdist and what tests start
    os.environ.update(variables(os.environ, options.jaxd_server))
    if options.jaxd_verify:
        os.environ["JAXD_VERIFY"] = "1"
    begin()
    from jaxd.api.launch.jit_hook import HookedFunction

    HookedFunction.deletes_donated = True  # tests look at it; a program does not use such arrays
    early_config.pluginmanager.register(_Served(early_config), "jaxd-served")


class _Served:
    """The hooks of a run whose tests are served.

    Args:
        config: of the run.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._verifies = config.known_args_namespace.jaxd_verify
        self._is_worker = False
        self._of_workers: list[Summary] = []
        self._report: VerificationReport | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        """Only now xdist has said whether this is a worker of its own."""
        from jaxd.api.launch.summary import VerificationReport

        self._is_worker = hasattr(config, "workerinput")
        if self._verifies and not self._is_worker:
            self._report = VerificationReport()
            os.environ.update(self._report.variables)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Finds or starts the server, once for all workers.

        Raises:
            UsageError: when there is none.
        """
        from jaxd.api.decorator import new_caller
        from jaxd.connection.settings import Settings
        from jaxd.dispatch.caller import default_caller
        from jaxd_protocol.errors import JaxdError

        if self._is_worker or session.config.option.collectonly:
            return
        try:
            settings = Settings.resolve()
            if not settings.inline:
                default_caller(settings, new_caller).session.current()
        except JaxdError as error:
            raise pytest.UsageError(f"--jaxd: {error}") from None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Runs a test with its fixtures in plain jax where its marker says so."""
        from jaxd.api.launch.jit_hook import plain

        marker = item.get_closest_marker("jaxd")
        plain.is_wanted = marker is not None and marker.args[:1] == (False,)
        try:
            return (yield)
        finally:
            plain.is_wanted = False

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sends what a worker has counted to the process that prints it, and writes for the next.

        Workers of xdist do not end in order.
        """
        from jaxd.api.launch.process import begin

        begin().write_refusals()
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = begin().summary().written()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended, in order or not."""
        from jaxd.api.launch.summary import Summary

        written = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if written is not None:
            self._of_workers.append(Summary.read(written))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Prints the sums of all workers in a line; with `-v`, what ran in plain jax and why."""
        from jaxd.api.launch.process import begin
        from jaxd.api.launch.summary import Summary, described

        total = Summary.total([begin().summary(), *self._of_workers])
        terminalreporter.write_line(total.line())
        if config.option.verbose > 0:
            for line in total.reasons_text():
                terminalreporter.write_line(line)
        if self._report is not None:
            terminalreporter.write_line(
                f"jaxd: {described(self._report.summary(), is_hooked=True)}"
            )


@pytest.fixture(scope="session")
def jaxd_server(request: pytest.FixtureRequest) -> str:
    """The address of the server: of `--jaxd-server`, else the local one, which is started."""
    from jaxd.connection.discovery import find_server
    from jaxd.connection.settings import Settings

    server = request.config.getoption("--jaxd-server")
    return str(find_server(Settings.resolve(server=server)))


@pytest.fixture(scope="session")
def jaxd_client(jaxd_server: str) -> Iterator[Client]:
    """A client of that server, for `client.statistics()`, `client.put` and the rest."""
    from jaxd.api.client import connect

    with connect(jaxd_server) as client:
        yield client
