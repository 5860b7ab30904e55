"""Guards what a function reaches, or is given, while it is traced: globals, containers, objects.

Under `jax.jit` such a change is made in the caller's process. Here it would be made in a copy, and
be lost; and whatever is traced later, for anybody, would see it. So it is undone, and an error.
What cannot be undone, such as an iterator from which something was taken, spoils the function: it
is not traced again, but unpacked anew. `InstalledGuard` does the same for jax itself.
"""

from __future__ import annotations

import functools
import threading
from argparse import Namespace
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from jaxd_protocol.errors import Busy, LostUpdateError, PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.code.callbacks import names_in
from jaxd_protocol.fingerprint.code.reads import facts_of
from jaxd_protocol.fingerprint.unpatched import functions_in
from jaxd_protocol.fingerprint.walk import WalkResult
from jaxd_protocol.jax_objects.installed_state import Change, InstalledState
from jaxd_protocol.jax_objects.names import is_of_jax
from jaxd_protocol.jit.static_leaves import StaticLeaf
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import is_local_module
from jaxd_protocol.pickling.unpack.private_modules import is_private
from jaxd_protocol.pytree import is_literal
from jaxd_server.user_code.hidden_state import HiddenStates

_RETRY_S: Final = 0.2
_MISSING: Final = object()
_CONTAINERS: Final = (dict, list, tuple, type(None))
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_CALCULATING: Final = frozenset(
    [
        *("builtins", "math", "cmath", "operator", "functools", "itertools"),
        *("numpy", "scipy", "jax", "jaxlib", "ml_dtypes"),
    ]
)
_STATEFUL: Final = frozenset(
    [
        *("open", "input", "eval", "exec", "__import__", "globals", "random", "devices"),
        *("io", "load", "loadmat", "loadtxt", "genfromtxt", "fromfile", "fromregex", "memmap"),
        *("errstate", "geterr", "seterr"),
    ]
)
"""Names by which code that only uses these packages gets at files, the process and its state."""

_STATEFUL_MODULES: Final = ("numpy.random.", "scipy.io.", "scipy.datasets.")

_COPY: Final = (
    "On the server that is a copy: yours would stay as it is. Return what is new, or do it outside "
    "of the function; what is only a cache, name in persistent_call(ignore=…). Under `jaxd run` "
    "and `pytest --jaxd` such a function runs in your process."
)


