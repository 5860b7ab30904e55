"""Describes the client's function that a program calls back, so that the client can find it.

An executable is shared by all clients whose function has the same key. So it does not hold what
it calls, but a *callback target*: a literal that names the entry of the table that both ends
make when they walk over the function (`CallbackCandidates`), or of what `callbacks=` lists. The
client that runs the program looks it up, in its own process, each time, and nothing else is called.

Also the messages of callbacks: what a program sends is a result, what comes back are arguments.

    ("given", number)                   what the code gives to be called back
    ("listed", number)                  what `callbacks=` lists
    ("argument", number)                a parameter that the function itself gives
    ("library", module, kind, name, names)  what an installed module gives, see `Origin`
    ("partial", callback target, data, ((name, data)))       functools.partial
    ("made", number, cells, defaults, keywords)  a function that is made in place

Cells are ``(name, content)``, for those variables whose content does not follow from the code
around: data, or something of the client's own,

    ("listed", number)                  as above
    ("argument",)                       what the function itself was called with
    ("self", number)                    the object whose method it is
    ("code", cells, defaults, keywords) a function that is made beside it
    ("again",)                          the same one, inside of itself

Data is a literal (``"value"``), an array among those that are sent along (``"held"``, ``"array"``
for one of numpy's), or a plain container of data under the name of its type.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import jax
import numpy as np

from jaxd_protocol.errors import CallbackError, ProtocolError, ResultError
from jaxd_protocol.fingerprint.client_object import (
    ClientObject,
    holds_function,
)
from jaxd_protocol.fingerprint.code.callbacks import CellOrigin, cell_origin, code_at
from jaxd_protocol.fingerprint.code.library_callbacks import place_given
from jaxd_protocol.fingerprint.data_model import (
    CallbackCandidate,
    CallbackCandidates,
    CodePath,
    ListedCallback,
    callback_name,
)
from jaxd_protocol.packages.importable import importable_name
from jaxd_protocol.packages.installed import SERVER_PACKAGES, is_local_module
from jaxd_protocol.pytree import dump_literal, is_literal
from jaxd_server.codec.arguments import parse_arguments, read_leaves
from jaxd_server.codec.result_encoder import LeafSlot, ResultEncoder
from jaxd_server.codec.results import ResultLayout, pack_result
from jaxd_server.runtime.threads.cancellation import assigned

CallbackTarget = tuple[Any, ...]

_CONTAINERS: Final = (list, tuple, set, frozenset)
_missing: Final = object()

_arguments: ContextVar[tuple[tuple[Any, ...], Mapping[str, Any]] | None] = ContextVar(
    "arguments of the function that is traced", default=None
)


def runs_on_server(function: Callable[..., Any]) -> bool:
    """Whether a callback does the same on the server: Python's own, jax's own, or a library's.

    What they print is shown where the call is. A function that a library offers by a name may know
    something of the client's process, and so it does not stay.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, ClientObject):
        return False
    owner = getattr(function, "__self__", None)
    if isinstance(function, MethodType) or (owner is not None and type(owner) is not ModuleType):
        return any(owner is stream for stream in (sys.stdout, sys.stderr))
    module = getattr(function, "__module__", None) or ""
    if not module or is_local_module(module):
        return not module
    is_named = isinstance(function, FunctionType) and importable_name(function) is not None
    return module.partition(".")[0] in SERVER_PACKAGES or not is_named


def is_made_by_library(function: Callable[..., Any]) -> bool:
    """Whether a callback stays here as a library's, and is not Python's or jax's own."""
    while isinstance(function, functools.partial):
        function = function.func
    home = (getattr(function, "__module__", None) or "").partition(".")[0]
    return home not in ("", *SERVER_PACKAGES) and runs_on_server(function)


def recording_arguments(
    function: Callable[..., Any], targets: CallbackCandidates
) -> Callable[..., Any]:
    """The function, whose arguments are recorded for `CallbackTargets` if they may be called."""
    if not targets.takes_arguments:
        return function

    @functools.wraps(function)
    def recording(*args: Any, **kwargs: Any) -> Any:
        with assigned(_arguments, (args, kwargs)):
            return function(*args, **kwargs)

    return recording


