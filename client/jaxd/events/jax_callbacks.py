"""Runs functions of this process that a server's program calls back.

The forms of a callback target are described where servers make them, in
`jaxd_server.user_code.callback_targets`. A callback target is a literal, so nothing in it can name
a callable. It selects one of the functions that the client's own walk has found to be passed to
`jax.debug.callback` or `io_callback`, or that the user lists in `callbacks=`; otherwise it holds
data. A compromised server must not gain control of its clients, so a target cannot reach the
attributes of an object.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.connection.server_requests import NoCallbackExpected
from jaxd.request.arguments import encode_arguments
from jaxd.request.call_request import callback_scope
from jaxd.results.reader import received_texts
from jaxd_protocol.errors import CallbackError, ProtocolError
from jaxd_protocol.fingerprint.client_object import holds_function
from jaxd_protocol.fingerprint.code.callbacks import CellOrigin, cell_origin, code_at
from jaxd_protocol.fingerprint.data_model import CallbackCandidates, CodePath, Origin
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS
from jaxd_protocol.pytree.literals import load_literal

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.events.effects import CallEffects
    from jaxd.request.call_request import CallRequest
    from jaxd.request.function_snapshot import FunctionSnapshot


CallbackTarget = tuple[Any, ...]
CallArguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class CallbackTable:
    """The functions that one call may call back.

    Args:
        targets: the functions that the walk has found.
        listed: those of `callbacks=`.
        arguments: what the function itself was called with; None when they are not its own.
        reaches: whether the function and its arguments reach the package of a module.
    """

    def __init__(
        self,
        targets: CallbackCandidates,
        listed: Sequence[Callable[..., Any]] = (),
        arguments: CallArguments | None = None,
        reaches: Callable[[str], bool] | None = None,
    ) -> None:
        self._targets = targets
        self._listed_callbacks = listed
        self._arguments = arguments
        self._reaches = reaches

    def function_at(
        self, callback_target: CallbackTarget, held: Sequence[Any]
    ) -> Callable[..., Any]:
        """The function that a callback target of the server refers to.

        Args:
            callback_target: as it came from the server.
            held: the arrays that it refers to.

        Raises:
            ProtocolError: when the server may not call that function.
            CallbackError: when the function does not exist any more.
        """
        try:
            kind, *rest = callback_target
            found = self._KINDS[kind](self, held, *rest)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise ProtocolError(
                "the server wants a function called that this call does not give to be called "
                "back. Is that server what it should be?"
            ) from error
        return found  # type: ignore[no-any-return]

    def _given_object(self, _: Sequence[Any], number: int) -> Any:
        target = self._targets.objects[_checked_index(number)]
        root = _module_of(target.module) if target.module else target.root
        return _follow_attributes(root, target.names)

    def _listed_callback(self, _: Sequence[Any], number: int) -> Any:
        return self._listed_callbacks[_checked_index(number)]

    def _argument_function(self, _: Sequence[Any], number: int) -> Any:
        origin = self._targets.parameters[_checked_index(number)]
        return _follow_attributes(self._argument_value(origin.name), origin.names)

    def _argument_value(self, parameter: str) -> Any:
        if self._arguments is None:
            raise KeyError(parameter)
        return self._targets.argument(parameter, *self._arguments)

    def _library_function(
        self, _: Sequence[Any], module: str, kind: str, name: str, names: Sequence[str]
    ) -> Any:
        """What a module gives to be called back in this process's own copy of its code."""
        from jaxd_protocol.fingerprint.code.library_callbacks import given_function

        kind, name, *names = (_checked_text(each) for each in (kind, name, *names))
        if self._reaches is None or not self._reaches(_checked_text(module)):
            raise LookupError(module)
        _module_of(module)  # nothing is imported because a server says so
        return given_function(module, Origin(kind, name, tuple(names)))  # type: ignore[arg-type]

    def _partial_function(
        self,
        held: Sequence[Any],
        callback_target: CallbackTarget,
        args: Sequence[CallbackTarget],
        named: Sequence[tuple[str, CallbackTarget]],
    ) -> Any:
        given = {_checked_text(name): _decode_data(each, held) for name, each in named}
        of = self.function_at(callback_target, held)
        return functools.partial(of, *[_decode_data(each, held) for each in args], **given)

    def _built_function(self, held: Sequence[Any], number: int, *parts: Any) -> FunctionType:
        owner, path = self._targets.codes[_checked_index(number)]
        return _FunctionBuilder(self, owner, held).function(path, *parts)

    _KINDS: Final[dict[str, Callable[..., Any]]] = {
        "given": _given_object,
        "listed": _listed_callback,
        "argument": _argument_function,
        "library": _library_function,
        "partial": _partial_function,
        "made": _built_function,
    }

    # what cells hold --------------------------------------------------------------------------

    def cell_content(self, owner: FunctionType, cell: CellOrigin, parts: CallbackTarget) -> Any:
        """The content of a closure variable whose value only the client has.

        Raises:
            ValueError: when it cannot be.
        """
        kind, *rest = parts
        if kind == "listed":
            return self._listed_callback((), *rest)
        is_parameter = cell.kind == "parameter" and cell.depth == 0
        if kind == "argument" and is_parameter and owner is self._targets.root:
            return _follow_attributes(self._argument_value(cell.name), cell.names)
        if kind == "self" and is_parameter and owner.__code__.co_varnames[0] == cell.name:
            (number,) = rest
            function, instance = self._targets.methods[_checked_index(number)]
            if function is owner:
                return _follow_attributes(instance, cell.names)
        raise ValueError(kind)


