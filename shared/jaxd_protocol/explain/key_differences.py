"""What differs between two keys, in sentences that a person can act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd_protocol.jit.options import CONFIG_DEFAULTS, Options
from jaxd_protocol.jit.transforms import describe_transformations

if TYPE_CHECKING:
    from jaxd_protocol.fingerprint.data_model import Part
    from jaxd_protocol.packages.distributions import Package


_CODE_KINDS: Final = ("function", "class")
_INSTALLED_KINDS: Final = ("package", "python")
_MAX_IN_SUMMARY: Final = 3
_MAX_LINE: Final = 300


class Difference(NamedTuple):
    """One difference between the requested key and a known one.

    Attributes:
        kind: that of the part, or `argument`, `option`, `config`, `dependency`, `structure`,
            `unknown`.
        name: what differs: ``global LR``, ``argument x``, ``jax_enable_x64``.
        change: `changed`, `added` or `removed`.
        before, after: its value on both sides, as far as it has one that can be shown.
        where: file and line of code.
        text: the whole of it as one sentence.
    """

    kind: str
    name: str = ""
    change: str = "changed"
    before: str = ""
    after: str = ""
    where: str = ""
    text: str = ""

    def to_dict(self) -> dict[str, str]:
        """For JSON."""
        return self._asdict()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Difference:
        """What `to_dict` made; a newer server's further fields are left out."""
        return cls(*(str(fields.get(name, "")) for name in cls._fields))

    @classmethod
    def of_values(cls, kind: str, name: str, before: str, after: str) -> Difference:
        """For something that had one value and has another."""
        text = f"{name}: {before} → {after}"
        return cls(kind, name, before=before, after=after, text=text)

    @classmethod
    def of_digests(cls, name: str, before: bytes, after: bytes) -> Difference:
        """For something of a process of which only digests are known; see `with_values`."""
        return cls("process", name, "changed", before.hex(), after.hex(), "", f"{name}: changed")

    def with_values(self, shown: Callable[[str], str | None]) -> Difference:
        """The same with what this process has had of it.

        Args:
            shown: by the digest in hex, a value as people read it; None for one that it never had.
        """
        if self.kind != "process" or self.change != "changed":
            return self
        before, after = shown(self.before), shown(self.after)
        text = f"{self.name}: changed"
        if before is not None and after is not None:
            text = f"{self.name}: {before} → {after}"
        elif after is not None:
            text = f"{self.name}: changed to {after}"
        return self._replace(before=before or "", after=after or "", text=text)


def part_differences(before: Sequence[Part], after: Sequence[Part]) -> tuple[Difference, ...]:
    """What changed between two fingerprints that are not equal.

    Parts with equal names are one thing; of several with the same name, those that are equal go
    together first and the others in order. First what changed, then what is new, then what is gone.
    """
    if not before or not after:
        return (_UNKNOWN,)
    old, new = _by_name(_helpers(before)), _by_name(_helpers(after))
    changed, added, removed = [], [], []
    for name in {**new, **old}:
        gone, come = _without_unchanged(old.get(name, []), new.get(name, []))
        changed += [_changed(was, now) for was, now in zip(gone, come, strict=False)]
        added += [_added(part) for part in come[len(gone) :]]
        removed += [_removed(part) for part in gone[len(come) :]]
    found: dict[str, Difference] = {}  # a global that two helpers read changes once
    for difference in changed + added + removed:
        found.setdefault(difference.text, difference)
    return tuple(found.values()) or (_STRUCTURE,)


def option_differences(before: Options, after: Options) -> tuple[Difference, ...]:
    """Which options, and which settings of jax, differ."""
    return tuple(
        difference
        for name in Options._fields
        for difference in _option_differences(name, getattr(before, name), getattr(after, name))
    )


def _option_differences(name: str, was: Any, now: Any) -> Iterator[Difference]:
    if name == "config":
        yield from _entries(
            name, {**CONFIG_DEFAULTS, **dict(was)}, {**CONFIG_DEFAULTS, **dict(now)}
        )
    elif name == "compiler_options":
        yield from _entries("option", dict(was), dict(now))
    elif was == now and type(was) is type(now):
        return
    elif name == "transformations":
        before, after = describe_transformations(was), describe_transformations(now)
        if before == after:  # those that jax adds may differ in nothing that is shown
            after += ", for other arguments"
        yield Difference.of_values("option", name, before, after)
    else:
        yield Difference.of_values("option", name, repr(was), repr(now))


