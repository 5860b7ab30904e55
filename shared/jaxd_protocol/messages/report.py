"""What a server has done for whom, as plain data: what `jaxd report` and other views show of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Final, Self

from jaxd_protocol.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Use:
    """What client processes were spared, and what was built for them.

    Attributes:
        found: how often a process used a program first that was in memory.
        loaded: how often one was loaded from disk for it.
        compiled: how often it was traced and compiled.
        saved_s: seconds of tracing and compiling that `found` and `loaded` stand for: those that
            the program took when it was made, less what loading it took. Once for each process
            and program, however many calls there were.
        built_s: seconds that `compiled` took.
    """

    found: int = 0
    loaded: int = 0
    compiled: int = 0
    saved_s: float = 0.0
    built_s: float = 0.0

    def __add__(self, other: Use) -> Use:
        """Both together."""
        return Use(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Use)))


_KEPT_NUMBERS: Final = (
    *("limit_bytes", "call_bytes", "snapshot_bytes", "snapshot_seconds", "snapshot_age_s", "calls"),
    *("call_seconds", "limit_seconds"),
)


def kept_report(found: Any) -> dict[str, Any]:
    """What a client says that it keeps to make its arrays again, without anything else.

    Args:
        found: numbers, why there are no more snapshots, and why how many bytes cannot be made.

    Raises:
        ValueError: when it is something else.
    """
    values = dict(found)
    numbers = {name: values.get(name) for name in _KEPT_NUMBERS}
    lost = dict(values.get("lost_with_worker") or {})
    texts = [str(values.get("stopped") or ""), *map(str, lost)]
    for each in (*filter(lambda each: each is not None, numbers.values()), *lost.values()):
        if type(each) not in (int, float) or not isfinite(each):
            raise ValueError(each)
    if not all(text.isprintable() for text in texts):
        raise ValueError("a text has characters that cannot be shown")
    return {**numbers, "stopped": texts[0], "lost_with_worker": lost}


@dataclass(frozen=True, slots=True)
class NamedUse:
    """The use of one principal, or that of one function.

    Attributes:
        name: of the principal, or of the function.
        use: what it was.
        where: file and line of the function; empty when that is not known.
    """

    name: str
    use: Use
    where: str = ""


@dataclass(frozen=True, slots=True)
class Needless:
    """Programs that were made and need not have been.

    Attributes:
        kind: `scalar`, `static`, `undeclared`, `shapes`, `weak` or `unchanged`.
        function: its name.
        where: file and line to change; empty when that is not known.
        subject: what it is about: ``argument n``, ``global LR``.
        programs: how many there need not have been.
        seconds: what the cheapest so many of them took.
        text: what is wrong, and what to do.
    """

    kind: str
    function: str
    where: str
    subject: str
    programs: int
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a principal may see of what a server has done.

    Attributes:
        since: when counting began, as `time.time()`.
        outlives_server: whether the counts are kept over restarts.
        total: of all that follows.
        principals: the use of each, most saved first.
        functions: the use of each, most saved first.
        needless: most seconds first.
    """

    since: float
    outlives_server: bool
    total: Use
    principals: tuple[NamedUse, ...]
    functions: tuple[NamedUse, ...]
    needless: tuple[Needless, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """What `to_dict` made; the further fields of a newer server are left out.

        Raises:
            ProtocolError: when it is something else.
        """
        try:
            return cls(
                float(content["since"]),
                bool(content["outlives_server"]),
                _use(content["total"]),
                tuple(map(_named, content["principals"])),
                tuple(map(_named, content["functions"])),
                tuple(map(_needless, content["needless"])),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                "the report of the server cannot be read. Install the same jaxd on both sides."
            ) from error


def _use(content: Mapping[str, Any]) -> Use:
    found, loaded, compiled = (int(content[name]) for name in ("found", "loaded", "compiled"))
    return Use(found, loaded, compiled, float(content["saved_s"]), float(content["built_s"]))


def _named(content: Mapping[str, Any]) -> NamedUse:
    return NamedUse(str(content["name"]), _use(content["use"]), str(content["where"]))


def _needless(content: Mapping[str, Any]) -> Needless:
    kind, function, where = (str(content[name]) for name in ("kind", "function", "where"))
    subject, text = str(content["subject"]), str(content["text"])
    programs, seconds = int(content["programs"]), float(content["seconds"])
    return Needless(kind, function, where, subject, programs, seconds, text)