class _FunctionBuilder:
    """Builds nested functions from the code of a local function, as that function would."""

    def __init__(self, table: CallbackTable, owner: FunctionType, held: Sequence[Any]) -> None:
        self._table = table
        self._owner = owner
        self._held = held
        self._cells: dict[CodePath, CellType] = {}

    def function(
        self,
        path: CodePath,
        cells: Sequence[tuple[str, CallbackTarget]],
        defaults: Any,
        keywords: Any,
    ) -> FunctionType:
        codes = code_at(self._owner.__code__, path)
        parts = dict(cells)
        closure = tuple(self._cell(codes, path, name, parts) for name in codes[-1].co_freevars)
        code = codes[-1]
        function = FunctionType(code, self._owner.__globals__, code.co_name, None, closure)
        function.__qualname__ = code.co_qualname
        if defaults is not None:
            function.__defaults__ = tuple(self._value(each) for each in defaults)
        if keywords is not None:
            function.__kwdefaults__ = {
                _checked_text(name): self._value(each) for name, each in keywords
            }
        return function

    def _cell(
        self, codes: list[CodeType], path: CodePath, name: str, parts: dict[str, CallbackTarget]
    ) -> CellType:
        cell = cell_origin(codes, name)
        if cell.kind == "own":
            names = self._owner.__code__.co_freevars
            own = (self._owner.__closure__ or ())[names.index(cell.name)]
            if cell.names:
                return CellType(_follow_attributes(own.cell_contents, cell.names))
            return own
        origin = cell.origin
        if origin is None:
            return CellType(self._value(parts[name], cell))
        if origin.kind == "code":
            return self._function_cell((*path[: cell.depth], int(origin.name)), parts[name])
        is_global = origin.kind == "global"
        root = self._owner.__globals__[origin.name] if is_global else _module_of(origin.name)
        return CellType(_follow_attributes(root, origin.names))

    def _function_cell(self, path: CodePath, parts: CallbackTarget) -> CellType:
        """A cell that holds a function defined beside it, possibly recursive."""
        kind, *rest = parts
        if kind == "again":
            return self._cells[path]
        if kind != "code" or path in self._cells:
            raise ValueError(kind)
        made = self._cells[path] = CellType()
        made.cell_contents = self.function(path, *rest)
        return made

    def _value(self, parts: CallbackTarget, cell: CellOrigin | None = None) -> Any:
        if parts[0] in _DATA_DECODERS:
            return _decode_data(parts, self._held)
        return self._table.cell_content(self._owner, cell or _LOCAL, parts)


