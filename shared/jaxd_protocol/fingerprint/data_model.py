"""What a walk over a function finds: the data model of the fingerprint.

A fresh process makes these classes before its first call, and so they are plain ones and named
tuples: a dataclass takes ten times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, Final, Literal, NamedTuple, Protocol

from jaxd_protocol.packages.distributions import Package


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


class UnsharedObject(NamedTuple):
    """An object whose content cannot be hashed.

    Attributes:
        path: how it was reached: ``f → CONFIG['stream']``.
        type_name: what it is: ``generator``.
        reason: why it has no content.
    """

    path: str
    type_name: str
    reason: str


class ImpureRead(NamedTuple):
    """A read of a traced function that no key can hold.

    Attributes:
        path: the function that reads it.
        what: what it reads: ``the clock (time.time)``.
        where: file and line.
    """

    path: str
    what: str
    where: str


class ProcessValues(NamedTuple):
    """What the source of a module finds in its client's process, as far as it names it.

    Attributes:
        variables: names of variables of the environment, with their values; None where there is
            none of that name.
        arguments: `sys.argv`; None where the source does not name it.
    """

    variables: tuple[tuple[str, str | None], ...] = ()
    arguments: tuple[str, ...] | None = None


class Source(NamedTuple):
    """A local module that reached code imports and that this process has not imported yet.

    Attributes:
        code: its compiled source.
        is_package: whether it has submodules.
        process: what it finds in its client's process; None where that was not looked at.
    """

    code: CodeType
    is_package: bool
    process: ProcessValues | None = None


Name = tuple[str, str]
"""A module, and the qualified name of an object in it; without the latter the module itself."""


class Archive(NamedTuple):
    """The source of some top-level packages.

    Attributes:
        content: sixteen bytes over the code; comments, docstrings and positions do not count.
        sources: their modules, by full name.
        packages: installed packages that they import.
    """

    content: bytes
    sources: Mapping[str, Source]
    packages: tuple[Package, ...] = ()


class Archives(Protocol):
    """What a walk needs of archived packages."""

    @property
    def archive(self) -> Archive:
        """All that has been found."""

    def has(self, module: str, is_local: bool = False) -> bool:
        """Whether a module is in the archive; on a client, a local one is put there."""

    def name_of(self, value: Any) -> Name | None:
        """The name under which the archive makes this very object; None when it does not."""

    def module(self, name: str) -> ModuleType | None:
        """An archived module that is imported."""


Step = tuple[str, Any]
"""`("a", name)` an attribute, `("i", key)` an item by a constant key, `("k", key)` whether there is
one, as in ``"lr" in CONFIG``, `("w", name)` an attribute that is assigned, `("!", None)` given to
jax to be called back, `("c", constant)` called with this constant as its first argument, `("p", …)`
passed to a function, `("r", None)` named in the message of an assert, `("+", None)` after an
attribute or item that is read and then assigned, as in ``CONFIG["n"] += 1``."""

Steps = tuple[Step, ...]


SHOWN: Final[Steps] = (("r", None),)
"""The steps of a read of which only the message of an assert that fails has anything."""

_AS_CALLBACK: Final = (("!", None),)
"""The steps of a read whose value is only given to be called back."""


class Alias(NamedTuple):
    """A value that is assigned to a variable as it is read.

    Attributes:
        base: the variable, or the global, that it is read of.
        is_global: which of the two.
        steps: what is read of that.
        target: the variable that is assigned.
        line: where.
    """

    base: str
    is_global: bool
    steps: Steps
    target: str
    line: int


class VariableReads:
    """Reads of variables; a variable that escapes or is bound twice counts whole.

    Attributes:
        reads: of each variable, with the line of each.
        whole: those of which all may be read.
        aliases: values that are assigned to variables.
    """

    def __init__(self) -> None:
        self.reads: dict[str, dict[Steps, int]] = {}
        self.whole: set[str] = set()
        self.aliases: list[Alias] = []

    def add(self, name: str, steps: Steps, line: int) -> None:
        """Adds one; without steps all is read."""
        if steps:
            self.reads.setdefault(name, {}).setdefault(steps, line)
        else:
            self.whole.add(name)

    def look_through(self, once: Collection[str]) -> Iterator[tuple[str, Steps, int]]:
        """Adds what is read by way of aliases; gives what is read of globals in that way.

        Args:
            once: the code's own variables that are assigned once.
        """
        found: dict[str, dict[Steps, int] | None] = {}
        for alias in self.aliases:
            for steps, line in self._by_alias(alias, once, found, frozenset()).items():
                if alias.is_global:
                    yield alias.base, steps, line
                else:
                    self.add(alias.base, steps, line)

    def _by_alias(
        self,
        alias: Alias,
        once: Collection[str],
        found: dict[str, dict[Steps, int] | None],
        inside: frozenset[str],
    ) -> dict[Steps, int]:
        """What is read by way of an alias; where that is not certain, all of the value."""
        name = alias.target
        if name not in found and name not in inside:
            found[name] = self._all_reads(name, once, found, inside | {name})
        further = None if name in inside else found[name]
        if not further:
            return {alias.steps: alias.line}
        return {(*alias.steps, *steps): line for steps, line in further.items()}

    def _all_reads(
        self,
        name: str,
        once: Collection[str],
        found: dict[str, dict[Steps, int] | None],
        inside: frozenset[str],
    ) -> dict[Steps, int] | None:
        """All that is read of a variable; None where that is not certain."""
        if name not in once or name in self.whole:
            return None
        reads = dict(self.reads.get(name, {}))
        for alias in self.aliases:
            if alias.base == name and not alias.is_global:
                reads.update(self._by_alias(alias, once, found, inside))
        return None if () in reads or _AS_CALLBACK in reads else reads


class PartialRead:
    """A container of which only some entries are reached.

    Attributes:
        value: the object, module or dict.
        names: attribute names; keys of a dict.
        given: by name, what replaces attributes that are only given to be called back.
    """

    __slots__ = ("given", "names", "value")

    def __init__(self, value: Any, names: set[Any] | None = None) -> None:
        self.value = value
        self.names: set[Any] = set() if names is None else names
        self.given: dict[str, Any] = {}


class FieldsRead(NamedTuple):
    """What is read of a configuration object.

    Attributes:
        stand_in: the class of what replaces the object.
        fields: by the step that reads each.
    """

    stand_in: Callable[[dict[Step, Any]], Any]
    fields: dict[Step, Any]


CodePath = tuple[int, ...]
"""The way to a code object inside of another one: a number among the nested ones each time."""


OriginKind = Literal["global", "variable", "module", "code"]


class Origin(NamedTuple):
    """Where a value comes from.

    Attributes:
        kind: a global, a variable, a module that an import statement names, or code of which a
            function is made.
        name: of the global, variable or module; the number of the code as text.
        names: of the attributes that lead from there.
        offset: of the instruction that loads it.
    """

    kind: OriginKind
    name: str
    names: tuple[str, ...] = ()
    offset: int = -1

    def at(self, name: str) -> Origin:
        """That of an attribute."""
        return self._replace(names=(*self.names, name))


class CallbackReferences(NamedTuple):
    """What code gives to be called back, nested code included.

    Attributes:
        objects: globals, free variables, parameters and modules, with attributes of them.
        codes: the nested code of functions that are made in place.
    """

    objects: tuple[Origin, ...] = ()
    codes: tuple[CodePath, ...] = ()


NO_CALLBACKS: Final = CallbackReferences()


def parameters_of(code: CodeType) -> tuple[str, ...]:
    """The names of its parameters, but for those of `*args` and `**kwargs`."""
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class CallbackCandidate(NamedTuple):
    """An object that may be called back.

    Attributes:
        root: the object with which it begins; None where that is a module.
        names: of the attributes that lead from there.
        module: the name of that module.
        number: of the root among what the walk found to be called back only; -1 when it is not.
    """

    root: Any
    names: tuple[str, ...] = ()
    module: str = ""
    number: int = -1


class CallbackCandidates:
    """The objects that a server may call back, by number: the same numbers at both ends.

    Attributes:
        objects: what code gives by name.
        codes: functions, and the way in their code to that of one that is made in place.
        methods: functions whose first parameter is known, with what it is.
        root: the function itself, when its parameters are the arguments of a call.
        parameters: those of them that it gives.
    """

    def __init__(self) -> None:
        self.objects: list[CallbackCandidate] = []
        self.codes: list[tuple[FunctionType, CodePath]] = []
        self.methods: list[tuple[FunctionType, Any]] = []
        self.root: Any = None
        self.parameters: tuple[Origin, ...] = ()

    def note(self, function: FunctionType, gives: CallbackReferences, *, is_inner: bool) -> None:
        """Adds what a function gives: of a part of a walk, which has its own numbers, only code."""
        code = function.__code__
        self.codes += [(function, path) for path in gives.codes]
        if is_inner:
            return
        self.objects += [
            _target(function, each)
            for each in gives.objects
            if each.kind != "variable" or each.name in code.co_freevars
        ]
        if function is self.root:
            names = parameters_of(code)
            self.parameters = tuple(
                each for each in gives.objects if each.kind == "variable" and each.name in names
            )

    @property
    def takes_arguments(self) -> bool:
        """Whether what is called back can be an argument of a call, or hold one."""
        return bool(self.parameters) or any(owner is self.root for owner, _ in self.codes)

    def argument(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The value of a parameter of the function itself in a call.

        Raises:
            KeyError: when it has none.
        """
        if name in kwargs:
            return kwargs[name]
        code, defaults = self.root.__code__, self.root.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        at = names.index(name) if name in names else len(names)
        if at < min(len(args), len(names)):
            return args[at]
        if len(names) - len(defaults) <= at < len(names):
            return defaults[at - len(names)]
        return (self.root.__kwdefaults__ or {})[name]

    def add_method(
        self, function: FunctionType, gives: CallbackReferences, instance: object
    ) -> None:
        """Adds what a function gives of its first parameter, and what that is."""
        first = function.__code__.co_varnames[0]
        self.methods.append((function, instance))
        for each in gives.objects:
            if (each.kind, each.name) == ("variable", first):
                self.objects.append(CallbackCandidate(instance, each.names))