def dependency_difference(before: Package, after: Package | None) -> Difference:
    """What has become of a package on the server that a program depends on, named or not."""
    name, was = f"dependency {before.name}", before.version
    if after is None:
        return Difference("dependency", name, "removed", was, text=f"{name} {was} is gone")
    if after.version == was:
        text = f"{name} {was}: its installed files changed"
    else:
        text = f"{name} {was} → {after.version}"
    return Difference("dependency", name, "changed", was, after.version, text=text)


def similarity(one: Sequence[Part], other: Sequence[Part]) -> float:
    """Which share of the parts, other than what is installed, two fingerprints have in common."""
    first, second = (
        {(part.name, part.digest) for part in parts if part.kind not in _INSTALLED_KINDS}
        for parts in (one, other)
    )
    union = len(first | second)
    return len(first & second) / union if union else 0.0


def summarize(differences: Sequence[Difference]) -> str:
    """The first few of them, and how many more there are."""
    texts = [difference.text for difference in differences[:_MAX_IN_SUMMARY]]
    if len(differences) > _MAX_IN_SUMMARY:
        texts.append(f"and {len(differences) - _MAX_IN_SUMMARY} more")
    line = " ".join("; ".join(texts).split())
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…"


_UNKNOWN: Final = Difference(
    "unknown",
    text="its code, or something that it reads, changed (which, is not known of this function)",
)
_STRUCTURE: Final = Difference(
    "structure", text="every part is the same, but they refer to each other in another way"
)


def _by_name(parts: Iterable[Part]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.name, []).append(part)
    return found


def _helpers(parts: Sequence[Part]) -> Iterator[Part]:
    """The parts, other functions than the first one called what they are to it."""
    for index, part in enumerate(parts):
        kind, _, name = part.name.partition(" ")
        yield part._replace(name=f"helper {name}") if index and kind == "function" else part


def _without_unchanged(before: list[Part], after: list[Part]) -> tuple[list[Part], list[Part]]:
    left = list(before)
    come = []
    for part in after:
        twin = next((was for was in left if was.digest == part.digest), None)
        if twin is None:
            come.append(part)
        else:
            left.remove(twin)
    return left, come


def _changed(was: Part, now: Part) -> Difference:
    place = f" ({now.where})" if now.where and now.kind in _CODE_KINDS else ""
    differ = was.shown != now.shown and was.shown and now.shown
    if was.kind != now.kind:
        text = f"{now.name}{place}: was {_describe(was)}, is now {_describe(now)}"
    elif now.kind in _CODE_KINDS:
        text = f"{now.name}{place}: code changed"
    elif now.kind in _INSTALLED_KINDS:
        text = f"{now.name} " + (
            f"{was.shown} → {now.shown}" if differ else f"{now.shown}: its installed files changed"
        )
    elif differ:
        text = f"{now.name}: {was.shown} → {now.shown}"
    else:
        text = f"{now.name}: contents changed" + (f" ({now.shown})" if now.shown else "")
    if now.kind == was.kind == "process":  # only the client can tell what was there
        return Difference.of_digests(now.name, was.digest, now.digest)
    where = now.where or was.where
    return Difference(now.kind, now.name, "changed", was.shown, now.shown, where, text)


def _describe(part: Part) -> str:
    return f"{part.kind} {part.shown}".rstrip()


def _added(part: Part) -> Difference:
    text = f"now {_use_of(part)}"
    return Difference(part.kind, part.name, "added", "", part.shown, part.where, text)


def _removed(part: Part) -> Difference:
    text = f"no longer {_use_of(part)}"
    return Difference(part.kind, part.name, "removed", part.shown, "", part.where, text)


def _use_of(part: Part) -> str:
    """That a function uses a part: ``reads global LR (0.1)``."""
    verb = "reads" if part.kind in ("value", "array", "variable", "process") else "uses"
    details = part.where if part.kind in _CODE_KINDS else part.shown
    if details and part.kind not in _INSTALLED_KINDS:
        details = f"({details})"
    return f"{verb} {part.name} {details}".rstrip()


def _entries(
    kind: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Difference]:
    for name in sorted({**before, **after}):
        was, now = (repr(side[name]) if name in side else "not set" for side in (before, after))
        if was != now:
            yield Difference.of_values(kind, name, was, now)
