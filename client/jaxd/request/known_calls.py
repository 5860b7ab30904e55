"""Calls of a function that is as it was, whose programs this process has loaded.

The way of most calls with `place="here"`: what is looked at before each of them is what jax's own
dispatch does not look at, and nothing else. Whatever has changed, the call goes the long way, by
which the function is walked again and its settings are read again.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from jaxd.interop.jax_runtime import current_config
from jaxd.interop.jax_settings import SettingsWatch, settings_watch
from jaxd.interop.local_programs import calls_here
from jaxd.request.function_snapshot import ELSEWHERE, package_changes

if TYPE_CHECKING:
    from jaxd.request.function_snapshot import FunctionSpec, SnapshotCache
    from jaxd_protocol.jit.options import Config

LEARN_AFTER: Final = 4
"""So many calls go the long way before the short one is made: most of a test suite makes fewer."""


class KnownCalls:
    """Runs the calls of one snapshot of a function under the settings that it was made under.

    What decides about a key, and what looks at it:

    * code, globals, closures, environment and whatever else the function reads: its guards;
    * the installed packages: once a second, as for any call;
    * the settings and contexts of the thread that jax's dispatch tells apart, and whether jax
      traces the calling code: that dispatch, see `jaxd.interop.local_programs.FastCalls`;
    * the other settings of jax: whoever changes one, see `SettingsWatch`;
    * what jax takes for another in arguments, which is types, what is static in objects, and the
      user's classes: `LocalCalls.run`.

    Thread-safe.

    Args:
        spec: the function.
        watch: says when a setting is changed.
        mark: what it had when the settings were those of the function.
    """

    __slots__ = ("_guards", "_installed", "_mark", "_spec", "_watch")

    def __init__(self, spec: FunctionSpec, watch: SettingsWatch, mark: object) -> None:
        self._spec = spec
        self._watch = watch
        self._mark = mark
        self._guards = spec.snapshot.guards
        self._installed = spec.snapshot.installed

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call of a kind that ran here before, else `ELSEWHERE`.

        Raises:
            Exception: what jax raises when it runs the program.
        """
        local = self._spec.local
        if (
            local is None
            or monotonic() >= package_changes.next_poll_s
            or package_changes.count != self._installed
            or self._watch.mark is not self._mark
            or not self._guards.hold()
        ):
            return ELSEWHERE
        result = local.run(args, kwargs)
        if result is not ELSEWHERE:
            calls_here.count += 1
        return result


def learn_calls(snapshots: SnapshotCache, spec: FunctionSpec, config: Config) -> None:
    """Has calls of a function go the short way from now on, where that may be.

    Args:
        snapshots: those of the function.
        spec: the function, some of whose calls have run here.
        config: the configuration of the calling thread.
    """
    watch = settings_watch()
    if watch is None:
        return
    mark = watch.mark  # first: what changes meanwhile is noticed
    if not watch.is_varied() and current_config() == config:
        snapshots.know(spec, KnownCalls(spec, watch, mark))
