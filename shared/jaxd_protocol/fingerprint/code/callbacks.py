"""What a code object gives to jax to be called back, found by following its stack.

What `jax.debug.callback` or `io_callback` is given runs in the client's process, on the objects
that are there then: a list that fills, a progress bar. Two questions are answered here. *May it be
called?* All that can stand as the first argument of such a call, as far as the code shows it: a
name with its attributes, a function made in place, either of them in `functools.partial` or in a
branch of a conditional. A client lets a server call this and nothing else. *Does it count?* An
object that is passed there itself and used for nothing else is not in the key: it decides nothing
about the program. Where that is not certain, it counts like everything else.

An instruction that is not known makes an unknown value, so that less may be called, and more
counts.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any, Final, Literal, NamedTuple

from jaxd_protocol.fingerprint.code.bytecode import HERE, instructions_of, jumps, stack_effect
from jaxd_protocol.fingerprint.data_model import (
    NO_CALLBACKS,
    CallbackReferences,
    Origin,
    OriginKind,
    parameters_of,
)

AS_CALLBACK: Final = (("!", None),)
"""The steps of a read whose value is only given to be called back."""


class CellOrigin(NamedTuple):
    """What a free variable of nested code holds, as far as the code around it shows.

    Attributes:
        kind: `own`: a cell of the outermost function's closure. `static`: always the same, see
            `origin`. `parameter`: what a function was called with. `local`: anything.
        depth: of the code whose variable it is, where that is not the outermost function's cell.
        name: of the variable there.
        names: of the attributes that lead from a parameter.
        origin: what it is assigned, once.
    """

    kind: Literal["own", "static", "parameter", "local"]
    depth: int
    name: str
    names: tuple[str, ...] = ()
    origin: Origin | None = None


class _StackValue(NamedTuple):
    """Something on the stack.

    Attributes:
        origins: where it can come from; none when that is not known.
        alone: whether it is the one origin itself, and this is the only place that has it.
        first: the first item, of a tuple or list.
    """

    origins: frozenset[Origin] = frozenset()
    alone: bool = True
    first: frozenset[Origin] = frozenset()


_UNKNOWN: Final = _StackValue()
_CALLBACK_NAMES: Final = frozenset({"io_callback", "debug_callback"})
_CALLBACK_PATHS: Final = frozenset(
    {("debug", "callback"), ("experimental", "io_callback"), ("jax", "io_callback")}
)
_PARTIAL_PATHS: Final = frozenset({("partial",), ("functools", "partial")})
_NO_EFFECT: Final = HERE.without_effect | {"PRECALL", "RESUME", "KW_NAMES"}
_EXITS: Final = frozenset(
    {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"}
)
_MAX_ORIGINS: Final = 256
"""Variables that are looked through for one value: more of them are assigned each other."""


def nested_codes(code: CodeType) -> list[CodeType]:
    """The code objects that are directly nested in another one, in order."""
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes in code, nested code included."""
    return set(code.co_names).union(*map(names_in, nested_codes(code)))


def code_at(code: CodeType, path: Sequence[int]) -> list[CodeType]:
    """The code at each step of a way.

    Raises:
        IndexError: when there is none.
    """
    found = [code]
    for index in path:
        found.append(nested_codes(found[-1])[index])
    return found


