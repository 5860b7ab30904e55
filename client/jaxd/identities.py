"""Which identity stands for a call: a function's globals change while a process runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from jaxd.jax_side import refuse_settings_that_stay
from jaxd.option_values import Ship
from jaxd.redecoration import redecorations
from jaxd.upgrades import upgrades
from jaxd_protocol.calls import Options, normal_config

if TYPE_CHECKING:
    from jaxd.identity import Identity, Spec

__all__ = ["Identities"]

_MAX_PINNED: Final = 1024


class Identities:
    """The identities of one function, one after the other. Thread-safe.

    Before each call the last one is asked whether it still holds, which takes microseconds; when
    not, the function is looked at again. What is pinned (large arrays, containers that the
    function itself writes to) is looked at when a call has a new signature, as `jax.jit` does it.

    Args:
        function: the function.
        options: how it is to be compiled.
        ignored: what not to count in its key.
        ship: how its code travels.
        callbacks: what a server may have called back, beside what the function gives itself.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        ignored: tuple[str, ...],
        ship: Ship = "value",
        callbacks: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        self._function = function
        self._options = options
        self._ignored = ignored
        self._ship: Ship = ship
        self._callbacks = callbacks
        self._current: Identity | None = None
        self._warned = self._counted = False
        self.after_fork()

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been looking."""
        if self._current is not None:
            self._current.after_fork()
        self._lock = threading.Lock()  # guards _current and _warned

    @property
    def ways(self) -> tuple[tuple[str, ...], Ship, tuple[Callable[..., Any], ...]]:
        """What is not counted in the key, how the code travels, and what may be called back."""
        return self._ignored, self._ship, self._callbacks

    def spec(self, config: Mapping[str, Any]) -> Spec:
        """The function as it is now, under a configuration.

        Raises:
            PackingError: when it reaches something that can be neither in a key nor carried.
            ConfigurationError: when jax has a setting here that no server has.
        """
        current = self._current
        installed = upgrades.count()
        if current is None or current.installed != installed or not current.holds:
            current = self._look_again(installed)
        name = tuple(config.values())
        found = current.specs.get(name)
        return found if found is not None else self._make(current, name, config)

    def settle(self, spec: Spec, skeleton: bytes, config: Mapping[str, Any]) -> Spec:
        """The function as a call with these argument bytes means it: as it was at the first one.

        Args:
            spec: what `spec` returned for this call.
            skeleton: the structure of its arguments.
            config: the configuration of this call.
        """
        if spec.identity.is_complete:
            return spec
        identity = spec.identity.pinned.get(skeleton)
        if identity is None:
            identity = self._pin(spec.identity, skeleton)
        name = tuple(config.values())
        return identity.specs.get(name) or self._make(identity, name, config)

    def _look_again(self, installed: int) -> Identity:
        with self._lock:
            current = self._current
            if current is None or current.installed != installed or not current.holds:
                current = self._current = self._look(current, installed)
            warned, self._warned = self._warned, True
        if not warned:
            current.warn()  # runs code of the user's: not under the lock
        return current

    def _look(self, before: Identity | None, installed: int) -> Identity:
        from jaxd.identity import Identity  # only a first call needs it

        found = Identity(self._function, self._options, self._ignored, installed, *self.ways[1:])
        if before is not None and before.fingerprint == found.fingerprint:
            found.pinned.update(before.pinned)
        return found

    def _pin(self, identity: Identity, skeleton: bytes) -> Identity:
        """The identity for the first call with a signature."""
        with self._lock:
            found = identity
            if not identity.is_fresh:  # not the call for which it was made
                fresh = self._look(identity, identity.installed)
                if fresh.fingerprint != identity.fingerprint:
                    found = fresh
            identity.is_fresh = False
            if len(identity.pinned) >= _MAX_PINNED:
                identity.pinned.clear()
            return identity.pinned.setdefault(skeleton, found)

    def _make(self, identity: Identity, name: Any, config: Mapping[str, Any]) -> Spec:
        from jaxd.identity import Spec

        refuse_settings_that_stay()
        options = self._options._replace(config=normal_config(config))
        spec = identity.specs.setdefault(name, Spec(identity, options))
        if not self._counted:
            self._counted = True
            redecorations.note(self._function, spec.key)
        return spec
