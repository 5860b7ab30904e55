"""The record of one call on disk, and the name that it is found by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Any

from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_server.codec.arguments import Arguments
from jaxd_server.codec.results import ResultLayout
from jaxd_server.codec.signature import keeps_64_bits, lasting_signature
from jaxd_server.compilation.functions.function import Function


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What is on disk for one function and one signature.

    Attributes:
        name: the name of the function.
        key: names function, options and configuration.
        fingerprint: what the function means, with what it reads of its client's process.
        code: names the packed function: its fingerprint alone.
        skeleton, sizes, pickles: the call that it was made for, see `RecordedCall`.
        parameters: names of the function's parameters.
        program: names the compiled program; empty when that cannot be kept.
        obstacle: why it cannot.
        form: how results travel.
        trace_s, compile_s: what it took to make, in seconds.
        created: when that was, as `time.time()`.
        environment: names the packages that it depends on.
        principal: for whom it was made.
        output: what the function has put out while it was traced, see `OutputOnce.output`.
    """

    name: str
    key: bytes
    fingerprint: bytes
    code: bytes
    skeleton: bytes
    sizes: tuple[int, ...]
    pickles: tuple[bytes, ...]
    parameters: tuple[str, ...]
    program: bytes
    obstacle: str | None
    form: ResultLayout
    trace_s: float
    compile_s: float
    created: float
    environment: bytes
    principal: str
    output: str = ""

    @property
    def recorded(self) -> RecordedCall:
        """The call that it was made for."""
        return RecordedCall(self.skeleton, self.sizes, self.pickles)

    def to_content(self) -> tuple[tuple[str, Any], ...]:
        """A literal for the disk."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        form = self.form.skeleton, self.form.order, self.form.inputs
        return tuple({**values, "form": form}.items())

    @classmethod
    def from_content(cls, content: Any) -> CallRecord:
        """What `to_content` made.

        Raises:
            ProtocolError, TypeError, ValueError: when it is something else.
        """
        values = dict(content)
        values.pop("said", None)  # earlier versions kept what a function printed as well
        return cls(**{**values, "form": ResultLayout.of(*values["form"])})


def call_name(function: Function, arguments: Arguments) -> bytes | None:
    """Sixteen bytes for a call that are the same in every process; None when it can have none."""
    if not function.is_lasting:
        return None
    try:
        wide = keeps_64_bits(function.options)
        signature = lasting_signature(*arguments, function.statics, wide=wide)
    except Exception:  # noqa: BLE001  such as objects without content; nothing is lost but time
        return None
    return hashlib.blake2b(function.key + signature, digest_size=16).digest()