class _StackReader:
    """Follows the stack of one code object, from its first instruction to its last.

    Attributes:
        given: what calls of jax are given as what they call back.
        bound: what variables are assigned.
    """

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._nested = {id(each): at for at, each in enumerate(nested_codes(code))}
        self._stack: list[_StackValue] = []
        self._falls_through = True
        self._merges: dict[int, list[_StackValue]] = {}
        self._keywords: tuple[str, ...] = ()
        self._constants: list[object] = []
        self.given: list[_StackValue] = []
        self.bound: dict[str, list[_StackValue]] = {}
        for each in instructions_of(code):
            self._step(each)

    def _step(self, each: dis.Instruction) -> None:
        joined = self._merges.pop(each.offset, None)
        if joined is not None:
            self._stack = _merge(self._stack, joined) if self._falls_through else joined
            self._falls_through = True
        if each.opname == "KW_NAMES":
            self._keywords = self._code.co_consts[each.arg or 0]
        if each.opname in _NO_EFFECT:
            return
        getattr(self, f"_on_{each.opname.lower()}", self._other)(each)
        if each.opname != "LOAD_CONST":
            self._constants.clear()
        if each.opname in _EXITS:
            self._stack, self._falls_through = [], False

    # the stack --------------------------------------------------------------------------------

    def _push(self, *values: _StackValue) -> None:
        self._stack += values

    def _pop(self) -> _StackValue:
        return self._stack.pop() if self._stack else _UNKNOWN

    def _pops(self, count: int) -> list[_StackValue]:
        return [self._pop() for _ in range(count)][::-1]

    def _other(self, each: dis.Instruction) -> None:
        """An instruction that makes nothing that can be named."""
        argument = each.arg if each.opcode >= dis.HAVE_ARGUMENT else None
        effect = dis.stack_effect(each.opcode, argument, jump=False)
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            self._jump(each, effect)
        elif effect > 0:
            if not each.opname.startswith(("BUILD", "LOAD", "PUSH")):
                self._pop()
                self._push(_UNKNOWN)
            self._push(*[_UNKNOWN] * effect)
        else:
            self._pops(1 - effect)
            self._push(_UNKNOWN)

    def _jump(self, each: dis.Instruction, effect: int) -> None:
        """Two ways begin, each of which may have a call of its own: neither is the only one."""
        before = [value._replace(alone=False) for value in self._stack]
        self._stack = list(before)
        if each.argval > each.offset:  # what lies below the values of a loop stays as it is
            self._change(dis.stack_effect(each.opcode, each.arg, jump=True))
            known = self._merges.get(each.argval)
            there = self._stack if known is None else _merge(known, self._stack)
            self._merges[each.argval] = there
        self._stack = before
        self._change(effect)

    def _change(self, effect: int) -> None:
        self._pops(-effect)
        self._push(*[_UNKNOWN] * effect)

    # instructions -----------------------------------------------------------------------------

    def _on_load_const(self, each: dis.Instruction) -> None:
        self._constants.append(each.argval)
        if isinstance(each.argval, CodeType):
            self._push(_value("code", str(self._nested[id(each.argval)]), each.offset))
        else:
            self._push(_UNKNOWN)

    def _on_load_global(self, each: dis.Instruction) -> None:
        value = _value("global", each.argval, each.offset)
        null = [_UNKNOWN] if (each.arg or 0) & 1 else []
        self._push(*null, value) if HERE.null_first else self._push(value, *null)

    def _on_load_name(self, each: dis.Instruction) -> None:
        self._push(_value("global", each.argval, each.offset))

    def _on_load_fast(self, each: dis.Instruction) -> None:
        self._push(_value("variable", each.argval, each.offset))

    _on_load_fast_check = _on_load_deref = _on_load_classderef = _on_load_fast

    def _on_load_fast_load_fast(self, each: dis.Instruction) -> None:
        first, second = each.argval
        self._push(_value("variable", first, each.offset), _value("variable", second))

    def _on_store_fast(self, each: dis.Instruction) -> None:
        self._bind(each.argval)

    _on_store_deref = _on_store_name = _on_store_global = _on_store_fast

    def _on_store_fast_load_fast(self, each: dis.Instruction) -> None:
        stored, loaded = each.argval
        self._bind(stored)
        self._push(_value("variable", loaded))

    def _on_store_fast_store_fast(self, each: dis.Instruction) -> None:
        for name in each.argval:
            self._bind(name)

    def _bind(self, name: str) -> None:
        self.bound.setdefault(name, []).append(self._pop())

    def _on_load_attr(self, each: dis.Instruction) -> None:
        self._attribute(each.argval, method=not HERE.has_load_method and bool((each.arg or 0) & 1))

    def _on_load_method(self, each: dis.Instruction) -> None:
        self._attribute(each.argval, method=True)

    def _attribute(self, name: str, *, method: bool) -> None:
        of = self._pop()
        found = frozenset(each.at(name) for each in of.origins if each.kind != "code")
        self._push(_StackValue(found, of.alone))
        if method:
            self._push(_UNKNOWN)

    def _on_import_name(self, each: dis.Instruction) -> None:
        level, names = ([None, None, *self._constants])[-2:]
        self._pops(2)
        module = each.argval if names else each.argval.partition(".")[0]
        self._push(_UNKNOWN if level else _value("module", module))

    def _on_import_from(self, each: dis.Instruction) -> None:
        of = self._stack[-1] if self._stack else _UNKNOWN
        self._push(_StackValue(frozenset(one.at(each.argval) for one in of.origins)))

    def _on_make_function(self, each: dis.Instruction) -> None:
        made = self._pop()
        if HERE.null_first:  # from CPython 3.13 on, SET_FUNCTION_ATTRIBUTE has the rest
            self._pops((each.arg or 0).bit_count())
        self._push(made)

    def _on_set_function_attribute(self, _: dis.Instruction) -> None:
        made = self._pop()
        self._pop()
        self._push(made)

    def _on_copy(self, each: dis.Instruction) -> None:
        at = len(self._stack) - (each.arg or 1)
        value = self._stack[at]._replace(alone=False) if at >= 0 else _UNKNOWN
        if at >= 0:
            self._stack[at] = value
        self._push(value)

    def _on_swap(self, each: dis.Instruction) -> None:
        values = self._pops(each.arg or 1)
        values[0], values[-1] = values[-1], values[0]
        self._push(*values)

    def _on_pop_top(self, _: dis.Instruction) -> None:
        self._pop()

    def _on_build_list(self, each: dis.Instruction) -> None:
        values = self._pops(each.arg or 0)
        self._push(_StackValue(first=values[0].origins if values else frozenset()))

    _on_build_tuple = _on_build_list

    _on_list_extend = _on_list_append = _on_pop_top

    def _keep_top(self, _: dis.Instruction) -> None:
        """The value on top counts as what it was."""

    _on_list_to_tuple = _on_call_intrinsic_1 = _keep_top

    # calls ------------------------------------------------------------------------------------

    def _on_call(self, each: dis.Instruction) -> None:
        names, self._keywords = self._keywords, ()
        self._call(self._pops(each.arg or 0), names)

    def _on_call_kw(self, each: dis.Instruction) -> None:
        self._pop()
        names = self._constants[-1] if self._constants else None
        self._call(self._pops(each.arg or 0), names if isinstance(names, tuple) else ())

    def _call(self, args: list[_StackValue], names: tuple[str, ...]) -> None:
        given = args[0] if len(args) > len(names) else _UNKNOWN
        if "callback" in names:
            given = args[len(args) - len(names) + names.index("callback")]
        self._called([*self._pops(2)], given)

    def _on_call_function_ex(self, each: dis.Instruction) -> None:
        if HERE.has_keywords or (each.arg or 0) & 1:
            self._pop()
        given = _StackValue(self._pop().first, alone=False)
        self._called(self._pops(2), given)

    def _called(self, callee: list[_StackValue], given: _StackValue) -> None:
        chains = {(each.name, *each.names) for one in callee for each in one.origins}
        if any(
            chain[-2:] in _CALLBACK_PATHS or _CALLBACK_NAMES.issuperset(chain) for chain in chains
        ):
            is_one = all(one.alone for one in callee)
            self.given.append(given._replace(alone=given.alone and is_one))
        is_partial = not _PARTIAL_PATHS.isdisjoint(chains)
        self._push(_StackValue(given.origins, alone=False) if is_partial else _UNKNOWN)