class _AssignableSlot(NamedTuple):
    """Something that can be assigned: a global of a module, or a variable of a closure."""

    name: str
    holder: dict[str, Any] | CellType
    before: Any

    @property
    def key(self) -> tuple[int, str]:
        """Names the place, as long as its holder lives."""
        return id(self.holder), self.name

    @property
    def now(self) -> Any:
        """What is there."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.name, _MISSING)
        return _contents(self.holder)

    @property
    def words(self) -> str:
        """What it is, for people."""
        kind = "the global" if isinstance(self.holder, dict) else "the variable"
        return f"{kind} {self.name!r}"

    def is_made_after(self, known: Collection[tuple[int, str]]) -> bool:
        """Whether it is a variable that is none of these, by their keys, and holds no state."""
        is_new = isinstance(self.holder, CellType) and self.key not in known
        return is_new and (is_literal(self.before) or isinstance(self.before, np.dtype))

    def undo(self) -> None:
        """Puts back what was there."""
        if not isinstance(self.holder, dict):
            if self.before is _MISSING:
                del self.holder.cell_contents
            else:
                self.holder.cell_contents = self.before
        elif self.before is _MISSING:
            self.holder.pop(self.name, None)
        else:
            self.holder[self.name] = self.before


class MutationGuard:
    """A snapshot of what some objects hold, taken when this is made.

    Args:
        objects: what a function reaches.
        ignored: names of globals and variables that may change.

    Attributes:
        ignored: the same.
        is_spoiled: whether something was changed that could not be made what it was.
        is_complete: whether the objects are all that there was to reach.
        is_own: whether what reaches the objects is code of the user's, and not a library's.
        bound: what a callback is bound to that may change, in words; None: nothing.
        hidden: states that no attribute shows, of objects that a callback reaches.
        reached: the objects, and what their variables hold.
    """

    def __init__(self, objects: Iterable[Any] = (), ignored: Iterable[str] = ()) -> None:
        self.is_spoiled = False
        self.is_complete = False
        self.ignored = tuple(ignored)
        self.is_own = True
        self.bound: str | None = None
        self.hidden: HiddenStates | None = None
        self._lost: str | None = None  # what a callback has changed
        self._lock = threading.Lock()  # guards _lost
        objects = list(objects)
        self._functions = [each for each in objects if isinstance(each, FunctionType)]
        slots = (place for each in self._functions for place in _slots_of(each))
        self._places = {each.key: each for each in slots if each.name not in ignored}
        self._names = {id(place.before): place.name for place in self._places.values()}
        classes = (each for each in objects if isinstance(each, type))
        inside = [each for cls in classes if _can_change(cls) for each in _members(cls).values()]
        places = (place.before for place in self._places.values())
        found = {id(each): each for each in (*objects, *places, *inside)}
        self._held = {
            name: (each, _content(each)) for name, each in found.items() if _can_change(each)
        }
        self.reached = list(found.values())

    @classmethod
    def of_walk(cls, walked: WalkResult, ignored: Iterable[str] = ()) -> MutationGuard:
        """A snapshot of all that a walk has reached and a trace could change.

        What has a number, and what has none: objects of which some attributes are read, as the one
        of a method is, arrays, classes, and what their methods reach.
        """
        reach = walked.reach
        partial = (each.value for each in reach.partial_reads.values())
        classes = (*(each for each in reach.objects if isinstance(each, type)), *reach.in_classes)
        made = cls((*reach.numbered, *partial, *classes, *walked.guards.arrays), ignored)
        made.is_complete = True
        return made

    @classmethod
    def of_statics(cls, arguments: Any, ignored: Iterable[str] = ()) -> MutationGuard:
        """A snapshot of what jax does not trace among the arguments of a call.

        That is what is static, and what the nodes of their trees are: classes, whose methods may
        change what they reach, and what these keep beside arrays.

        Args:
            arguments: of the call.
            ignored: names of globals and variables that may change.
        """
        leaves, structure = jax.tree.flatten(
            arguments, is_leaf=lambda node: isinstance(node, StaticLeaf)
        )
        statics = (leaf.value if isinstance(leaf, StaticLeaf) else leaf for leaf in leaves)
        values = {id(each): each for each in (*statics, *_in_nodes(structure))}.values()
        objects = tuple(each for each in values if not (is_literal(each) or _is_data(type(each))))
        if not objects:
            return NO_GUARD
        try:
            return cls.of_walk(walk(objects, "arguments", ignore=tuple(ignored)), ignored)
        except Exception:  # noqa: BLE001  a class may need modules that came with a function only
            classes = (each for each in objects if isinstance(each, type))
            contents = (
                each for one in classes for base in one.__mro__ for each in vars(base).values()
            )
            methods = (each for content in contents for each in functions_in(content))
            return cls((*objects, *methods), ignored)

    @classmethod
    def of_callback(cls, function: Any, ignored: Iterable[str] = ()) -> MutationGuard:
        """A snapshot of what a function that a program calls while it runs could change."""
        try:
            made = cls.of_walk(walk(function, "callback", ignore=tuple(ignored)), ignored)
            made.bound = _bound_to(function)
        except PackingError as error:
            made = cls()
            made.bound = f"what cannot be looked at ({error})"
        while isinstance(function, functools.partial):
            function = function.func
        made.is_own = is_local_module(str(getattr(function, "__module__", "")))
        made.hidden = HiddenStates([each for each in made.reached if not _is_array(each)])
        return made

    @property
    def keys(self) -> Collection[tuple[int, str]]:
        """Of the globals and variables; see `_AssignableSlot`."""
        return self._places.keys()

    def state(self, before: Sequence[MutationGuard]) -> str | None:
        """What code of the user's here reads that may be other for its client, or later; or None.

        In words. That is all but functions, classes and modules that only calculate, but numbers
        and texts in variables of the trace, which nobody else has, and but what a library's
        function has made for itself, such as the texts of `equinox.error_if`.

        Args:
            before: of what there was before the trace.
        """
        if self.bound is not None:
            return self.bound
        is_known = all(each.is_complete for each in before)
        known = {key for each in before for key in each.keys}
        for place in self._places.values():
            if place.before is _MISSING or _only_calculates(place.before):
                continue
            if not (is_known and place.is_made_after(known)):
                return place.words
        if self.is_own and self._held:
            return self._words_for(next(iter(self._held.values()))[0])
        if self.is_own and any(map(_is_array, self.reached)):
            return "an array"
        own = [each for each in self._functions if is_local_module(each.__module__)]
        for each in own:
            given = (*(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values())
            if not all(is_literal(one) or _only_calculates(one) for one in given):
                return f"a default of {each.__name__}"
        names = (name for each in own for name in _names_of_state(each.__code__))
        return next((f"what {name!r} gives" for name in names), None)

    def check(self) -> None:
        """Returns while nothing has changed; else what can be assigned is as before.

        Raises:
            LostUpdateError: when something was changed, then and from then on: what runs beside
                may have seen it.
        """
        with self._lock:
            if self._lost is None:
                self._lost = self._changed(self.hidden)
                if self._lost is None:
                    return
                self.restore()
        raise LostUpdateError(
            f"the function changes {self._lost} in what it gives to pure_callback. {_COPY}"
        )

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it nothing of this is to change; if it does, all is as before afterwards.

        Raises:
            LostUpdateError: when something was changed.
            Busy: when that was so, and other functions were traced meanwhile, which share classes
                with this one: one of them may have done it.
        """
        if not (self._held or self._places or self.reached):
            yield
            return
        hidden = HiddenStates(self.reached)  # what runs on the host may have changed it before
        with _traces.begun(self) as trace:
            try:
                yield
            except BaseException:
                with _traces.lock:
                    self._restore_after(hidden, trace)
                raise
            with _traces.lock:
                changed = self._changed(hidden)
                if changed is not None:
                    self._restore_after(hidden, trace)
        if trace.was_disturbed or (trace.was_beside and changed is not None):
            raise Busy(
                "functions that were traced at the same time changed what they share on the "
                "server. That was undone, and each is traced once more. Call it again if it is not "
                "repeated by itself.",
                _RETRY_S,
            )
        if changed is not None:
            raise LostUpdateError(f"the function changes {changed} while it is traced. {_COPY}")

    def restore(self) -> None:
        """Makes all of it what it was that can be assigned."""
        for place in self._changed_places():
            place.undo()
        for holder, content in self._changed_holders():
            _refill(holder, content)

    def shares_with(self, other: MutationGuard) -> bool:
        """Whether there is anything that both have looked at and that could be changed."""
        places, held = self._places.keys(), self._held.keys()
        return not (held.isdisjoint(other._held) and places.isdisjoint(other._places))

    def words_shared_with(self, other: MutationGuard) -> str | None:
        """What could be changed of what both have looked at, in words; None: nothing."""
        known = set(map(id, other.reached))
        both = (each for each in self.reached if id(each) in known)
        changing = (each for each in both if _can_change(each) or _is_instance(each))
        return next(map(other._words_for, changing), None)

    def take_over(self, other: MutationGuard) -> None:
        """What another one has seen first counts as seen by this one as well."""
        self._held |= {name: other._held[name] for name in self._held.keys() & other._held.keys()}
        both = self._places.keys() & other._places.keys()
        self._places |= {key: other._places[key] for key in both}

    def _restore_after(self, hidden: HiddenStates, trace: _Trace) -> None:
        """As `restore`; what it cannot restore has spoiled the function."""
        self.is_spoiled = self.is_spoiled or hidden.changed() is not None
        if self._changed(None) is not None:
            _traces.disturb(trace)
        self.restore()

    def _changed(self, hidden: HiddenStates | None) -> str | None:
        """What has changed first, in words; None when nothing has."""
        places = (place for place in self._changed_places() if not self._is_kept_by_module(place))
        place = next(places, None)
        if place is not None:
            return place.words
        holder, _ = next(self._changed_holders(), (None, None))
        if holder is None and hidden is not None:
            holder = hidden.changed()
        return None if holder is None else self._words_for(holder)

    def _words_for(self, holder: Any) -> str:
        if isinstance(holder, type):
            return f"the class {holder.__qualname__}"
        name = self._names.get(id(holder))
        return f"a {type(holder).__name__}" + ("" if name is None else f", {name!r},")

    def _changed_places(self) -> Iterator[_AssignableSlot]:
        return (
            place
            for place in self._places.values()
            if not _is_same(place.now, place.before) and not _is_import(place)
        )

    def _is_kept_by_module(self, place: _AssignableSlot) -> bool:
        """Whether the `__getattr__` of a module has put a name there that it made.

        As `cached_property` does: it makes the same again where the name is not there.
        """
        holder = place.holder
        if place.before is not _MISSING or not isinstance(holder, dict):
            return False
        codes = (each.__code__ for each in self._functions if each.__globals__ is holder)
        return "__getattr__" in holder and not any(_assigns(code, place.name) for code in codes)

    def _changed_holders(self) -> Iterator[tuple[Any, list[Any]]]:
        """What was changed within itself, each with what it held before."""
        return (held for held in self._held.values() if not _are_same(_content(held[0]), held[1]))


