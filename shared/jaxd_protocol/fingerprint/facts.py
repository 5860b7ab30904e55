"""What a walk over a function finds: the vocabulary of the fingerprint. Data only.

A fresh process makes these classes before its first call, and so they are plain ones and named
tuples: a dataclass takes ten times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxd_protocol.packages import Package

if TYPE_CHECKING:
    from jaxd_protocol.fingerprint.archives import Archives

__all__ = ["Fingerprint", "Note", "Part", "Reach", "Slice", "Source", "Unshared"]


class Part(NamedTuple):
    """One named thing that a fingerprint was made of, so that two can be compared.

    Attributes:
        kind: `function`, `class`, `value`, `array`, `module`, `package`, `variable` (of the
            environment), `installed` (a setting in an installed class) or `archived` (a plain
            value in a module that travels as a file).
        name: what people call it: ``helper normalize``, ``global LR``, ``closure cfg.width``,
            ``package optax``. Equal names are one thing before and after a change.
        digest: eight bytes over its own content, without that of the parts it refers to.
        shown: its value in a few characters where it has one: ``0.1``, ``float32[3,4]``; or empty.
        where: file and line of code (``utils.py:41``), else the path that led there.
    """

    kind: str
    name: str
    digest: bytes
    shown: str = ""
    where: str = ""


class Unshared(NamedTuple):
    """Something without a content that could be hashed.

    Attributes:
        path: how it was reached: ``f → CONFIG['stream']``.
        type_name: what it is: ``generator``.
        reason: why it has no content.
    """

    path: str
    type_name: str
    reason: str


class Note(NamedTuple):
    """Something that a traced function reads and that no key can hold.

    Attributes:
        path: the function that reads it.
        what: what it reads: ``the clock (time.time)``.
        where: file and line.
    """

    path: str
    what: str
    where: str


class Source(NamedTuple):
    """A local module that reached code imports and that this process has not imported yet.

    Attributes:
        code: its compiled source.
        is_package: whether it has submodules.
    """

    code: CodeType
    is_package: bool


class Slice:
    """A container of which only some entries are reached.

    Attributes:
        value: the object, module or dict.
        names: attribute names; keys of a dict.
    """

    __slots__ = ("names", "value")

    def __init__(self, value: Any, names: set[Any] | None = None) -> None:
        self.value = value
        self.names: set[Any] = set() if names is None else names


class Reach:
    """All that a walk reached, as the packing needs it.

    Attributes:
        slices: by `id`, the local modules, plain objects and dicts that are read only in part.
        whole: `id` of those that can be read as a whole, whatever `slices` says.
        imports: local modules that import statements in reached code name, and their parents.
        sources: those of them that are not imported yet.
        carried: for installed modules by name, values of attributes that the server's own copy of
            the module need not have: a patched function, a constant, the environment's variables.
        stand_ins: `id` of what has another form on a server (the environment, absl's flags), with
            what is shipped instead.
        untravelable: `id` of what can neither be hashed nor packed, with what is known of it.
        numbered: everything that has a number, by number.
        objects: whatever else was reached and has to be kept alive, because its `id` stands for it:
            classes, and what these lead to.
        archives: the user's packages that travel as files, when there are any.
        live: what is only given to be called back: it stays where it is, whatever it holds.
    """

    def __init__(self, archives: Archives | None = None) -> None:
        self.slices: dict[int, Slice] = {}
        self.whole: set[int] = set()
        self.imports: dict[str, ModuleType] = {}
        self.sources: dict[str, Source] = {}
        self.carried: dict[str, dict[str, Any]] = {}
        self.stand_ins: dict[int, Any] = {}
        self.untravelable: dict[int, Unshared] = {}
        self.numbered: list[Any] = []
        self.objects: list[Any] = []
        self.archives = archives
        self.live: list[Any] = []

    def absorb(self, part: Reach) -> None:
        """Adds what a part of the walk has reached."""
        for name, found in part.slices.items():
            self.slices.setdefault(name, Slice(found.value)).names.update(found.names)
        self.whole |= part.whole
        self.imports.update(part.imports)
        self.sources.update(part.sources)
        for module, values in part.carried.items():
            self.carried.setdefault(module, {}).update(values)
        for key, stand_in in part.stand_ins.items():
            mine: Any = self.stand_ins.setdefault(key, stand_in)
            if isinstance(mine, dict):
                mine.update(stand_in)
            elif isinstance(mine, SimpleNamespace):
                vars(mine).update(vars(stand_in))
        self.untravelable.update(part.untravelable)
        self.objects += part.numbered  # its numbers are its own
        self.objects += part.objects

    def part_of(self, value: Any) -> set[Any] | None:
        """The names that are read of a module, object or dict; None when it counts whole."""
        found = self.slices.get(id(value))
        return None if found is None or id(value) in self.whole else found.names


class Fingerprint(NamedTuple):
    """What a function means.

    Attributes:
        digest: sixteen bytes: equal exactly when all that can decide about a result is equal.
        parts: what it was made of, in the order of the walk.
        packages: installed packages that are reached, by top-level import name.
        local: for each module that the walk met, whether it is the user's own.
        carried: `module:attribute` of installed modules whose values are part of the digest.
        unshared: what has no content to hash; with any of it the digest is unique.
        notes: what is read while tracing and no key can hold.
    """

    digest: bytes
    parts: tuple[Part, ...]
    packages: Mapping[str, Package]
    local: Mapping[str, bool]
    carried: frozenset[str]
    unshared: tuple[Unshared, ...]
    notes: tuple[Note, ...]