def _value(kind: OriginKind, name: str, at: int = -1) -> _StackValue:
    return _StackValue(frozenset({Origin(kind, name, offset=at)}))


def _merge(one: list[_StackValue], other: list[_StackValue]) -> list[_StackValue]:
    """What lies on the stack where two ways meet."""
    count = min(len(one), len(other))
    pairs = zip(one[len(one) - count :], other[len(other) - count :], strict=True)
    return [
        a if a == b else _StackValue(a.origins | b.origins, alone=False, first=a.first | b.first)
        for a, b in pairs
    ]


_read: Final = lru_cache(maxsize=256)(_StackReader)


def _may_call_back(code: CodeType) -> bool:
    """Whether the code can call back at all, as nearly all cannot."""
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    return "callback" in code.co_names or not _CALLBACK_NAMES.isdisjoint(names)


def loads_given_to_callbacks(code: CodeType) -> tuple[frozenset[int], frozenset[int]]:
    """Where names are loaded that are only given to be called back, and functions made.

    Returns:
        Offsets of the loads (for a paired load, of the first of the two), and the `id` of the code
        of functions that are made in place.
    """
    if not _may_call_back(code):
        return frozenset(), frozenset()
    nested = nested_codes(code)
    only = [next(iter(v.origins)) for v in _read(code).given if v.alone and len(v.origins) == 1]
    loads = (o.offset for o in only if o.kind in ("global", "variable") and o.offset >= 0)
    return (
        frozenset(loads),
        frozenset(id(nested[int(each.name)]) for each in only if each.kind == "code"),
    )