class _Trace:
    """A function that is traced.

    Args:
        guard: of what it reaches.

    Attributes:
        guard: the same.
        thread: where it is traced.
        was_beside: whether others that share something with it were traced meanwhile.
        was_disturbed: whether one of them has undone a change of what they share.
    """

    def __init__(self, guard: MutationGuard) -> None:
        self.guard = guard
        self.thread = threading.get_ident()
        self.was_beside = self.was_disturbed = False


class _Traces:
    """The functions that are traced now. Thread-safe.

    They may share classes, which have come with the arguments of one and belong to all. What one
    changes until that is undone, another one must not take for what was there before.

    Attributes:
        lock: held while one begins, and while what one has changed is looked for and undone.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._open: list[_Trace] = []

    @contextmanager
    def begun(self, guard: MutationGuard) -> Iterator[_Trace]:
        """Within it a function is traced in this thread."""
        trace = _Trace(guard)
        with self.lock:
            for each in self._beside(trace):
                each.was_beside = trace.was_beside = True
                guard.take_over(each.guard)
            self._open.append(trace)
        try:
            yield trace
        finally:
            with self.lock:
                self._open.remove(trace)

    def disturb(self, trace: _Trace) -> None:
        """What this one has changed is about to be undone."""
        for each in self._beside(trace):
            each.was_disturbed = True

    def _beside(self, trace: _Trace) -> list[_Trace]:
        others = (each for each in self._open if each.thread != trace.thread)
        return [each for each in others if each.guard.shares_with(trace.guard)]


_traces: Final = _Traces()

NO_GUARD: Final = MutationGuard()
NO_GUARD.is_complete = True


def _slots_of(function: FunctionType) -> Iterator[_AssignableSlot]:
    if is_local_module(function.__module__):
        for name in sorted(names_in(function.__code__)):
            yield _AssignableSlot(
                name, function.__globals__, function.__globals__.get(name, _MISSING)
            )
        pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in pairs:
            yield _AssignableSlot(name, cell, _contents(cell))


def _in_nodes(structure: Any) -> Iterator[Any]:
    """The user's classes among the nodes of a tree, and what belongs to nodes beside children."""
    left = [structure]
    while left:
        each = left.pop()
        node = each.node_data()
        if node is None:
            continue
        kind, about = node
        left += each.children()
        if kind not in _CONTAINERS:
            yield about
            if is_local_module(kind.__module__):
                yield kind