def _target(function: FunctionType, origin: Origin) -> CallbackCandidate:
    if origin.kind == "module":
        return CallbackCandidate(None, origin.names, origin.name)
    if origin.kind == "global":
        return CallbackCandidate(function.__globals__.get(origin.name), origin.names)
    at = function.__code__.co_freevars.index(origin.name)
    try:
        return CallbackCandidate((function.__closure__ or ())[at].cell_contents, origin.names)
    except ValueError:
        return CallbackCandidate(None, origin.names)


class ListedCallback(NamedTuple):
    """An entry of `callbacks=`, as a server receives it.

    Attributes:
        owner: the number of the object that it is, or whose method it is.
        method: the name of that method; empty when it is the object itself.
        name: what it is called, with its module.
    """

    owner: int
    method: str
    name: str


class CallbackList:
    """What `callbacks=` lists.

    Attributes:
        entries: in order.
        callbacks: the same; empty on a server.
        counted: `id` of owners that count like everything else, because they are read as well.
    """

    def __init__(
        self, callbacks: Sequence[Callable[..., Any]] = (), entries: Sequence[ListedCallback] = ()
    ) -> None:
        self.callbacks = tuple(callbacks)
        self.counted: set[int] = set()
        self._owners: dict[int, int] = {}
        self._methods: dict[int, set[str]] = {}
        self.entries = tuple(entries) or tuple(map(self._entry, self.callbacks))
        for each in self.entries:
            self._methods.setdefault(each.owner, set()).add(each.method)

    def _entry(self, callback: Any) -> ListedCallback:
        owner = method_owner(callback)
        of = callback if owner is None else owner
        number = self._owners.setdefault(id(of), len(self._owners))
        return ListedCallback(
            number, "" if owner is None else callback.__name__, callback_name(callback)
        )

    def number_of(self, value: Any) -> int | None:
        """The number of the owner that a value is, or replaces on a server; None for no owner."""
        if self._owners:
            return None if id(value) in self.counted else self._owners.get(id(value))
        known: Any = value  # on a server
        return known.number if type(value).__name__ == "ClientObject" and known.listed else None

    def has(self, owner: int, name: str) -> bool:
        """Whether a method of that owner is listed."""
        return name in self._methods.get(owner, ())


