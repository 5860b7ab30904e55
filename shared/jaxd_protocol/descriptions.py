"""What is behind a key, as far as it is needed to say how two keys differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxd_protocol.calls import Options
from jaxd_protocol.errors import ProtocolError

if TYPE_CHECKING:
    from jaxd_protocol.fingerprint.facts import Part

__all__ = ["Description", "parameter_names"]


@dataclass(frozen=True, slots=True)
class Description:
    """A function with its options.

    Attributes:
        name: what people call it, with what it is nested in.
        fingerprint: what it means; empty when that is not known.
        options: how it is compiled.
        parts: what the fingerprint was made of; empty when that is not known.
        parameters: see `parameter_names`.
        shared: whether all of it has a content; else no two processes have it in common.
    """

    name: str
    fingerprint: bytes
    options: Options
    parts: tuple[Part, ...] = ()
    parameters: tuple[str, ...] = ()
    shared: bool = True

    @property
    def short_name(self) -> str:
        """The name without what it is nested in."""
        return self.name.rpartition(".")[2]

    def to_message(self) -> tuple[Any, ...]:
        """Plain values for the wire."""
        parts = tuple(tuple(part) for part in self.parts)
        options = self.options.to_bytes()
        return self.name, self.fingerprint, options, parts, self.parameters, self.shared

    @classmethod
    def from_message(cls, message: Any) -> Description:
        """What `to_message` made.

        Raises:
            ProtocolError: when it is something else.
        """
        from jaxd_protocol.fingerprint.facts import Part

        try:
            name, fingerprint, options, parts, parameters, shared = message
            read = tuple(Part(*part) for part in parts)
            texts = [name, *parameters]
        except (TypeError, ValueError) as error:
            raise ProtocolError("the description of a function cannot be read.") from error
        texts += [text for part in read for text in (*part[:2], *part[3:])]
        if not all(type(text) is str for text in texts):
            raise ProtocolError("the description of a function has no text where it should.")
        return cls(
            name, fingerprint, Options.from_bytes(options), read, tuple(parameters), bool(shared)
        )


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters that can be given by position; ``*rest`` for any number of them.

    Empty when the function does not say.
    """
    import inspect

    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    starred = inspect.Parameter.VAR_POSITIONAL
    by_name_only = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return tuple(
        f"*{p.name}" if p.kind is starred else p.name for p in found if p.kind not in by_name_only
    )