# what may be called -------------------------------------------------------------------------------


def callback_references(code: CodeType, inner: Sequence[CallbackReferences]) -> CallbackReferences:
    """What code gives to be called back.

    Args:
        code: the code.
        inner: the same of each code that is directly nested in it, in order.
    """
    given = [each for v in _read(code).given for each in v.origins] if _may_call_back(code) else []
    codes = [(at, *path) for at, gives in enumerate(inner) for path in gives.codes]
    objects = [each for gives in inner for each in gives.objects]
    if not (given or codes or objects):
        return NO_CALLBACKS
    free = [each for each in objects if each.kind == "variable"]
    fixed = [each for each in objects if each.kind != "variable"]
    found = [one for each in (*given, *free) for one in _resolved(code, each)]
    codes += [(int(each.name),) for each in found if each.kind == "code"]
    fixed += [each._replace(offset=-1) for each in found if each.kind != "code"]
    return CallbackReferences(tuple(sorted(set(fixed))), tuple(sorted(set(codes))))


def _resolved(code: CodeType, origin: Origin) -> Iterator[Origin]:
    """Where it comes from, once the variables of this code are looked through."""
    todo: list[tuple[Origin, tuple[str, ...]]] = [(origin, ())]
    met: set[tuple[str, ...]] = set()
    while todo and len(met) < _MAX_ORIGINS:
        each, seen = todo.pop()
        name = each.name
        if each.kind != "variable" or name in code.co_freevars:
            yield each
        elif name in seen or (name, *each.names) in met or _is_assigned_below(code, name):
            continue
        elif name in parameters_of(code):
            if name not in _read(code).bound:
                yield each
        else:
            met.add((name, *each.names))
            for one in (one for v in _read(code).bound.get(name, []) for one in v.origins):
                if one.kind != "code" or not each.names:
                    found = one._replace(names=(*one.names, *each.names))
                    todo.append((found, (*seen, name)))


def _is_assigned_below(code: CodeType, name: str) -> bool:
    """Whether nested code assigns a variable of this one."""
    return any(
        name in each.co_freevars and (name in _read(each).bound or _is_assigned_below(each, name))
        for each in nested_codes(code)
    )


def cell_origin(
    codes: Sequence[CodeType],
    name: str,
    names: tuple[str, ...] = (),
    seen: tuple[str, ...] = (),
) -> CellOrigin:
    """What a free variable of nested code holds.

    Args:
        codes: the code objects from the outermost to the one with the variable, each of which is
            nested in the one before.
        name: of the variable.
        names: of the attributes that lead from it.
        seen: variables of the same code that are assigned it, directly or by another one.
    """
    for depth in range(len(codes) - 2, -1, -1):
        code = codes[depth]
        if name in code.co_freevars:
            continue
        local = CellOrigin("local", depth, name)
        if _is_assigned_below(code, name):
            return local
        values = _read(code).bound.get(name, [])
        if name in parameters_of(code):
            return CellOrigin("local" if values else "parameter", depth, name, names)
        if len(values) != 1 or len(values[0].origins) != 1 or not values[0].alone:
            return local  # also of a partial of one origin
        (origin,) = values[0].origins
        origin = origin._replace(names=(*origin.names, *names), offset=-1)
        if origin.kind != "variable":
            return CellOrigin("static", depth, name, (), origin)
        if origin.name in (name, *seen):  # they are assigned each other
            return local
        return _aliased_cell(codes[: depth + 1], origin, (*seen, name))
    return CellOrigin("own", 0, name, names)


