"""What a walk notes on its way, beside the digest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.fingerprint.facts import Archives, Fingerprint, Note, Part, Reach, Unshared
from jaxd_protocol.fingerprint.guards import Guards
from jaxd_protocol.fingerprint.tokens import digest
from jaxd_protocol.fingerprint.world import World
from jaxd_protocol.packages import Package, import_root

if TYPE_CHECKING:
    from jaxd_protocol.fingerprint.walk import Walked

__all__ = ["MAX_PARTS", "Findings", "shown"]

MAX_PARTS: Final = 5000
"""So many parts of a fingerprint are named; a function that reaches more is still hashed whole."""


class Findings:
    """Parts, packages, notes, and the path that led to what is at hand.

    Attributes:
        world: where modules and packages are asked for.
        archives: the user's packages that count as files; None when all counts by value.
        reach, guards: as in `Walked`.
        label: how the value at hand is read: ``global CONFIG['lr']``.
        where: file and line of the code that reads it.
        line: of the read at hand, where that is known.
        quiet: whether the code at hand runs after tracing as well, in a callback.
    """

    def __init__(self, world: World, archives: Archives | None) -> None:
        self.world = world
        self.archives = archives
        self.reach = Reach(archives=archives)
        self.guards = Guards()
        self.label = ""
        self.where = ""
        self.quiet = False
        self.line = 0
        self._trail: tuple[str, ...] = ()
        self._parts: dict[tuple[str, str, str], Part] = {}
        self._local: dict[str, bool] = {}
        self._packages: dict[str, Package] = {}
        self._carried: set[str] = set()
        self._unshared: dict[str, Unshared] = {}
        self._notes: dict[Note, None] = {}
        self._absorbed: set[int] = set()

    def fingerprint(self, content: bytes) -> Fingerprint:
        """All that was found, under this digest."""
        return Fingerprint(
            content,
            tuple(self._parts.values()),
            self._packages,
            self._local,
            frozenset(self._carried),
            tuple(self._unshared.values()),
            tuple(self._notes),
        )

    @property
    def is_shared(self) -> bool:
        """Whether all that was met has a content."""
        return not self._unshared

    def absorb_once(self, cls: type, part: Walked) -> None:
        """Takes over what the walk over a class has found."""
        if id(cls) in self._absorbed:
            return
        self._absorbed.add(id(cls))
        found, path = part.fingerprint, " → ".join(self._trail)
        self.reach.absorb(part.reach)
        self.guards.absorb(part.guards)
        for part_of in found.parts:
            if len(self._parts) < MAX_PARTS:
                self._parts.setdefault((part_of.kind, part_of.name, part_of.where), part_of)
        self._local.update(found.local)
        self._packages.update(found.packages)
        self._carried |= found.carried
        for each in found.unshared:
            one = each._replace(path=f"{path} → {each.path}")
            self._unshared.setdefault(one.path, one)
        for note in found.notes:
            self._notes[note._replace(path=f"{path} → {note.path}")] = None

    def part(
        self, kind: str, name: str, content: bytes, text: str = "", where: str | None = None
    ) -> None:
        """Notes a named part; without `where`, the code at hand reads it."""
        where = self.where if where is None else where
        key = (kind, name, where)
        if name and key not in self._parts and len(self._parts) < MAX_PARTS:
            self._parts[key] = Part(kind, name, digest(content)[:8], text, where)

    def is_local(self, module: str) -> bool:
        """Whether a module travels by value."""
        if type(module) is not str:  # a class written in C may have anything as its __module__
            return False
        known = self._local.get(module)
        if known is None:
            known = self._local[module] = self.world.is_local(module)
        return known

    def carry(self, module: str, name: str, value: Any) -> None:
        """An installed module's attribute counts by its value, and travels."""
        self.count(module, name)
        self.reach.carried.setdefault(module, {})[name] = value

    def count(self, module: str, name: str) -> None:
        """Something installed counts by its value."""
        self._carried.add(f"{module}:{name}")

    def path(self) -> str:
        """How the value at hand was reached: ``f → helper → CONFIG['stream']``."""
        label = self.path_of_label()
        return " → ".join((*self._trail, label) if label else self._trail)

    def path_of_label(self) -> str:
        """The value at hand as code would write it: ``CONFIG['lr']``."""
        return self.label.partition(" ")[2] or self.label

    def untravelable(self, value: Any, reason: str) -> None:
        """Notes an object that has no content and cannot be packed."""
        kind = type(value)
        name = (
            kind.__qualname__
            if kind.__module__ == "builtins"
            else (f"{kind.__module__}.{kind.__qualname__}")
        )
        self.reach.untravelable[id(value)] = Unshared(self.path(), name, reason)
        self.reach.objects.append(value)  # keeps its id from being used again

    def note(self, what: str) -> None:
        """Notes that code reads something which no key can hold."""
        if self.quiet:
            return
        where = f"{self.where.rpartition(':')[0]}:{self.line}" if self.line else self.where
        self._notes[Note(" → ".join(self._trail), what, where)] = None

    def package_of(self, module: str) -> Package | None:
        """The distribution that an installed module belongs to; None for Python's own."""
        top = import_root(module)
        package = self._packages.get(top)
        if package is None:
            package = self.world.package(module)
            if package is not None:
                self._packages[top] = package
        return package

    def has_no_content(self, value: Any, reason: str) -> None:
        """Notes an object that makes the fingerprint unlike any other."""
        self.untravelable(value, reason)
        found = self.reach.untravelable[id(value)]
        self._unshared.setdefault(found.path, found)


def shown(value: Any) -> str:
    """A value in a few characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a user's __repr__, or a number of a million digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