class CallbackTargets:
    """Makes the callback targets of one function that is traced.

    Args:
        name: its name.
        targets: what may be called back.
        listed: what `callbacks=` lists.
    """

    def __init__(
        self, name: str, targets: CallbackCandidates, listed: Sequence[ListedCallback] = ()
    ) -> None:
        self._name = name
        self._targets = targets
        self._listed = listed

    def at(self, function: Callable[..., Any]) -> tuple[CallbackTarget, list[Any]]:
        """The target that names a function, and the arrays that it refers to.

        Raises:
            CallbackError: when the client does not let it be called.
        """
        arrays: list[Any] = []
        return self._at(function, arrays), arrays

    def lists(self, function: Any) -> bool:
        """Whether `callbacks=` lists a function."""
        return self._entry(function) is not None

    def _at(self, function: Any, arrays: list[Any]) -> CallbackTarget:
        target = self._known_target(function)
        if target is not None:
            return target
        if isinstance(function, functools.partial):
            args = tuple(self._data(each, arrays) for each in function.args)
            named = tuple((k, self._data(each, arrays)) for k, each in function.keywords.items())
            return "partial", self._at(function.func, arrays), args, named
        if isinstance(function, FunctionType):
            for number, (owner, path) in enumerate(self._targets.codes):
                if _is_made_by(owner, path, function):
                    return "made", number, *_Describer(self, owner, arrays).contents(path, function)
        raise self._refused(function)

    def _known_target(self, function: Any) -> CallbackTarget | None:
        """The target of a function that the client has already, and need not make."""
        number = self._entry(function)
        if number is not None:
            return "listed", number
        given = (
            ("given", number)
            for number, target in enumerate(self._targets.objects)
            if _is_at(target, function)
        )
        passed = (
            ("argument", number)
            for number, origin in enumerate(self._targets.parameters)
            if _is_same(_attribute(self._argument(origin.name), origin.names), function)
        )
        return next(chain(given, passed, _library_targets(function)), None)

    def _refused(self, function: Any) -> CallbackError:
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        what = "a callback" if type(function) is ClientObject else name
        return CallbackError(
            f"{self._name} gives {what} to jax.debug.callback or io_callback, which is to run in "
            "the client's process, and its code does not say which function of that process it "
            "is. Give the function itself as the first argument there, or allow it by name: "
            "persistent_call(callbacks=[...])."
        )

    def _entry(self, function: Any) -> int | None:
        """The number of a function in `callbacks=`."""
        if type(function) is ClientObject:
            if not function.listed:
                return None
            own = ((n, e) for n, e in enumerate(self._listed) if e.owner == function.number)
            same = (n for n, e in own if ((e.method,) if e.method else ()) == function.names)
            return next(same, None)
        if not self._listed or isinstance(function, functools.partial):
            return None
        name = callback_name(function)
        found = [number for number, each in enumerate(self._listed) if each.name == name]
        if len(found) > 1:
            raise CallbackError(
                f"{self._name} gives {name} to jax.debug.callback or io_callback, and callbacks= "
                "lists several of that name. List functions with names of their own."
            )
        return found[0] if found else None

    def _argument(self, parameter: str) -> Any:
        noted = _arguments.get()
        try:
            return _missing if noted is None else self._targets.argument(parameter, *noted)
        except KeyError:
            return _missing

    # data -------------------------------------------------------------------------------------

    def _data(self, value: Any, arrays: list[Any]) -> CallbackTarget:
        kind = type(value)
        if kind in _CONTAINERS:
            return kind.__name__, tuple(self._data(each, arrays) for each in value)
        if kind is dict:
            pairs = value.items()
            return "dict", tuple((self._data(k, arrays), self._data(v, arrays)) for k, v in pairs)
        if any(base.__name__ == "Tracer" for base in kind.__mro__):
            raise CallbackError(
                f"{self._name} gives a function to jax.debug.callback or io_callback that closes "
                "over a value which is only computed when the program runs. Pass it as an argument "
                "of the callback."
            )
        if is_literal(value):
            return "value", value
        if _is_array(value):
            arrays.append(value)
            is_jaxs = any(base.__module__.startswith("jax") for base in kind.__mro__)
            return "held" if is_jaxs else "array", len(arrays) - 1
        what = "an object of the client's" if kind is ClientObject else f"a {kind.__qualname__}"
        raise CallbackError(
            f"{self._name} gives a function to jax.debug.callback or io_callback that holds "
            f"{what}, which is no data. Have it use a global of its module instead, "
            "or allow it to be called: persistent_call(callbacks=[...])."
        )

    def content(
        self, value: Any, owner: FunctionType, cell: CellOrigin, arrays: list[Any]
    ) -> CallbackTarget:
        """What a variable holds: something of the client's own, or data.

        Raises:
            CallbackError: when it is neither.
        """
        number = self._entry(value) if callable(value) and not isinstance(value, type) else None
        if number is not None:
            return "listed", number
        if cell.kind == "parameter" and cell.depth == 0 and not _is_data(value):
            targets = self._targets
            for number, (function, instance) in enumerate(targets.methods):
                if function is owner and _attribute(instance, cell.names) is value:
                    return "self", number
            if owner is targets.root and value is _attribute(self._argument(cell.name), cell.names):
                return ("argument",)
        return self._data(value, arrays)