def _aliased_cell(codes: Sequence[CodeType], origin: Origin, seen: tuple[str, ...]) -> CellOrigin:
    """What a variable holds that is assigned another one."""
    if origin.name in codes[-1].co_freevars:
        return cell_origin(codes, origin.name, origin.names)
    inside = [*codes, codes[-1]]  # as code nested in it reads the variable
    return cell_origin(inside, origin.name, origin.names, seen)


# what is passed to functions that are called by name ---------------------------------------------

_CALLS: Final = frozenset({"CALL", "CALL_KW"})
_MAX_INSTRUCTIONS: Final = 300
_ENDS: Final = frozenset(
    {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "COPY", "SWAP"}
)


class Passed(NamedTuple):
    """An argument of a call.

    Attributes:
        callee: the global that is called, and the attributes that lead from it.
        place: the position of the argument, or its keyword.
        text: the second argument, where it is text in the code: as in ``getattr(cfg, "lr")``.
    """

    callee: tuple[str, ...]
    place: int | str
    text: str | None = None


def passed_arguments(
    code: Sequence[Any], constants: Sequence[Any]
) -> dict[int, tuple[int, Passed]]:
    """By the number of the instruction that begins it, the end of each argument, and what it is.

    Args:
        code: instructions.
        constants: of the code object.
    """
    found: dict[int, tuple[int, Passed]] = {}
    for at, each in enumerate(code):
        if each.op == "LOAD_GLOBAL":
            callee, first = _called_name(code, at)
            if callee:
                found.update(_arguments_of(code, constants, callee, first))
    return found


def _called_name(code: Sequence[Any], at: int) -> tuple[tuple[str, ...], int]:
    """What is called of the global that is loaded there, and where its arguments begin."""
    names = [code[at].value]
    if code[at].arg & 1:
        return tuple(names), at + 1
    for end in range(at + 1, min(at + 6, len(code))):
        each = code[end]
        if each.target or each.op not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        names.append(each.value)
        if each.op == "LOAD_METHOD" or (not HERE.has_load_method and each.arg & 1):
            return tuple(names), end + 1
    return (), at


def _arguments_of(
    code: Sequence[Any], constants: Sequence[Any], callee: tuple[str, ...], first: int
) -> Iterator[tuple[int, tuple[int, Passed]]]:
    starts: list[int] = []
    keywords: tuple[str, ...] = ()
    named = depth = 0
    for at in range(first, min(first + _MAX_INSTRUCTIONS, len(code))):
        each = code[at]
        if each.target or each.op in _ENDS or jumps(each.op):
            return
        if each.op == "KW_NAMES":
            if depth == _call_size(code, at + 1):
                keywords, named = constants[each.arg], at
            continue
        if each.op in _CALLS and each.arg == depth - (each.op == "CALL_KW"):
            if each.op == "CALL_KW":  # the names are on top
                named = starts.pop()
                keywords = code[named].value
            if len(starts) == each.arg:
                yield from _places(code, callee, [*starts, named or at], keywords)
            return
        if depth == len(starts):
            starts += [at] * (2 if each.op == "LOAD_FAST_LOAD_FAST" else 1)
        depth += _effect_of(each)
        if depth < 0:
            return
        del starts[depth:]


def _call_size(code: Sequence[Any], at: int) -> int:
    is_call = at < len(code) and code[at].op == "CALL"
    return code[at].arg if is_call else -1


def _effect_of(each: Any) -> int:
    if each.op == "CALL":  # on 3.11 a part of this is that of another instruction
        return -1 - int(each.arg)
    return stack_effect(each.op, each.arg)


def _places(
    code: Sequence[Any], callee: tuple[str, ...], starts: list[int], keywords: Any
) -> Iterator[tuple[int, tuple[int, Passed]]]:
    """Of arguments that begin and end at these instructions; the last is where the call begins."""
    count = len(starts) - 1
    positional = count - len(keywords)
    second = code[starts[1]] if positional > 1 else None
    text = second.value if second is not None and second.op == "LOAD_CONST" else None
    for number, (start, end) in enumerate(pairwise(starts)):
        place = number if number < positional else keywords[number - positional]
        known = text if type(text) is str and number == 0 else None
        yield start, (end, Passed(callee, place, known))
