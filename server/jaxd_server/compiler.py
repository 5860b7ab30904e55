"""From a function and its arguments to an executable: trace, lower, compile.

Each executable has a function object of its own. jax keys its caches on the identity of that
object, so dropping the executable frees the compiled program, and two executables never share an
entry that only one of them should have.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax import monitoring

from jaxd_protocol.errors import ConfigurationError
from jaxd_server.functions import Function
from jaxd_server.jax_config import configured, restore_defaults
from jaxd_server.progress import Emit
from jaxd_server.statistics import Counters

__all__ = ["Compiler", "Executable"]

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class Executable:
    """A compiled program for one function and one signature.

    Attributes:
        name: what people call the function.
        build_s: seconds that tracing and compiling took.
        calls: how many it has answered.
        run_s: seconds that a call takes, smoothed over the last ones; None before the second.
        last_use: `time.monotonic()` of the last call.
        memo: where the result packer keeps what it learnt about the result's structure.
    """

    __slots__ = (
        "__weakref__",
        "_config",
        "_jitted",
        "build_s",
        "calls",
        "last_use",
        "memo",
        "name",
        "run_s",
    )

    def __init__(self, name: str, jitted: Any, config: tuple[tuple[str, Any], ...]) -> None:
        self.name = name
        self.build_s = 0.0
        self.run_s: float | None = None
        self.calls = 0
        self.last_use = time.monotonic()
        self.memo: Any = None
        self._jitted = jitted
        self._config = config

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs it; jax may return before the device is done."""
        if self._config:
            with configured(self._config):
                return self._jitted(*args, **kwargs)
        return self._jitted(*args, **kwargs)

    def took(self, seconds: float) -> None:
        """Notes how long a call took, its result's way home included."""
        self.last_use = time.monotonic()
        self.calls += 1
        if self.calls > 1:  # the first one pays for initialisation
            self.run_s = seconds if self.run_s is None else 0.75 * self.run_s + 0.25 * seconds


class Compiler:
    """Builds executables, a few at a time.

    Args:
        counters: where traces and compiles are counted.
        builds: how many may be built at once; XLA uses all cores for each anyway.
    """

    def __init__(self, counters: Counters, builds: int) -> None:
        self._counters = counters
        self._room = threading.BoundedSemaphore(builds)
        monitoring.register_event_duration_secs_listener(self._on_event)

    def close(self) -> None:
        """Stops listening to jax."""
        monitoring.unregister_event_duration_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        # jax calls this in the thread that compiles
        if event == _COMPILE_EVENT:
            self._counters.add(compiles=1)

    def build(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], emit: Emit
    ) -> Executable:
        """An executable for these arguments.

        Raises:
            Exception: whatever the function raises while it is traced, and jax's own errors.
        """
        with self._room:
            started = time.monotonic()
            try:
                with configured(function.options.config):
                    jitted = self._compiled(function, args, kwargs, emit)
            finally:
                changed = restore_defaults()
            if changed:
                raise _changed_settings(function.name, changed)
            executable = Executable(function.name, jitted, function.options.config)
            executable.build_s = time.monotonic() - started
        self._counters.add(build_s=executable.build_s)
        emit("stage", {"stage": "run", "function": function.name})
        return executable

    def _compiled(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], emit: Emit
    ) -> Any:
        """A jitted function that has been compiled for these arguments."""
        jitted = jax.jit(self._private(function.function), **function.options.jit_arguments())
        emit("stage", {"stage": "trace", "function": function.name})
        lowered = jitted.lower(*args, **kwargs)
        emit("stage", {"stage": "compile", "function": function.name})
        lowered.compile()
        return jitted

    def _private(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def private(*args: Any, **kwargs: Any) -> Any:
            self._counters.add(traces=1)
            return function(*args, **kwargs)

        return private


def _changed_settings(name: str, changed: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{name} changed {', '.join(changed)} for the whole server while it was traced; that was "
        "undone. Give the function its settings instead: "
        f"persistent_call(config={{{changed[0]!r}: …}}), or use jax's context managers inside it."
    )