class _Describer:
    """Describes what functions hold that are made in place, which the client cannot see."""

    def __init__(
        self, callback_targets: CallbackTargets, owner: FunctionType, arrays: list[Any]
    ) -> None:
        self._callback_targets = callback_targets
        self._owner = owner
        self._arrays = arrays
        self._open: set[CodePath] = set()

    def contents(self, path: CodePath, function: FunctionType) -> tuple[Any, ...]:
        """Cells, defaults and keywords."""
        codes = code_at(self._owner.__code__, path)
        cells: list[tuple[str, CallbackTarget]] = []
        for name, cell in zip(codes[-1].co_freevars, function.__closure__ or (), strict=True):
            known = cell_origin(codes, name)
            if known.kind == "own" or (known.origin is not None and known.origin.kind != "code"):
                continue  # the client has it
            cells.append((name, self._cell(path, known, cell)))
        defaults, keywords = function.__defaults__, function.__kwdefaults__
        local = CellOrigin("local", 0, "")
        return (
            tuple(cells),
            None if defaults is None else tuple(self._content(each, local) for each in defaults),
            None
            if keywords is None
            else tuple((name, self._content(each, local)) for name, each in keywords.items()),
        )

    def _content(self, value: Any, cell: CellOrigin) -> CallbackTarget:
        return self._callback_targets.content(value, self._owner, cell, self._arrays)

    def _cell(self, path: CodePath, known: CellOrigin, cell: CellType) -> CallbackTarget:
        try:
            value = cell.cell_contents
        except ValueError:
            raise CallbackError(
                f"a function that is given to jax.debug.callback or io_callback uses {known.name}, "
                "which has no value yet. Assign it before."
            ) from None
        if known.origin is None:
            return self._content(value, known)
        there = (*path[: known.depth], int(known.origin.name))
        if there in self._open:
            return ("again",)
        self._open.add(there)
        return "code", *self.contents(there, value)


def _library_targets(function: Any) -> Iterator[CallbackTarget]:
    """The target of a function that a library itself gives, in the module that does so."""
    if type(function) is FunctionType:
        found = place_given(function, chain((function.__module__,), _modules_that_call()))
        if found is not None:
            module, origin = found
            yield "library", module, origin.kind, origin.name, origin.names