def _is_data(cls: type) -> bool:
    """Whether instances are arrays, or specs of some, and so are traced or never change.

    The structure of a tree, and a function of jax, such as a `custom_jvp`, lead to the user's code.
    """
    if not is_of_jax(cls):
        return issubclass(cls, np.ndarray | np.generic)
    is_called = any("__call__" in vars(base) for base in cls.__mro__)
    return not (is_called or cls is jax.tree_util.PyTreeDef)


def _is_import(place: _AssignableSlot) -> bool:
    """Whether the first import of a submodule has put it into its package."""
    now, holder = place.now, place.holder
    if place.before is not _MISSING or not isinstance(now, ModuleType):
        return False
    return isinstance(holder, dict) and now.__name__ == f"{holder.get('__name__')}.{place.name}"


def _assigns(code: CodeType, name: str) -> bool:
    """Whether code, or a function in it, has a `global` statement for a name that it assigns."""
    import dis  # where something has changed

    mine = (each.argval for each in dis.get_instructions(code) if each.opname == "STORE_GLOBAL")
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return name in mine or any(_assigns(each, name) for each in inner)


def _only_calculates(value: Any) -> bool:
    """Whether it is code of the user's, which is looked at itself, or of a library for numbers."""
    if isinstance(value, ModuleType):
        home = value.__name__
    elif isinstance(value, FunctionType | type):
        home = value.__module__
    else:
        found = importable_name(value) if callable(value) else None
        if found is None:
            return False
        home = found[0]
    is_stateful = f"{home}.".startswith(_STATEFUL_MODULES)
    return is_local_module(home) or (home.partition(".")[0] in _CALCULATING and not is_stateful)


