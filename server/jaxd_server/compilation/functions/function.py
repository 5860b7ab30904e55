"""A known function: its client's description, and the callable once it is unpacked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxd_protocol.fingerprint.walk import MAX_PARTS
from jaxd_protocol.jit.nnx_updates import refusing_lost_updates
from jaxd_protocol.jit.options import Options, function_key
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs
from jaxd_protocol.jit.static_leaves import unwrapping_arguments
from jaxd_protocol.jit.transforms import apply_transformations, display_name
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recorded_reads import RecordedRead
from jaxd_server.compilation.functions.package_skew import Difference
from jaxd_server.compilation.functions.receive import UnpackedFunction
from jaxd_server.user_code.callback_targets import recording_arguments
from jaxd_server.user_code.mutation_guard import MutationGuard


class Described(NamedTuple):
    """A client's description of a key.

    Attributes:
        fingerprint: what stands for the code, with what it reads of its client's process.
        name: the name of the function.
        options: how it is to be compiled.
        manifest: what the fingerprint was made of; None from a client that names functions by
            their bytes.
    """

    fingerprint: bytes
    name: str
    options: Options
    manifest: FunctionManifest | None = None

    @property
    def code_fingerprint(self) -> bytes:
        """What stands for the code alone."""
        return self.fingerprint if self.manifest is None else self.manifest.fingerprint

    def with_reads(self, reads: Iterable[RecordedRead]) -> Described:
        """The same function, where it finds this in its client's process."""
        assert self.manifest is not None
        manifest = self.manifest._replace(reads=tuple(sorted(reads)))
        return self._replace(fingerprint=manifest.recorded_fingerprint, manifest=manifest)


@dataclass(slots=True, eq=False)
class Function:
    """What a key stands for.

    Attributes:
        key: the name on the wire; one of its own for a function whose fingerprint is in doubt.
        described: its client's description of it.
        statics: which of its arguments are static.
        parameters: names of its parameters, see `parameter_names`.
        differences: packages of its client that are others here.
        unpacked: the unpacked callable; None as long as it was not needed.
    """

    key: bytes
    described: Described
    statics: StaticArgs = NO_STATIC_ARGS
    parameters: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    unpacked: UnpackedFunction | None = None

    @property
    def name(self) -> str:
        """What people call it, with what it is transformed by."""
        return display_name(self.described.name, self.options.transformations)

    @property
    def options(self) -> Options:
        """How it is to be compiled."""
        return self.described.options

    @property
    def plain_key(self) -> bytes:
        """The key of the same function on no device in particular."""
        options = self.options
        if options.device is None or self.doubt is not None:
            return self.key
        return function_key(self.described.fingerprint, options._replace(device=None))

    @property
    def function(self) -> Callable[..., Any]:
        """What is called, once it is unpacked."""
        assert self.unpacked is not None, "Functions.unpack comes first"
        return apply_transformations(self.unpacked.function, self.options.transformations)

    @property
    def traceable(self) -> Callable[..., Any]:
        """What jax is given of it: takes closed arguments, and loses no change of nnx objects.

        But of those that are trees to its caller, as to `jax.jit`, it changes its own.
        """
        function = self.function
        if not self.statics.strict:
            function = refusing_lost_updates(function)
        if self.unpacked is not None:
            held = [each for each in self.unpacked.objects if type(each) is ContextVar]
            function = _setting(held, function) if held else function
        if self.unpacked is not None and not self.options.transformations:
            function = recording_arguments(function, self.unpacked.targets)
        return unwrapping_arguments(function, self.statics)

    @property
    def captured(self) -> MutationGuard:
        """What tracing it could change, once it is unpacked."""
        assert self.unpacked is not None, "Functions.unpack comes first"
        return self.unpacked.captured

    @property
    def doubt(self) -> str | None:
        """Why it is not what its key says; None when it is."""
        return None if self.unpacked is None else self.unpacked.doubt

    @property
    def modules(self) -> frozenset[str] | None:
        """Full names of the modules that it names; None where it may import any others.

        Those that are not installed where its client is may be installed here. Code that travels as
        source computes names of modules.
        """
        manifest = self.described.manifest
        if manifest is None or len(manifest.parts) >= MAX_PARTS:
            return None
        if any(part.kind == "module" for part in manifest.parts):
            return None
        return frozenset(manifest.local.keys() | manifest.packages.keys())

    @property
    def is_lasting(self) -> bool:
        """Whether its key means the same in every process, so that it may be kept on disk."""
        manifest = self.described.manifest
        return manifest is not None and manifest.shared and self.doubt is None


def _setting(
    variables: Iterable[ContextVar[Any]], function: Callable[..., Any]
) -> Callable[..., Any]:
    """The function with context variables set where it runs, as they were where it was called.

    They have arrived with their values as defaults, which `variable.get(other)` does not look at.
    """

    @functools.wraps(function)
    def setting(*args: Any, **kwargs: Any) -> Any:
        for variable in variables:
            with suppress(LookupError):  # it has no value
                variable.set(variable.get())
        return function(*args, **kwargs)

    return setting