def method_owner(callback: Any) -> Any:
    """The object whose method it is; None for what is none, or a method of a class."""
    if not isinstance(callback, MethodType | BuiltinFunctionType):
        return None
    owner = callback.__self__
    return None if isinstance(owner, ModuleType | type) else owner


def callback_name(callback: Any) -> str:
    """What a callable is called, with its module: equal in two processes."""
    owner = method_owner(callback)
    if owner is not None:
        return f"{type(owner).__module__}:{type(owner).__qualname__}.{callback.__name__}"
    named = callback if hasattr(callback, "__qualname__") else type(callback)
    return f"{getattr(named, '__module__', None)}:{named.__qualname__}"


# fmt: off
Reader = Literal[
    "names", "qualified names", "docstrings", "annotations", "hints", "fields", "types",
    "subclasses", "identities", "addresses", "order",
]
# fmt: on
"""What code reads of all that it reaches, beside what counts in any case: `__name__`,
`__qualname__`, `__doc__`; annotations as they are, and resolved; fields of dataclasses, and types
of such; `__subclasses__`; which objects are the same one; where they lie (`id`); the order of
attributes (`vars`).
"""

OF_NO_CODE: Final[frozenset[Reader]] = frozenset({"addresses", "identities", "types"})
"""Those that alone read nothing of functions and classes."""