def _modules_that_call() -> Iterator[str]:
    """The modules whose code is being run, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if isinstance(name, str):
            yield name
        frame = frame.f_back


def _is_array(value: Any) -> bool:
    if isinstance(value, type | ClientObject):
        return False
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _is_data(value: Any) -> bool:
    return is_literal(value) or _is_array(value) or type(value) in (*_CONTAINERS, dict)


def _is_at(target: CallbackCandidate, function: Any) -> bool:
    """Whether a function is what stands in the table."""
    if type(function) is ClientObject:
        return not function.listed and (target.number, target.names) == (
            function.number,
            function.names,
        )
    if target.module:
        name = f"{target.module}:{'.'.join(target.names)}"
        return callback_name(function) == name or _is_same(
            _attribute(sys.modules.get(target.module), target.names), function
        )
    return _is_same(_attribute(target.root, target.names), function)


def _attribute(root: Any, names: Sequence[str]) -> Any:
    found = root
    for name in names:
        try:
            found = getattr(found, name)
        except Exception:  # noqa: BLE001  a property of the user's may do anything
            return _missing
    return found


def _is_same(one: Any, other: Any) -> bool:
    """Whether two are one object, or the same method of one."""
    if one is other:
        return True
    if type(one) is not type(other) or not isinstance(one, MethodType | BuiltinFunctionType):
        return False
    return one.__self__ is other.__self__ and one.__name__ == other.__name__


def _is_made_by(owner: FunctionType, path: CodePath, function: FunctionType) -> bool:
    """Whether a function is made in place there, in the closure that its owner has now."""
    codes = code_at(owner.__code__, path)
    if codes[-1] is not function.__code__:
        return False
    own = dict(zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=True))
    pairs = zip(codes[-1].co_freevars, function.__closure__ or (), strict=True)
    return all(
        own[known.name] is cell
        for name, cell in pairs
        if (known := cell_origin(codes, name)).kind == "own" and not known.names
    )


def pack_callback(
    callback_target: CallbackTarget,
    held: Sequence[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[bytes, bytes], list[memoryview]]:
    """Skeleton and blob of ``(callback_target, held, args, kwargs)``, and the buffers beside them.

    Args:
        callback_target: which function.
        held: the arrays that it refers to.
        args: what it is called with.
        kwargs: the same by name.

    Raises:
        CallbackError: when something of it cannot travel.
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    arrays = [*held]
    slots = []
    for leaf in leaves:
        is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
        slots.append(LeafSlot(len(arrays), leaf) if is_array else leaf)
        arrays += [leaf] if is_array else []
    places = tuple(LeafSlot(index, array) for index, array in enumerate(held))
    rebuilt = jax.tree.unflatten(structure, slots)
    if holds_function(rebuilt):
        raise CallbackError(
            "a function that is to be called back is given a function as an argument. Have it "
            "use that one by itself."
        )
    encoder = ResultEncoder([_type(array) for array in arrays])
    try:
        encoder.node((dump_literal(callback_target), places, *rebuilt))
    except ResultError as error:
        raise CallbackError(
            f"a function that is to be called back is given something that cannot travel: {error}"
        ) from error
    form = ResultLayout.of(encoder.skeleton, encoder.order)
    blob, buffers, _ = pack_result(arrays, form)
    return (form.skeleton, blob), buffers


def _type(array: Any) -> Any:
    """What an array looks like; of numpy's, which are never weak, without what jax would make."""
    if isinstance(array, jax.Array):
        return array
    return jax.core.ShapedArray(array.shape, array.dtype)


def read_callback(value: Any, buffers: Sequence[memoryview]) -> Any:
    """What the function returned, arrays of jax as numpy's: the device waits for the callback.

    Raises:
        ProtocolError: when that cannot be read.
    """
    if tuple(map(type, value)) != (bytes, bytes):
        raise ProtocolError(
            "a callback's result cannot be read. Install the same jaxd on both sides."
        )
    skeleton, blob = value
    layout = parse_arguments(skeleton)
    whole = layout.whole
    plain = tuple(leaf._replace(weak=False, exact=False) for leaf in whole.leaves)
    (result,), _ = layout.build(read_leaves(whole._replace(leaves=plain), blob, buffers))
    return result
