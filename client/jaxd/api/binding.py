"""A function together with all that a call of it needs: options, server, settings, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxd.dispatch.caller import Caller
from jaxd.interop.jax_runtime import current_config
from jaxd.request.call_request import CallRequest, CallSettings
from jaxd.request.function_snapshot import SnapshotCache
from jaxd.results.reader import ResultsAs
from jaxd_protocol.jit.options import Options


class FunctionBinding(NamedTuple):
    """A function and how it is called.

    Attributes:
        function: the function, which runs in this process where there is no server.
        options: how it is compiled.
        find_caller: gives what calls its server, from the first call on; None: it runs here.
        settings: how its calls are made.
        snapshots: what it means, as it is now.
    """

    function: Callable[..., Any]
    options: Options
    find_caller: Callable[[], Caller | None]
    settings: CallSettings
    snapshots: SnapshotCache

    def with_function(
        self, function: Callable[..., Any], options: Options, base: Callable[..., Any]
    ) -> FunctionBinding:
        """Another function that is called as this one is.

        Args:
            function: the function.
            options: how it is compiled.
            base: what it is made of by the transformations in its options, else itself.
        """
        snapshots = self.snapshots.of(base, options)
        return self._replace(function=function, options=options, snapshots=snapshots)

    def config(self) -> Mapping[str, Any]:
        """The configuration of this moment and thread, with what the function says of it."""
        config = current_config()
        return {**config, **self.settings.config} if self.settings.config else config

    def encode(
        self,
        caller: Caller,
        config: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: ResultsAs | None = None,
    ) -> CallRequest:
        """A call under a configuration, ready to be sent.

        Args:
            caller: what is to make the call.
            config: what `config` returned in the thread that calls.
            args: positional arguments.
            kwargs: keyword arguments.
            results: in which form its result is wanted, other than the settings say.

        Raises:
            ArgumentError, TracerError, PackingError: when an argument cannot travel.
        """
        spec = self.snapshots.spec(config)
        _, form, timeout_s, strict = self.settings
        if caller.session.accepts != "code" and caller.requires_export(timeout_s):
            from jaxd.tracing.export import exported_call  # imports jax, and few servers ask for it

            made = exported_call(caller, spec, self.function, self.settings.config, args, kwargs)
            return caller.encode(*made, {}, timeout_s, results or form, strict)
        call = caller.encode(spec, args, kwargs, timeout_s, results or form, strict)
        return (
            call if spec.snapshot.guards.complete else self.with_pinned_spec(caller, call, config)
        )

    def with_pinned_spec(
        self, caller: Caller, call: CallRequest, config: Mapping[str, Any]
    ) -> CallRequest:
        """The call, of the function as calls with such arguments mean it."""
        settled = self.snapshots.pinned_spec(call.spec, call.skeleton, config)
        if settled is call.spec:
            return call
        caller.register(settled)
        return call._replace(spec=settled)