class ReachedObjects:
    """All that a walk reached, as the packing needs it.

    Attributes:
        partial_reads: by `id`, the local modules, plain objects and dicts that are only partly
            read.
        whole: `id` of those that can be read as a whole, whatever `partial_reads` has.
        imports: local modules that import statements in reached code name, and their parents.
        submodules: installed modules that are read as attributes of their packages.
        lazy_submodules: names of submodules that local packages import when they are read.
        sources: those of `imports` that are not imported yet.
        libraries: the installed modules that `sources` import whole.
        carried: for installed modules by name, values of attributes that the server's own copy of
            the module need not have: a patched function, a constant, the environment's variables.
        replacements: `id` of what has another form on a server (the environment), with what is
            shipped instead.
        fields: by `id`, what is read of configuration objects of libraries; one that is in `whole`
            travels itself.
        unpicklable: `id` of what can neither be hashed nor packed, with what is known of it.
        numbered: everything that has a number, by number.
        objects: other reached objects that are kept alive, because they are identified by `id`:
            classes, and what these lead to.
        in_classes: what classes lead to and has a number there.
        archives: the user's packages that travel as files, when there are any.
        callback_only: what is only given to be called back: it stays where it is, with its content.
        installed: modules and callables of installed packages, and Python's own types, that
            reached code names: of these alone a result may hold the process's own.
        targets: what may be called back.
        readers: what reached code reads of all that is reached.
        functions, classes: the user's own that count by content, in the order of the walk.
        aliased: arrays, partials and cells, each as often as it is met: they have no number.
        has_aliases: whether code that tells objects apart meets one of these twice.
        was_told: whether code in Python has said what an object is made of: it may read others.
    """

    def __init__(self, archives: Archives | None = None) -> None:
        self.partial_reads: dict[int, PartialRead] = {}
        self.whole: set[int] = set()
        self.imports: dict[str, ModuleType] = {}
        self.submodules: set[str] = set()
        self.lazy_submodules: dict[str, set[str]] = {}
        self.sources: dict[str, Source] = {}
        self.libraries: dict[str, ModuleType] = {}
        self.carried: dict[str, dict[str, Any]] = {}
        self.replacements: dict[int, Any] = {}
        self.fields: dict[int, FieldsRead] = {}
        self.unpicklable: dict[int, UnsharedObject] = {}
        self.numbered: list[Any] = []
        self.objects: list[Any] = []
        self.in_classes: list[Any] = []
        self.archives = archives
        self.callback_only: list[Any] = []
        self.installed: list[Any] = []
        self.targets = CallbackCandidates()
        self.readers: set[Reader] = set()
        self.functions: list[FunctionType] = []
        self.classes: list[type] = []
        self.aliased: list[Any] = []
        self.has_aliases = False
        self.was_told = False

    def absorb(self, part: ReachedObjects) -> None:
        """Adds what a part of the walk has reached."""
        for name, found in part.partial_reads.items():
            self.partial_reads.setdefault(name, PartialRead(found.value)).names.update(found.names)
        self.whole |= part.whole
        self.imports.update(part.imports)
        self.submodules |= part.submodules
        for package, names in part.lazy_submodules.items():
            self.lazy_submodules.setdefault(package, set()).update(names)
        self.sources.update(part.sources)
        self.libraries.update(part.libraries)
        for module, values in part.carried.items():
            self.carried.setdefault(module, {}).update(values)
        for key, stand_in in part.replacements.items():
            mine: Any = self.replacements.setdefault(key, stand_in)
            if hasattr(mine, "merge"):
                mine.merge(stand_in)
        for key, read in part.fields.items():
            self.fields.setdefault(key, read._replace(fields={})).fields.update(read.fields)
        self.unpicklable.update(part.unpicklable)
        self.objects += part.numbered  # its numbers are its own
        self.objects += part.objects
        self.installed += part.installed
        self.targets.codes += part.targets.codes  # its objects are known by other numbers
        self.readers |= part.readers
        self.functions += part.functions
        self.classes += part.classes
        self.aliased += part.aliased

    def link_imports(self) -> None:
        """Notes each imported module as read of its package, where that is imported as well."""
        for name in tuple(self.imports):
            parent, _, last = name.rpartition(".")
            if parent in self.imports:
                self.partial_read_of(self.imports[parent]).names.add(last)

    def scope(self, fingerprint: bytes) -> bytes:
        """What tells the classes of a function of that fingerprint from those of others.

        Empty where they are shared by content, as they are unless it has aliases.
        """
        return fingerprint if self.has_aliases else b""

    def unread(self) -> ReachedObjects:
        """The same, of which nothing counts."""
        self.readers, self.functions, self.classes, self.aliased = set(), [], [], []
        return self

    def partial_read_of(self, value: Any) -> PartialRead:
        """The note of what is read of a module, object or dict."""
        found = self.partial_reads.get(id(value))
        if found is None:
            found = self.partial_reads[id(value)] = PartialRead(value)
            self.objects.append(value)  # keeps its id from being used again
        return found

    def part_of(self, value: Any) -> set[Any] | None:
        """The names that are read of a module, object or dict; None when it counts whole."""
        found = self.partial_reads.get(id(value))
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
    unshared: tuple[UnsharedObject, ...]
    notes: tuple[ImpureRead, ...]
