"""The walk: over everything that a function reaches, in an order that is always the same.

It goes breadth first. What has an identity (functions, classes, modules, objects, mutable
containers) gets a number when it is met first, and is named by it afterwards, so cycles end and
chains may be of any length. What is only a value is written where it stands. Each kind of thing
has a function that takes it apart, which `Handlers` passes to the walk.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.fingerprint.canonical_bytes import ATOMS, DIGEST_SIZE, atom, digest, tag
from jaxd_protocol.fingerprint.data_model import (
    Archives,
    CallbackList,
    Fingerprint,
    ImpureRead,
    Part,
    ReachedObjects,
    Steps,
    UnsharedObject,
)
from jaxd_protocol.fingerprint.guards import Guards, all_changes_are_seen
from jaxd_protocol.fingerprint.process_view import ProcessView
from jaxd_protocol.fingerprint.unpatched import refuse_patched_class, refuse_patched_function
from jaxd_protocol.packages.distributions import Package, import_root

MAX_PARTS: Final = 5000
"""So many parts of a fingerprint are named; a function that reaches more is still hashed whole."""

_MAX_DEPTH: Final = 64
"""Nested tuples deeper than this are taken apart later, instead of on top of each other."""

_MAX_KEPT: Final = 16
"""A walk over a part may have found much: so many are kept at a moment."""

EmitContent = Callable[["Walk", Any], None]


class CyclicClasses(Exception):
    """A class refers back to one that is being walked over: both belong to one walk.

    Attributes:
        cls: the class that is referred to.
    """

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.cls = cls


class WalkResult(NamedTuple):
    """A finished walk.

    Attributes:
        fingerprint: what the function means.
        reach: what is needed to pack it.
        guards: whether it still means that.
        classes: those whose digests are part of this one. In a walk over a class what was found in
            them is not in the other attributes.
        reached: of a walk over a class: all classes that it leads to, by `id`.
        is_lasting: of a walk over a class: whether any other walk at this moment would find the
            same, in it and in the classes below.
        is_watched: likewise, whether a later one would as long as the guards hold.
        members: the walks over those that hang with it, itself among them, by `id`.
    """

    fingerprint: Fingerprint
    reach: ReachedObjects
    guards: Guards
    classes: tuple[WalkedClass, ...] = ()
    reached: Mapping[int, type] = MappingProxyType({})
    is_lasting: bool = False
    is_watched: bool = False
    members: Mapping[int, WalkResult] = MappingProxyType({})


class WalkedClass(NamedTuple):
    """A class that a walk has met.

    Attributes:
        cls: the class.
        found: what the walk over it has found.
        path: the way to it, as messages name it.
    """

    cls: type
    found: WalkResult
    path: str


class SharedFindings:
    """What walks at one moment share, as seen from one process.

    Args:
        kept: walks over classes that were made at other moments, by `id`.

    Attributes:
        classes: walks over classes, by `id`.
        unpatched: what is installed and was found as it was installed, by `id`.
        carries: for attributes of installed modules, their values and whether these travel along.
        parts: walks over parts of what is packed, by `id` and by what is read of them beside.
    """

    def __init__(self, kept: BoundedDict[int, WalkResult] | None = None) -> None:
        self._kept = kept
        self.classes: dict[int, WalkResult] = {}
        self.unpatched: dict[int, Any] = {}
        self.carries: dict[tuple[int, str], tuple[ModuleType, Any, bool]] = {}
        self.parts = BoundedDict[tuple[int, Collection[Any]], tuple[Any, WalkResult]](_MAX_KEPT)

    def add(self, made: Mapping[int, WalkResult]) -> None:
        """Walks over classes that hang together, which last."""
        self.classes.update(made)
        if self._kept is not None and all(each.is_watched for each in made.values()):
            self._kept.update(made)

    def find(self, walk: Walk, cls: Any) -> WalkResult | None:
        """A walk over a class that was made at this moment, or would find now what it has found."""
        found = self.classes.get(id(cls))
        if found is not None or self._kept is None:
            return found
        found = self._kept.use(id(cls))
        if found is None or found.reached[id(cls)] is not cls:
            return None
        parts = _with_those_below(found)
        if not all(self._is_here(each) or walk.still_finds(each) for each in parts):
            return None
        for each in parts:
            self.classes.update(each.members)
        return found

    def _is_here(self, found: WalkResult) -> bool:
        return any(self.classes.get(number) is one for number, one in found.members.items())


def _with_those_below(found: WalkResult) -> list[WalkResult]:
    """A walk over a class, and those over what it leads to, one for those that hang together."""
    seen: dict[int, WalkResult] = {}
    left = [found]
    while left:
        each = left.pop()
        if id(each.members) not in seen:
            seen[id(each.members)] = each
            left += [one.found for one in each.classes]
    return list(seen.values())


class Handlers(NamedTuple):
    """The functions that take objects apart. They import the walk, which imports none of them.

    Attributes:
        root: appends what a walk starts from.
        object: appends anything that is not an atom.
        follow: appends what steps from a value lead to.
        patched: appends an attribute of an installed module, where that was replaced.
        archive: appends the code of the archived packages, at the end of a walk with any.
        reflected: appends what the reached code reads beside that, at the end of a walk.
    """

    root: Callable[[Walk, Any], None]
    object: Callable[[Walk, Any], None]
    follow: Callable[[Walk, Any, Steps], None]
    patched: Callable[[Walk, ModuleType, Steps], None]
    archive: Callable[[Walk], None]
    reflected: Callable[[Walk], None]


class Walk:
    """One walk; to be used once, in one thread.

    Attributes:
        process_view: what is known of modules and packages.
        archives: the user's packages that count as files; None when all counts by value.
        listed: what `callbacks=` lists.
        reach, guards: as in `WalkResult`.
        label: how the value at hand is read: ``global CONFIG['lr']``.
        where: file and line of the code that reads it.
        line: of the read at hand, where that is known.
        quiet: whether the code at hand runs after tracing as well, in a callback.
        classes_inside: classes that are part of this walk, by `id`, with their names; others count
            by their digest.
        open_classes: those of the walks that this one is a part of.
        read_by: objects and the methods by which they are read, by `id`.
        passed_to: objects, the functions that they are passed to, and the parameters, by `id`.
        is_inner: whether it is a part of another walk.
        archived: modules in archives of which something is reached.
        shared: what others at this moment have found.
    """

    def __init__(
        self,
        handlers: Handlers,
        process_view: ProcessView,
        ignore: Collection[str] = (),
        archives: Archives | None = None,
        listed: CallbackList | None = None,
    ) -> None:
        self._handlers = handlers
        self.process_view = process_view
        self.archives = archives
        self.listed = listed
        self.shared = SharedFindings()
        self._cuts: list[int] = []  # sets that one of their elements leads back to
        self._ignore = frozenset(ignore)
        self.is_inner = False
        self._open_sets: frozenset[int] = frozenset()
        self._classes: dict[int, WalkResult] = {}
        self._leads_to: dict[int, dict[int, type]] = {}  # for classes, others that are not finished
        self.open_classes: frozenset[int] = frozenset()
        self.classes_inside: dict[int, tuple[Any, str]] = {}
        self.read_by: set[tuple[int, int]] = set()
        self.passed_to: set[tuple[int, int, str]] = set()
        self.archived: set[str] = set()
        # what is at hand
        self.label = ""
        self.where = ""
        self.line = 0
        self.quiet = False
        self._trail: tuple[str, ...] = ()
        self._depth = 0
        # what has been written, and is to be
        self._stream = bytearray(process_view.salt)
        self._numbers: dict[int, int] = {}
        self._callback_numbers: dict[int, int] = {}
        self._partly_read: set[int] = set()
        self._queue: deque[tuple[EmitContent, Any, int, str, str, tuple[str, ...]]] = deque()
        # what has been found beside the digest
        self.reach = ReachedObjects(archives=archives)
        self.guards = Guards()
        self._parts: dict[tuple[str, str, str], Part] = {}
        self._local: dict[str, bool] = {}
        self._packages: dict[str, Package] = {}
        self._carried: set[str] = set()
        self._unshared: dict[str, UnsharedObject] = {}
        self._notes: dict[ImpureRead, None] = {}
        self._met: dict[int, WalkedClass] = {}
        self._absorbed: set[int] = set()

    def run(self, value: Any, name: str) -> WalkResult:
        """Walks over `value`, which is called `name` in messages."""
        self._trail = (name,)
        if self.listed is not None and not self.is_inner:
            self.tag("callbacks")
            for entry in self.listed.entries:
                for each in entry:
                    self.text(each)
        self.reach.targets.root = value
        self._handlers.root(self, value)
        self.emit_queued()
        if not self.is_inner:
            self._handlers.reflected(self)
        if self.archives is not None and not self.is_inner:
            self._handlers.archive(self)
            self.absorb_classes()
        self._replace_callback_only()
        if self._unshared:
            self._stream += os.urandom(DIGEST_SIZE)
        self.guards.settle()
        fingerprint = Fingerprint(
            digest(self._stream),
            tuple(self._parts.values()),
            self._packages,
            self._local,
            frozenset(self._carried),
            tuple(self._unshared.values()),
            tuple(self._notes),
        )
        return WalkResult(fingerprint, self.reach, self.guards, tuple(self._met.values()))

    def emit_queued(self) -> None:
        """Appends the content of what has a number, and takes over what classes have found."""
        while self._queue:
            body, value, number, self.label, self.where, self._trail = self._queue.popleft()
            self._stream += b"#%d:" % number
            self._depth = 0
            self.quiet = False
            body(self, value)
        if not self.is_inner:
            self.absorb_classes()

    # writing ----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Appends bytes that cannot be mistaken for others: a tag, an atom, a digest."""
        self._stream += data

    def tag(self, name: str) -> None:
        """Appends the name of a kind of thing."""
        self._stream += tag(name)

    def text(self, value: str | int) -> None:
        """Appends a name or a count."""
        data = atom(value)
        assert data is not None
        self._stream += data

    def emit(self, value: Any) -> None:
        """Appends a value of any type, or the number that it has."""
        data = atom(value) if type(value) in ATOMS else None
        if self._ignore and self.label_as_code() in self._ignore:
            self.tag("ignored")  # it travels, and does not count
            inner = self._sub_walk()
            inner.run(value, self.label_as_code())
            inner.absorb_classes()
            self.reach.absorb(inner.reach.unread())
        elif data is not None:
            self._stream += data
            self.part("value", self.label, data, short_repr(value))
        else:
            self._handlers.object(self, value)

    def emit_labelled(self, label: str, value: Any) -> None:
        """Appends a value that is read in another way than the one at hand."""
        before = self.label
        self.label = label
        try:
            self.emit(value)
        finally:
            self.label = before

    def emit_child(self, step: str, value: Any) -> None:
        """Appends a value inside of the one at hand: `step` is ``.name`` or ``['key']``."""
        self.emit_labelled(self.label + step, value)

    def follow(self, value: Any, steps: Steps) -> None:
        """Appends what the steps from a value lead to; `label` says how the value is read."""
        self._handlers.follow(self, value, steps)

    def emit_if_patched(self, module: ModuleType, steps: Steps) -> None:
        """Appends what steps from an installed module lead to, where that was replaced."""
        self._handlers.patched(self, module, steps)

    def emit_uses(self, label: str, value: Any, uses: Mapping[Steps, int] | None) -> None:
        """Appends what is read of a value, with the line of each read; None: all of it."""
        if uses is None:
            self.emit_labelled(label, value)
            return
        self.text(len(uses))
        for steps, line in uses.items():
            before, self.label, self.line = self.label, label, line
            self.follow(value, steps)
            self.label = before

    def numbered(self, value: Any, body: EmitContent, name: str | None = None) -> None:
        """Appends the number of something with an identity; `body` takes it apart, later.

        Args:
            value: the object.
            body: appends its content.
            name: when it is a function or class: a station on the path to what it reaches.
        """
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._numbers)
            self.reach.numbered.append(value)
            trail = self._trail if name is None or name == self._trail[-1] else (*self._trail, name)
            self._queue.append((body, value, number, self.label, self.where, trail))
        self._stream += b"@%d;" % number

    def callback_only(self, value: Any) -> None:
        """Appends that something is given to be called back, and nothing of its content."""
        if self.is_inner:
            self.emit(value)  # the digest of a class does not depend on the function
            return
        self.tag("live")
        if type(value) in ATOMS:
            return
        owner = None if self.listed is None else self.listed.number_of(value)
        if owner is not None:
            self._emit_listed(value, owner)
            return
        number = self._callback_numbers.get(id(value))
        if number is None:
            number = self._callback_numbers[id(value)] = len(self._callback_numbers)
            self.reach.callback_only.append(value)
        self._stream += b"!%d;" % number

    def _emit_listed(self, value: Any, owner: int) -> None:
        from jaxd_protocol.fingerprint.client_object import ClientObject

        self._stream += b"?%d;" % owner
        self.reach.replacements[id(value)] = ClientObject(owner, listed=True)
        self.reach.objects.append(value)  # keeps its id from being used again

    def is_listed(self, value: Any, steps: Steps = ()) -> bool:
        """Whether a value that is read by these steps is one that `callbacks=` lists.

        Where it is read in another way as well, it counts like everything else.
        """
        owner = None if self.listed is None else self.listed.number_of(value)
        if owner is None or self.listed is None:
            return False
        is_read = bool(steps) and steps[0][0] != "!"
        if self.is_inner or (is_read and not self.listed.has(owner, str(steps[0][1]))):
            self.listed.counted.add(id(value))
            return False
        return True

    def mark_read_whole(self, value: Any) -> None:
        """A function gets the object itself: it cannot be one that stays with the client."""
        if self.listed is not None and self.listed.number_of(value) is not None:
            self.listed.counted.add(id(value))

    def mark_partly_read(self, value: Any) -> None:
        """Something is read of this object."""
        self._partly_read.add(id(value))

    def _replace_callback_only(self) -> None:
        """What is only given to be called back does not travel."""
        targets = self.reach.targets
        targets.objects = [
            each._replace(number=self._callback_numbers.get(id(each.root), -1))
            for each in targets.objects
        ]
        if not self.reach.callback_only:
            return
        from jaxd_protocol.fingerprint.client_object import ClientObject

        counted = self._numbers.keys() | self._partly_read
        for number, value in enumerate(self.reach.callback_only):
            if id(value) not in counted:
                self.reach.replacements[id(value)] = ClientObject(number)
        for each in targets.objects:
            part = self.reach.partial_reads.get(id(each.root))
            if part is not None and each.number >= 0 and {*each.names[:1]} - part.names:
                part.given[each.names[0]] = ClientObject(each.number, each.names[:1])

    def nested(self, value: Any, body: EmitContent) -> None:
        """Appends the content of a value without identity here, or later when it lies too deep."""
        if self._depth >= _MAX_DEPTH:
            self.numbered(value, body)
            return
        self._depth += 1
        try:
            body(self, value)
        finally:
            self._depth -= 1

    def unordered(self, items: Collection[Any]) -> None:
        """Appends the elements of a set, in an order that is the same everywhere."""
        if id(items) in self._open_sets:  # an element that leads back to its own set
            self._cuts.append(id(items))
            return
        alone = self._open_sets | {id(items)}
        digests = [(self._digest_alone(item, alone), item) for item in items]
        digests.sort(key=lambda each: each[0])
        self.text(len(digests))
        for content, item in digests:
            self._stream += content
            if type(item) not in ATOMS:
                self.emit(item)  # for what it reaches

    def _digest_alone(self, item: Any, open_sets: frozenset[int]) -> bytes:
        data = atom(item)
        if data is not None:
            return digest(data)
        inner = self._sub_walk(open_sets)
        return inner.run(item, self._trail[-1]).fingerprint.digest

    def _sub_walk(self, open_sets: frozenset[int] | None = None) -> Walk:
        """A walk for a part of this one, with numbers of its own."""
        inner = Walk(self._handlers, self.process_view, self._ignore, self.archives, self.listed)
        inner.is_inner = True
        inner._open_sets = open_sets or self._open_sets
        inner._classes = self._classes
        inner._leads_to = self._leads_to
        inner.open_classes = self.open_classes
        inner.classes_inside |= self.classes_inside
        inner.archived = self.archived
        inner.shared = self.shared
        inner._cuts = self._cuts
        return inner

    def walk_class(self, cls: type, name: str) -> WalkResult:
        """The content of a class, or a primitive, by itself, independent of what refers to it.

        On a server a class may have come with another function, and with it whatever it refers
        to. So what it shares with this function must not count: the walk over it has its own
        numbers, and only its digest is part of this one.

        Raises:
            CyclicClasses: when it leads to a class that is being walked over, and so to itself.
        """
        known = self._classes.get(id(cls)) or self._shared_walk(cls)
        leads_to = self._leads_to.setdefault(id(cls), {}) if known is None else known.reached
        for unfinished in (self.open_classes, self.classes_inside.keys()):
            for number in unfinished & leads_to.keys():
                raise CyclicClasses(leads_to[number])
        return self._walk_component(cls, name) if known is None else known

    def _walk_component(self, cls: type, name: str) -> WalkResult:
        """The content of a class that is not known, and of those that it hangs with.

        Classes that lead to each other are one component. Whichever is met first, the walk is that
        from the one whose name comes first, and each counts by the number that it has there. Of
        several with that name it is the one with the least digest; where that is the same, they
        are the same, and so are those that have the same numbers as seen from either.
        """
        first = self._walk_from(cls, name)
        members = first[0].classes_inside
        for each in members:
            self._leads_to[each] = {number: value for number, (value, _) in members.items()}
        least = min(map(_own_name, members.values()))
        begins = [each for each in members.values() if _own_name(each) == least]
        walks = [first if each[0] is cls else self._walk_from(*each) for each in begins]
        content = min(found.fingerprint.digest for _, found in walks)
        same = [each for each in walks if each[1].fingerprint.digest == content]
        made: dict[int, WalkResult] = {}
        found = self._completed(same[0][1], members)._replace(members=made)
        for each, (value, _) in members.items():
            number = min(inner.number_of(value) for inner, _ in same)
            own = found.fingerprint._replace(digest=digest(content + b"%d" % number))
            made[each] = found._replace(fingerprint=own)
        self._classes.update(made)
        if found.is_lasting:
            self.shared.add(made)
        return made[id(cls)]

    def _walk_from(self, cls: Any, name: str) -> tuple[Walk, WalkResult]:
        inner = self._sub_walk()
        inner.open_classes |= inner.classes_inside.keys()
        inner.classes_inside = {id(cls): (cls, name)}
        try:
            return inner, inner.run(cls, name)
        except CyclicClasses as cycle:
            self._leads_to[id(cls)][id(cycle.cls)] = cycle.cls
            raise

    def number_of(self, value: Any) -> int:
        """The number of something that was met, and that has one."""
        return self._numbers[id(value)]

    def _completed(self, found: WalkResult, members: Mapping[int, tuple[Any, str]]) -> WalkResult:
        """What was found in a component, with what it leads to, and whether it lasts.

        Lasting is what nothing around the walk has decided about. What stands for the environment
        is added to by a walk that takes it over.
        """
        reached = {number: value for number, (value, _) in members.items()}
        for each in found.classes:
            reached.update(each.found.reached)
        is_lasting = (
            not (self._open_sets or self._cuts or found.fingerprint.unshared)
            and not any(hasattr(each, "merge") for each in found.reach.replacements.values())
            and all(each.found.is_lasting for each in found.classes)
        )
        is_watched = (
            is_lasting
            and not found.reach.was_told
            and found.guards.complete
            and all_changes_are_seen(found.reach)
            and all(each.found.is_watched for each in found.classes)
            and not any("<locals>" in name for _, name in members.values())
        )
        return found._replace(reached=reached, is_lasting=is_lasting, is_watched=is_watched)

    def still_finds(self, found: WalkResult) -> bool:
        """Whether a walk over a class would find now what it has found at another moment."""
        for top, package in found.fingerprint.packages.items():
            if self.process_view.package(top) != package:
                return False
        if not found.guards.hold():
            return False
        for each in found.reach.installed:
            if isinstance(each, type | FunctionType):
                self.refuse_patched(each)
        return True

    def _shared_walk(self, cls: type) -> WalkResult | None:
        """What another walk has found in a class; None where this one might find something else."""
        found = None if self._open_sets or self._cuts else self.shared.find(self, cls)
        if found is not None:  # as if this walk had walked over it: all below is known then
            for number in found.reached:
                self._classes.setdefault(number, self.shared.classes[number])
        return found

    def package(self, module: str) -> None:
        """Appends which distribution an installed module belongs to."""
        top = import_root(module)
        package = self._packages.get(top) or self.process_view.package(module)
        if package is None:
            self.tag("standard")
            return
        self._packages[top] = package
        data = b"".join(filter(None, map(atom, package)))
        self._stream += data
        self.part("package", f"package {package.name}", data, package.version, "")

    def unshared(self, value: Any, reason: str) -> None:
        """Appends an object without content: the fingerprint will be like no other."""
        self.tag("unshared")
        self.unpicklable(value, reason)
        found = self.reach.unpicklable[id(value)]
        self._unshared.setdefault(found.path, found)

    # what is found beside the digest ----------------------------------------------------------

    def meet(self, cls: type, found: WalkResult) -> None:
        """Notes a class of which the digest counts here."""
        if id(cls) not in self._met:
            self._met[id(cls)] = WalkedClass(cls, found, " → ".join(self._trail))

    def absorb_classes(self) -> None:
        """Takes over what the walks over all classes have found, of each once.

        Classes lead to each other on more ways than can be followed: where ten refer to each of
        the next ten, and so on, the ways to the last are ten to the power of the length.
        """
        waiting = [one for one in reversed(self._met.values()) if id(one.cls) not in self._absorbed]
        while waiting:
            one = waiting.pop()
            if id(one.cls) in self._absorbed:
                continue
            self._absorbed.add(id(one.cls))
            if id(one.found.reach) in self._absorbed:  # one that hangs with it has brought that
                continue
            self._absorbed.add(id(one.found.reach))
            self._absorb(one.found, one.path)
            below = (each for each in one.found.classes if id(each.cls) not in self._absorbed)
            waiting += [each._replace(path=f"{one.path} → {each.path}") for each in below]
        self.reach.link_imports()

    def _absorb(self, part: WalkResult, path: str) -> None:
        found = part.fingerprint
        self.reach.absorb(part.reach)
        self.reach.in_classes += (*part.reach.numbered, *part.reach.in_classes)
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

    @property
    def ignores(self) -> bool:
        """Whether something that is reached does not count, by the way that leads to it."""
        return bool(self._ignore)

    def is_local(self, module: str) -> bool:
        """Whether a module travels by value."""
        if type(module) is not str:  # a class written in C may have anything as its __module__
            return False
        known = self._local.get(module)
        if known is None:
            known = self._local[module] = self.process_view.is_local(module)
        return known

    def refuse_patched(self, value: type | FunctionType) -> None:
        """Refuses an installed class or function that has code of the user's in it.

        Raises:
            PackingError: the server's has none.
        """
        if id(value) in self.shared.unpatched:
            return
        if isinstance(value, type):
            refuse_patched_class(value, self.is_local, self.path)
        else:
            refuse_patched_function(value, self.is_local, self.path)
        self.shared.unpatched[id(value)] = value

    def carries(self, module: ModuleType, name: str, value: Any) -> bool:
        """Whether an installed module's attribute may have another value on the other side."""
        key = id(module), name
        known = self.shared.carries.get(key)
        if known is None or known[1] is not value:
            found = self.process_view.carries(module, name, value)
            known = self.shared.carries[key] = module, value, found
        return known[2]

    def carry(self, module: str, name: str, value: Any) -> None:
        """An installed module's attribute counts by its value, and travels."""
        self.count(module, name)
        self.reach.carried.setdefault(module, {})[name] = value

    def count(self, module: str, name: str) -> None:
        """Something installed counts by its value."""
        self._carried.add(f"{module}:{name}")

    def path(self) -> str:
        """How the value at hand was reached: ``f → helper → CONFIG['stream']``."""
        label = self.label_as_code()
        return " → ".join((*self._trail, label) if label else self._trail)

    def label_as_code(self) -> str:
        """The value at hand as code would write it: ``CONFIG['lr']``."""
        return self.label.partition(" ")[2] or self.label

    def unpicklable(self, value: Any, reason: str) -> None:
        """Notes an object that has no content and cannot be packed."""
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        self.reach.unpicklable[id(value)] = UnsharedObject(self.path(), name, reason)
        self.reach.objects.append(value)  # keeps its id from being used again

    def note(self, what: str | None) -> None:
        """Notes that code reads something which no key can hold; None: nothing of the kind."""
        if what is None or self.quiet:
            return
        where = f"{self.where.rpartition(':')[0]}:{self.line}" if self.line else self.where
        self._notes[ImpureRead(" → ".join(self._trail), what, where)] = None


def _own_name(member: tuple[Any, str]) -> str:
    """The name of a class that counts, and that of anything else that counts as classes do."""
    value, name = member
    return value.__name__ if isinstance(value, type) else name


def short_repr(value: Any) -> str:
    """A value in a few characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a user's __repr__, or a number of a million digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
