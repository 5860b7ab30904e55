"""A process whose program is not changed: the hook, and its words at its end."""

from __future__ import annotations

import atexit
import os
import sys
import time
from contextlib import suppress
from functools import cache
from typing import Any, Final

from jaxd.api.launch import ENABLED, RUN
from jaxd.api.launch.jit_hook import JitHook, plain
from jaxd.api.launch.summary import Summary, leave, left_for
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import default_callers
from jaxd.dispatch.local_runs import former_runs
from jaxd.dispatch.session import Session, skip_last_collections_at_exit
from jaxd.interop.after_import import AfterImport
from jaxd.interop.jax_runtime import loaded_jax
from jaxd.interop.local_programs import calls_here, eager_folder
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import ConfigurationError, FallbackWarning
from jaxd_protocol.network.local_server import make_private_directory
from jaxd_protocol.packages.installed import collect_warnings


def install() -> None:
    """Has a server answer what this process gives to `jax.jit` from now on, where `JAXD=1`.

    Without that variable it does nothing. Call it first: what was given to `jax.jit` before stays
    plain. A second call does nothing.
    """
    if os.environ.get(ENABLED) == "1":
        begin()


@cache
def begin() -> HookedProcess:
    """Installs the hook in this process, once."""
    return HookedProcess()


class HookedProcess:
    """This process, in which `jax.jit` is served from now on.

    Attributes:
        hook: what is in the place of `jax.jit`.
        warnings: of jaxd itself, which the program gets none of, with their categories.
    """

    def __init__(self) -> None:
        self.hook = JitHook()
        self.warnings: dict[str, type[Warning]] = {}
        self._main, self._says = _main_process()
        Session.keeps_use = True
        Settings.default_place = "auto"
        collect_warnings(self.warnings.setdefault)
        if "jax" in sys.modules:
            use_eager_cache()
        else:
            sys.meta_path.insert(0, AfterImport({"jax"}, lambda _: use_eager_cache()))
        self.hook.install()
        reset_after_fork(self)
        skip_last_collections_at_exit()
        atexit.register(self.write_refusals)
        if self._main:
            atexit.register(self._at_exit)
            _call_in_forks(self._at_exit)

    def summary(self) -> Summary:
        """What was counted in this process so far."""
        return Summary.of_this_process(plain.watched, self.hook.not_served)

    def write_refusals(self) -> None:
        """Writes down what the server could not run, for the next run."""
        callers = default_callers()
        if len(callers) == 1:
            former_runs.write(callers[0].session.settings.server)

    def after_fork(self) -> None:
        """Forgets what the parent has counted, which tells it itself."""
        self.hook.not_served.clear()
        former_runs.forget()
        plain.watched = calls_here.count = 0
        fallback = sys.modules.get("jaxd.tracing.fallback")
        if fallback is not None:
            fallback.ran_here.clear()

    def _at_exit(self) -> None:
        with suppress(Exception):  # nobody's exit depends on it
            if os.getpid() != self._main:
                leave(self.summary(), self._main)
                return
            self._say(Summary.total([self.summary(), *left_for(self._main)]))

    def _say(self, summary: Summary) -> None:
        stream = sys.__stderr__
        if stream is None:
            return
        if self._says == "report":
            lines = [summary.line(programs=True), *summary.reasons_text()]
            lines += [
                f"  {category.__name__}: {text}"
                for text, category in self.warnings.items()
                if category is not FallbackWarning  # which is among the reasons
            ]
            print(*lines, sep="\n", file=stream, flush=True)
        elif stream.isatty() and any(summary[:7]):
            print(summary.line(programs=True), file=stream, flush=True)


def _main_process() -> tuple[int, str]:
    """The number of the process that sums up, and what it says; 0 where nobody wants it."""
    number, _, says = os.environ.get(RUN, "").partition(":")
    return (int(number), says) if number.isdecimal() else (0, "nothing")


def _call_in_forks(at_exit: Any) -> None:
    """Has it called at the end of children that multiprocessing forks, which skip `atexit`."""

    def watch(util: Any) -> None:
        def in_child(_: object) -> None:
            util.Finalize(None, at_exit, exitpriority=-100)

        util.register_after_fork(at_exit.__self__, in_child)

    name = "multiprocessing.util"
    if name in sys.modules:
        watch(sys.modules[name])
    else:
        sys.meta_path.insert(0, AfterImport({name}, watch))


# jax's own cache on disk --------------------------------------------------------------------------

_DIRECTORY: Final = "jax_compilation_cache_dir"
_SETTINGS: Final = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_persistent_cache_enable_xla_caches": "",
}
_MAX_BYTES: Final = 1 << 30
_TRIM_INTERVAL_S: Final = 86_400
_STAMP: Final = "trimmed"


def use_eager_cache() -> None:
    """Has jax, which is loaded, keep on disk what this process compiles between its calls.

    That are operations outside of `jax.jit`, and functions that fall back. Programs that a server
    keeps never come out of there: they could not be written again. A server has a cache of its own,
    and does not see these settings, which are in no environment. Nothing is changed where the user
    has a cache of jax's own, or wants none.
    """
    config = loaded_jax().config
    if os.environ.get("JAXD_EAGER_CACHE") == "0" or config.jax_compilation_cache_dir is not None:
        return
    folder = eager_folder()
    if folder is None or not config.jax_enable_compilation_cache:
        return
    try:
        folder = make_private_directory(folder)
    except ConfigurationError:
        return
    before = {name: getattr(config, name) for name in _SETTINGS}
    changed = {name: value for name, value in _SETTINGS.items() if name.upper() not in os.environ}
    _watch_for_the_users_own(config, {name: before[name] for name in changed})
    for name, value in {_DIRECTORY: folder, **changed}.items():
        config.update(name, value)
    atexit.register(_trim, folder)


def _watch_for_the_users_own(config: Any, before: dict[str, Any]) -> None:
    """Has a folder that the program chooses later count from then on, as if ours had not been."""
    update = config.update

    def updated(name: str, val: Any) -> None:
        if name == _DIRECTORY and config.jax_compilation_cache_dir is not None:
            from importlib import import_module

            del config.update
            for other, original in before.items():
                update(other, original)
            update(name, val)
            import_module("jax.experimental.compilation_cache.compilation_cache").reset_cache()
        else:
            update(name, val)

    config.update = updated


def _trim(folder: str) -> None:
    """Removes what was not used for longest where the folder is too large; looks once a day."""
    with suppress(OSError):
        stamp = os.path.join(folder, _STAMP)
        if os.path.exists(stamp) and time.time() - os.path.getmtime(stamp) < _TRIM_INTERVAL_S:
            return
        with open(stamp, "w", encoding="ascii"):
            os.utime(stamp)
        files = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.is_file()]
        left = sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda row: max(row[0].st_atime, row[0].st_mtime)):
            if left <= _MAX_BYTES:
                return
            os.unlink(path)
            left -= status.st_size