_LOCAL: Final = CellOrigin("local", 0, "")


def _module_of(name: str) -> Any:
    found = sys.modules.get(name)
    if found is None:
        raise CallbackError(
            f"a function is to be called back that uses the module {name}, which this process has "
            "not imported. Import it at the top of the file, or inside of that function."
        )
    return found


def _follow_attributes(root: Any, names: Sequence[str]) -> Any:
    found = root
    for name in names:
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise CallbackError(
                f"a function is to be called back that is not there any more: {error}. Do not "
                "remove it while programs run that call it."
            ) from error
    return found


# data ---------------------------------------------------------------------------------------------


def _decode_data(parts: CallbackTarget, held: Sequence[Any]) -> Any:
    kind, content = parts
    return _DATA_DECODERS[kind](content, held)


def _decode_dict(
    pairs: Sequence[tuple[CallbackTarget, CallbackTarget]], held: Sequence[Any]
) -> dict[Any, Any]:
    return {_decode_data(key, held): _decode_data(value, held) for key, value in pairs}


def _held_array(number: int, held: Sequence[Any]) -> Any:
    found = held[_checked_index(number)]
    if not _is_array(found):
        raise TypeError(found)
    return found


def _build_array(number: int, held: Sequence[Any]) -> Any:
    import numpy

    return numpy.array(_held_array(number, held))


def _decode_items(
    kind: Callable[[Any], Any],
) -> Callable[[Sequence[CallbackTarget], Sequence[Any]], Any]:
    return lambda items, held: kind([_decode_data(each, held) for each in items])


_DATA_DECODERS: Final[dict[str, Callable[[Any, Sequence[Any]], Any]]] = {
    "value": lambda value, _: value,  # a literal, as the whole callback target is one
    "held": _held_array,
    "array": _build_array,
    "list": _decode_items(list),
    "tuple": _decode_items(tuple),
    "set": _decode_items(set),
    "frozenset": _decode_items(frozenset),
    "dict": _decode_dict,
}


def _is_array(value: Any) -> bool:
    """Whether this is a native array of this process, and no array-like object."""
    from jaxd.interop.jax_runtime import PRNGKeys
    from jaxd.interop.lazy_array import ArrayLike

    numpy, jax = sys.modules.get("numpy"), sys.modules.get("jax")
    return (
        isinstance(value, ArrayLike)
        or type(value) is PRNGKeys
        or (numpy is not None and type(value) is numpy.ndarray)
        or (jax is not None and isinstance(value, jax.Array))
    )


def check_no_functions(value: Any) -> None:
    """Returns when the arguments of a callback hold no function or class; see `holds_function`.

    Raises:
        ProtocolError: when they do.
    """
    if holds_function(value):
        raise ProtocolError(
            "the server gives a function to what it calls back. Is that server what it should be?"
        )


