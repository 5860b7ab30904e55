"""What a key stands for: what its client says of it, and the callable once it is unpacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxd_protocol.jit.nnx_updates import refusing_lost_updates
from jaxd_protocol.jit.options import Options, function_key
from jaxd_protocol.jit.static_args import NO_STATICS, Statics
from jaxd_protocol.jit.static_leaves import opening
from jaxd_protocol.jit.transforms import shown_name, transformed
from jaxd_protocol.messages.function_manifest import Meaning
from jaxd_server.compilation.functions.package_skew import Difference
from jaxd_server.compilation.functions.receive import Arrival
from jaxd_server.user_code.callback_targets import noting_arguments
from jaxd_server.user_code.mutation_guard import Captured


class Described(NamedTuple):
    """What a client says of a key.

    Attributes:
        fingerprint: what stands for the code.
        name: what people call the function.
        options: how it is to be compiled.
        meaning: what the fingerprint was made of; None from a client that names functions by
            their bytes.
    """

    fingerprint: bytes
    name: str
    options: Options
    meaning: Meaning | None = None


@dataclass(slots=True, eq=False)
class Function:
    """What a key stands for.

    Attributes:
        key: the name on the wire; one of its own for a function whose fingerprint is in doubt.
        described: what its client says of it.
        statics: which of its arguments are static.
        parameters: names of its parameters, see `parameter_names`.
        differences: packages of its client that are others here.
        arrival: the unpacked callable; None as long as nobody needed it.
    """

    key: bytes
    described: Described
    statics: Statics = NO_STATICS
    parameters: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    arrival: Arrival | None = None

    @property
    def name(self) -> str:
        """What people call it, with what it is transformed by."""
        return shown_name(self.described.name, self.options.transformations)

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
        assert self.arrival is not None, "Functions.unpack comes first"
        return transformed(self.arrival.function, self.options.transformations)

    @property
    def traceable(self) -> Callable[..., Any]:
        """What jax is given of it: takes closed arguments, and loses no change of nnx objects."""
        function = refusing_lost_updates(self.function)
        if self.arrival is not None and not self.options.transformations:
            function = noting_arguments(function, self.arrival.targets)
        return opening(function, self.statics)

    @property
    def captured(self) -> Captured:
        """What tracing it could change, once it is unpacked."""
        assert self.arrival is not None, "Functions.unpack comes first"
        return self.arrival.captured

    @property
    def doubt(self) -> str | None:
        """Why it is not what its key says; None when it is."""
        return None if self.arrival is None else self.arrival.doubt

    @property
    def is_lasting(self) -> bool:
        """Whether its key means the same in every process, so that it may be kept on disk."""
        meaning = self.described.meaning
        return meaning is not None and meaning.shared and self.doubt is None