def _bound_to(function: Any) -> str | None:
    """What a callable holds beside code that only calculates, in words; None: nothing."""
    while isinstance(function, functools.partial):
        held = (*function.args, *function.keywords.values())
        if not all(is_literal(each) or _only_calculates(each) for each in held):
            return "what a partial holds"
        function = function.func
    if isinstance(function, FunctionType) or _only_calculates(function):
        return None
    owner = getattr(function, "__self__", function)
    return f"an object of type {type(owner).__qualname__}"


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _names_of_state(code: CodeType) -> Iterator[str]:
    """The names in code by which it gets at the process, and the packages that it imports."""
    yield from sorted(names_in(code) & _STATEFUL)
    imported = (each.name.partition(".")[0] for each in facts_of(code).imports if not each.level)
    yield from (root for root in imported if root not in _CALCULATING)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _can_change(value: Any) -> bool:
    """Whether it is a container, a class of the user's, or an object of one."""
    if isinstance(value, FunctionType | ModuleType):
        return False
    if isinstance(value, type):
        return is_local_module(value.__module__)
    if _is_container(value) or type(value) in (SimpleNamespace, Namespace):
        return True
    return isinstance(getattr(value, "__dict__", None), dict) and is_local_module(
        type(value).__module__
    )


def _is_instance(value: Any) -> bool:
    """Whether it has attributes, and is neither a function nor a class or a module."""
    own = getattr(value, "__dict__", None)
    return isinstance(own, dict) and not isinstance(value, FunctionType | type | ModuleType)


def _is_container(value: Any) -> bool:
    return isinstance(value, list | dict | set | deque | bytearray)


def _content(value: Any) -> list[Any]:
    """What it holds, flat; of an object without what a descriptor keeps there for itself."""
    if isinstance(value, list | set | deque | bytearray):
        return list(value)
    own = value if isinstance(value, dict) else _members(value)
    return [part for pair in own.items() for part in pair]


def _members(value: Any) -> dict[str, Any]:
    """The attributes of a class or an object that are not kept there by Python or a descriptor."""
    if isinstance(value, type):  # an enum keeps some for itself as well
        return {name: each for name, each in vars(value).items() if not _is_reserved(name)}
    return {
        name: content
        for name, content in vars(value).items()
        if not hasattr(getattr(type(value), name, None), "__get__")  # a cached_property
    }