def _checked_index(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise IndexError(number)
    return number


def _checked_text(name: Any) -> str:
    if type(name) is not str:
        raise TypeError(name)
    return name


class CallbackOrigin(Protocol):
    """The open call for which a program calls back.

    Attributes:
        may_go_on: whether its program may go on after the connection was lost: then it asks again
            for what has no answer.
        has_called_back: set when a function of this process is called for it.
        callback_error: what the last of these raised; None when it returned.
    """

    may_go_on: bool
    has_called_back: bool
    callback_error: BaseException | None

    @property
    def call(self) -> CallRequest:
        """The request."""

    @property
    def connection(self) -> ClientConnection | None:
        """Over which it was sent; None: that was lost."""

    def before_callback(self) -> None:
        """A function of this process is about to be called, which may change what the call took."""

    def effects(self) -> CallEffects:
        """Those that it has had in this process; they do not happen twice."""


_QUESTION: Final = (int, bytes, bytes, int, int, int)


def answer_callback(
    origin: CallbackOrigin,
    question: tuple[Any, ...],
    buffers: Sequence[memoryview],
    *,
    is_recorded: bool,
) -> tuple[Any, Sequence[memoryview]]:
    """What a function of this process returns, for the server: it is called once, if ever.

    Args:
        origin: the call.
        question: see `run_callback`.
        buffers: the rest of it.
        is_recorded: whether all answers are kept, to make the call again for its arrays.

    Raises:
        CallbackError: when the server asks once more for an answer that is not here.
        BaseException: see `run_callback`.
    """
    run = functools.partial(run_callback, origin, question, buffers)
    if not (is_recorded or origin.may_go_on) or tuple(map(type, question)) != _QUESTION:
        return run()
    *_, place, has_lost_connection = question
    if has_lost_connection and not origin.may_go_on:
        raise CallbackError(
            "a connection was lost while a call was made again for its arrays, which had called "
            "functions of this process. They are not called twice."
        )
    if is_recorded:
        origin.before_callback()
    return origin.effects().answer(question[1:4], buffers, run, place, is_recorded=is_recorded)


def run_callback(
    origin: CallbackOrigin, question: tuple[Any, ...], buffers: Sequence[memoryview]
) -> tuple[Any, Sequence[memoryview]]:
    """Calls a function of this process; what it returns, for the server.

    Args:
        origin: the call.
        question: the number of the call, what is to be called with what, whether its result is
            wanted, its place among those of one run of a program that may ask again (else -1), and
            whether that has lost a connection before.
        buffers: the rest of it.

    Raises:
        NoCallbackExpected: when the call gives nothing to be called back.
        BaseException: what the function raises; it is kept for the caller as well.
    """
    snapshot, arguments = origin.call.spec.snapshot, origin.call.arguments
    if not snapshot.calls_back:
        raise NoCallbackExpected(
            f"the server wants a function called back by {snapshot.name}, which "
            "gives none to jax.debug.callback or io_callback. The connection is ended: is that "
            "server what it should be?"
        )
    if tuple(map(type, question)) != _QUESTION:
        raise _unknown_callback()
    _, skeleton, blob, wants_result, _, _ = question
    origin.has_called_back, origin.callback_error = True, None
    try:
        with callback_scope(origin):
            function, args, kwargs = _resolve(snapshot, arguments, skeleton, blob, buffers)
            result = function(*args, **kwargs)
        return _encode_result(snapshot, result if wants_result else None)
    except BaseException as error:
        origin.callback_error = error
        raise


def _resolve(
    snapshot: FunctionSnapshot,
    arguments: CallArguments | None,
    skeleton: bytes,
    blob: bytes,
    buffers: Sequence[memoryview],
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """The function of this process that is to be called, and with what."""
    with snapshot.pickling_context():
        read = snapshot.reader.read(skeleton, blob, buffers, "auto")
    if type(read) is not tuple or tuple(map(type, read)) != (bytes, tuple, tuple, dict):
        raise _unknown_callback()
    callback_target, held, args, kwargs = read
    literal, end = load_literal(callback_target, 0)
    if type(literal) is not tuple or end != len(callback_target):
        raise _unknown_callback()
    received_texts.take_note(literal)  # what the variables of a function made in place hold
    table = CallbackTable(snapshot.targets, snapshot.callbacks, arguments, snapshot.reader.reaches)
    function = table.function_at(literal, held)
    check_no_functions((args, kwargs))
    return function, args, kwargs


def _unknown_callback() -> ProtocolError:
    return ProtocolError(
        "the server calls back in a way that this client does not know. Install the same jaxd on "
        "both sides."
    )


def _encode_result(snapshot: FunctionSnapshot, result: Any) -> tuple[Any, Sequence[memoryview]]:
    with snapshot.pickling_context():
        encoded = encode_arguments((result,), {}, NO_STATIC_ARGS, {}, gathers=True)
    return (encoded.skeleton, encoded.blob), encoded.buffers