def _is_reserved(name: str) -> bool:
    return name.startswith("_") and name.endswith("_")


def _refill(value: Any, content: list[Any]) -> None:
    if isinstance(value, type):
        _refill_class(value, dict(zip(content[::2], content[1::2], strict=True)))
        return
    if not _is_container(value):
        value = vars(value)
        for name in set(value) - set(content[::2]):
            del value[name]
    else:
        value.clear()
    if isinstance(value, dict):
        value.update(zip(content[::2], content[1::2], strict=True))
    elif isinstance(value, set):
        value.update(content)
    else:
        value.extend(content)


def _refill_class(cls: type, content: dict[str, Any]) -> None:
    now = _members(cls)
    for name in now.keys() - content.keys():
        type.__delattr__(cls, name)
    for name, value in content.items():
        if now.get(name, _MISSING) is not value:
            type.__setattr__(cls, name, value)


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (
        type(one) is type(other) and isinstance(one, _PLAIN) and repr(one) == repr(other)
    )


def _are_same(now: list[Any], before: list[Any]) -> bool:
    if len(now) != len(before):
        return False
    return all(map(is_, now, before)) or all(map(_is_same, now, before))


# jax itself -------------------------------------------------------------------------------------


class InstalledGuard:
    """Keeps jax as it was when the first function was traced. Thread-safe.

    A function may register a rule for `sin_p`, or assign `jnp.sin = mine`, also by a module
    that it imports. Under `jax.jit` that holds for the process of its caller from then on. Here it
    would hold for all clients, and programs made with it would be kept.

    What several functions that are traced at the same time have changed is blamed on none of them.
    """

    def __init__(self) -> None:
        self._undone = self._begun = self._open = 0
        self._state = InstalledState(_is_of_client, for_others=True)
        self._lock = threading.Lock()  # held while it is looked at, and while it is undone

    @contextmanager
    def kept(self, captured: MutationGuard) -> Iterator[None]:
        """Within it a function is traced; afterwards jax is as it was.

        Args:
            captured: of what the function reaches; it is spoiled where jax was changed, as a module
                that did so when it was imported does not do it again.

        Raises:
            LostUpdateError: when something was changed within.
            Busy: when that was so, and others were traced meanwhile: one of them may have done it.
        """
        self._undo()  # what ran in between, such as the code of a module that was unpacked
        with self._lock:
            self._begun += 1
            undone, begun, others = self._undone, self._begun, self._open
            self._open += 1
        try:
            yield
        finally:
            found = self._undo()
            with self._lock:
                self._open -= 1
                was_alone = not others and self._begun == begun
                was_changed = self._undone != undone
            captured.is_spoiled = captured.is_spoiled or was_changed
        if was_changed and not was_alone:
            raise Busy(
                "functions that were traced at the same time changed jax on the server. That was "
                "undone, and each is traced once more. Call it again if it is not repeated by "
                "itself.",
                _RETRY_S,
            )
        if found:
            raise LostUpdateError(
                f"the function changes {found[0].where} while it is traced"
                f"{f', to {found[0].code}' if found[0].code else ''}. On the server that would "
                "hold for all clients, so it was undone. Do it in your own process, outside of the "
                "function: then such functions run there; or define a primitive or a function of "
                "your own."
            )

    def _undo(self) -> list[Change]:
        """Makes jax what it was; what was found."""
        with self._lock:
            found = self._state.changes()
            if found:
                for each in found:
                    each.undo()
                jax.clear_caches()  # which may have traces that were made with it
                self._undone += 1
        return found


def _is_of_client(content: Mapping[str, Any]) -> bool:
    """Whether functions with these globals came from a client."""
    names = content.get("__builtins__")
    return isinstance(names, dict) and is_private(names)


installed_guard: Final = InstalledGuard()
"""That of this process."""
