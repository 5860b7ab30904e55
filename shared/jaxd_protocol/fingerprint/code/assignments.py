"""What the code of a module assigns to its names, as far as that can be read.

Constants; names under which it has what stands elsewhere; and values that it makes of these by
calling what only holds its arguments, such as `functools.partial`. Nothing of it is run here.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import FrozenImporter, SourceFileLoader, SourcelessFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary
from zipimport import zipimporter

from jaxd_protocol.fingerprint.code.callbacks import nested_codes
from jaxd_protocol.fingerprint.code.reads import Instruction, Instructions


class Expression(NamedTuple):
    """How a value is made.

    Attributes:
        kind: `constant`: the content. `name`: of a global. `attribute`: of the first part.
            `call`: of the first part, with the others, of which the last have the names that the
            content holds. `item`: the second part, of the first. `union`: of both parts.
            `sequence`: a tuple or list, whose type is the content.
        content: see above.
        parts: see above.
    """

    kind: str
    content: Any = None
    parts: tuple[Expression, ...] = ()


class Assignments(NamedTuple):
    """What the code of a module assigns to its names, as far as that can be read.

    Attributes:
        constants: the names to which it assigns nothing but constants, each with these.
        origins: the names to which it assigns once, what stands elsewhere under another name: the
            full name of the module there, empty for itself, and the names that lead on from it.
        made: the names to which it assigns once, what it makes by calls and subscripts.
    """

    constants: Mapping[str, list[Any]]
    origins: Mapping[str, tuple[str, tuple[str, ...]]]
    made: Mapping[str, Expression]


_NOTHING_KNOWN: Final = Assignments({}, {}, {})

_known: Final[WeakKeyDictionary[ModuleType, tuple[Any, Assignments]]] = WeakKeyDictionary()
"""With the spec, which `importlib.reload` replaces."""

_ASSIGNS: Final = ("STORE_NAME", "STORE_GLOBAL")
_STORE_GLOBAL: Final = dis.opmap["STORE_GLOBAL"]
_IMPORT_STAR: Final = (("IMPORT_STAR", 0), ("CALL_INTRINSIC_1", 2))
_LOADERS: Final = (SourceFileLoader, SourcelessFileLoader, zipimporter)


def assignments_of(module: ModuleType) -> Assignments:
    """Nothing where that cannot be known: of a module in machine code, for instance."""
    # a library may have put some object in its place
    kind: Any = type(module)
    if not (issubclass(kind, ModuleType) and kind.__hash__ is object.__hash__):
        return _NOTHING_KNOWN
    spec = getattr(module, "__spec__", None)
    known = _known.get(module)
    if known is None or known[0] is not spec:
        known = _known[module] = spec, _read_assignments(module)
    return known[1]


def _read_assignments(module: ModuleType) -> Assignments:
    code = code_of(module.__spec__, module.__name__)
    return _NOTHING_KNOWN if code is None else _assigned_in(code, str(module.__package__))


def code_of(spec: Any, module: str) -> CodeType | None:
    """The code of a module; None where that cannot be known, such as of one in machine code."""
    loader: Any = getattr(spec, "loader", None)
    if type(loader) not in _LOADERS and loader is not FrozenImporter:
        return None  # who knows what that does when it is asked
    try:
        code: CodeType | None = loader.get_code(module)
    except (ImportError, OSError, SyntaxError, ValueError):  # such as an integer of 5,000 digits
        return None
    return code


def _assigned_in(code: CodeType, package: str) -> Assignments:
    constants: dict[str, list[Any]] = {}
    origins: dict[str, tuple[str, tuple[str, ...]]] = {}
    stored = Counter[str]()
    by_functions = _assigned_by_functions(code)
    others = set(by_functions)
    listed = Instructions(code)
    imported: tuple[str, tuple[str, ...]] = "", ()
    for at, each in enumerate(listed):
        if (each.op, each.arg) in _IMPORT_STAR:
            others.update(stored)
        elif each.op == "IMPORT_NAME":
            imported = _imported(each.value, listed[at - 2].value, listed[at - 1].value, package)
        elif each.op in _ASSIGNS and at:
            stored[each.value] += 1
            before = listed[at - 1]
            if before.op == "LOAD_CONST" and not each.target:
                constants.setdefault(each.value, []).append(before.value)
                continue
            others.add(each.value)
            origins[each.value] = _taken_from(listed, at, imported)
        elif each.op == "DELETE_NAME":
            others.add(each.value)
    once = {name for name, count in stored.items() if count == 1} - by_functions
    return Assignments(
        {name: own for name, own in constants.items() if name not in others},
        {name: origin for name, origin in origins.items() if origin[1] and name in once},
        {name: made for name, made in _made_in(listed, code).items() if name in once},
    )


def _absolute(name: str, level: Any, package: str) -> str:
    """The full name of a module in an import statement; empty where it has none."""
    if not isinstance(level, int) or level <= 0:
        return name
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])


def _imported(name: str, level: Any, names: Any, package: str) -> tuple[str, tuple[str, ...]]:
    """The module in an import statement, and for `import a.b as c` the names that lead to it."""
    top, *rest = name.split(".")
    return (_absolute(name, level, package), ()) if names else (top, tuple(rest))


def _taken_from(
    listed: Instructions, at: int, imported: tuple[str, tuple[str, ...]]
) -> tuple[str, tuple[str, ...]]:
    """Where the value comes from that an instruction stores; without names where that is unknown.

    Of `a = b = value` each comes from the other.
    """
    before = listed[at - 1]
    if before.op == "IMPORT_FROM":
        home, path = imported
        return home, path or (before.value,)
    if before.op == "COPY" and listed[at + 1].op in _ASSIGNS:
        return "", (listed[at + 1].value,)
    if before.op in _ASSIGNS and listed[at - 2].op == "COPY":
        return "", (before.value,)
    names: list[str] = []
    while listed[at - 1].op == "LOAD_ATTR" and at > 1:
        names.insert(0, listed[at - 1].value)
        at -= 1
    loads = listed[at - 1].op == "LOAD_NAME"
    return "", ((listed[at - 1].value, *names) if loads else ())


def _assigned_by_functions(code: CodeType) -> set[str]:
    """The names that functions of a module assign with `global`."""
    found = set()
    for inner in nested_codes(code):
        found |= _assigned_by_functions(inner)
        if _STORE_GLOBAL in inner.co_code[::2]:  # few have it, and to list them all takes long
            found |= {each.value for each in Instructions(inner) if each.op == "STORE_GLOBAL"}
    return found


# values that it makes -----------------------------------------------------------------------------

_MADE: Final = frozenset({"call", "item", "union"})
_OR: Final = 7
"""The argument of BINARY_OP with which it is `|`."""


def _made_in(listed: Instructions, code: CodeType) -> dict[str, Expression]:
    """What a module makes by calls and subscripts, by the name that it assigns it to.

    An instruction that is not known ends what was begun: nothing is known of a value that is made
    in another way, or in one of two.
    """
    found: dict[str, Expression] = {}
    stack: list[Expression] = []
    keywords: tuple[str, ...] = ()
    for each in listed:
        if each.target:
            stack.clear()
        if each.op == "KW_NAMES":
            keywords = code.co_consts[each.arg]
        elif each.op in _ASSIGNS and len(stack) == 1 and stack[0].kind in _MADE:
            found[each.value] = stack.pop()
        elif each.op in _PARTS and (each.op, each.arg == _OR) != ("BINARY_OP", False):
            _pushed(stack, _PARTS[each.op](each), each, keywords)
            keywords = () if each.op == "CALL" else keywords
        elif each.op == "CALL_KW" and stack and stack[-1].kind == "constant":
            _pushed(stack, each.arg + 1, each, stack.pop().content)
        else:
            stack.clear()
    return found


def _pushed(
    stack: list[Expression], count: int, each: Instruction, keywords: tuple[str, ...]
) -> None:
    """Puts what an instruction makes of the last parts in their place; nothing if some lack."""
    if len(stack) < count:
        stack.clear()
        return
    kind, content = _KINDS[each.op], each.value
    if kind == "call":
        content = keywords
    elif kind == "sequence":
        content = tuple if each.op == "BUILD_TUPLE" else list
    parts = tuple(stack[len(stack) - count :])
    stack[len(stack) - count :] = [Expression(kind, content, parts)]


_KINDS: Final = {
    "LOAD_CONST": "constant",
    "LOAD_NAME": "name",
    "LOAD_ATTR": "attribute",
    "LOAD_METHOD": "attribute",
    "BINARY_OP": "union",
    "BINARY_SUBSCR": "item",
    "BUILD_TUPLE": "sequence",
    "BUILD_LIST": "sequence",
    "CALL": "call",
    "CALL_KW": "call",
}
_PARTS: Final[Mapping[str, Callable[[Instruction], int]]] = {
    "LOAD_CONST": lambda _: 0,
    "LOAD_NAME": lambda _: 0,
    "LOAD_ATTR": lambda _: 1,
    "LOAD_METHOD": lambda _: 1,
    "BINARY_OP": lambda _: 2,
    "BINARY_SUBSCR": lambda _: 2,
    "BUILD_TUPLE": lambda each: each.arg,
    "BUILD_LIST": lambda each: each.arg,
    "CALL": lambda each: each.arg + 1,
}
"""How many of the last parts an instruction takes, by its name."""


# contexts -----------------------------------------------------------------------------------------

_PUSHES: Final = frozenset({"add", "append", "appendleft", "extend", "insert", "update"})
_POPS: Final = frozenset({"clear", "discard", "pop", "popitem", "popleft", "remove"})
_METHODS: Final = ("LOAD_ATTR", "LOAD_METHOD")
_EMPTY: Final = (("BUILD_LIST", 0), ("BUILD_MAP", 0))


def names_of_contexts(content: Mapping[str, Any]) -> frozenset[str]:
    """The globals that context managers of a module change while one is entered.

    That is what they assign, or put something into and take it out again.

    Args:
        content: of the module.
    """
    return frozenset(name for codes in _codes_of_contexts(content) for name in _changed_in(codes))


def initial_values(
    content: Mapping[str, Any], names: Iterable[str], of_class: str = ""
) -> Mapping[str, Any]:
    """What the code of a module itself assigns to names, once.

    Args:
        content: of the module.
        names: of its globals, or of attributes of a class.
        of_class: the name of that class in the module; empty: none.

    Returns:
        Constants, and an empty tuple for an empty list or dict; nothing of what cannot be known.
    """
    code = _body_of(content, of_class)
    if code is None:
        return {}
    found: dict[str, Any] = {}
    stored = Counter[str]()
    labels: Callable[[Any], list[int]] = dis.findlabels  # typed for anything but bytes
    targets, wanted = frozenset(labels(code.co_code)), {*names}
    before: tuple[str, int] = "", 0
    for at, op, arg in _units(code.co_code):
        if op in _ASSIGNS and code.co_names[arg] in wanted:
            name = code.co_names[arg]
            stored[name] += 1
            if at in targets:
                stored[name] += 1  # one of two values
            elif before in _EMPTY:
                found[name] = ()
            elif before[0] == "LOAD_CONST":
                found[name] = code.co_consts[before[1]]
            elif of_class:
                found |= _initial_of_global(content, name, code, before)
        before = op, arg
    return {name: value for name, value in found.items() if stored[name] == 1}


def _body_of(content: Mapping[str, Any], of_class: str) -> CodeType | None:
    """The code of a module, or of the body of a class in it; None where that cannot be known."""
    code = code_of(content.get("__spec__"), str(content.get("__name__")))
    if code is None or not of_class:
        return code
    bodies = [each for each in nested_codes(code) if each.co_qualname == of_class]
    return bodies[0] if len(bodies) == 1 else None


def _initial_of_global(
    content: Mapping[str, Any], name: str, code: CodeType, load: tuple[str, int]
) -> Mapping[str, Any]:
    """What the body of a class assigns to a name where it loads a global of the module."""
    if load[0] != "LOAD_NAME":
        return {}
    other = code.co_names[load[1]]
    return {name: each for each in initial_values(content, [other]).values()}  # noqa: B035  one


def _units(code: bytes) -> Iterator[tuple[int, str, int]]:
    """Place, name and argument of each instruction: a tenth of what `dis` takes to list them."""
    above = 0
    for at in range(0, len(code), 2):
        name = dis.opname[code[at]]
        arg = above << 8 | code[at + 1]
        above = arg if name == "EXTENDED_ARG" else 0
        if name not in ("EXTENDED_ARG", "CACHE"):
            yield at, name, arg


def _codes_of_contexts(content: Mapping[str, Any]) -> Iterator[list[CodeType]]:
    """The code of each context manager that a module defines."""
    for value in list(content.values()):
        if issubclass(type(value), type):  # a lazy object would run code for `isinstance`
            found = [value.__dict__.get(name) for name in ("__enter__", "__exit__")]
        else:  # `contextlib.contextmanager` keeps the generator there
            found = [value.__dict__.get("__wrapped__")] if type(value) is FunctionType else []
        own = [each for each in found if type(each) is FunctionType]
        if own and all(each.__globals__ is content for each in own):
            yield [each.__code__ for each in own]


def _changed_in(codes: list[CodeType]) -> set[str]:
    """The globals that are assigned, or put into and taken out of."""
    named = {name for code in codes for name in code.co_names}
    if named.isdisjoint(_POPS) and all(_STORE_GLOBAL not in code.co_code[::2] for code in codes):
        return set()  # nearly all: to list their instructions takes long
    assigned, filled, emptied = set[str](), set[str](), set[str]()
    for code in codes:
        last: Instruction | None = None
        for each in Instructions(code):
            if each.op == "STORE_GLOBAL":
                assigned.add(each.value)
            elif last is not None and last.op == "LOAD_GLOBAL" and each.op in _METHODS:
                filled.update([last.value] if each.value in _PUSHES else [])
                emptied.update([last.value] if each.value in _POPS else [])
            last = each
    return assigned | filled & emptied


# settings -----------------------------------------------------------------------------------------

_STORE_ATTR: Final = dis.opmap["STORE_ATTR"]


def names_of_settings(content: Mapping[str, Any]) -> Mapping[str, set[str]]:
    """The globals of a module, and the attributes of its classes, that its functions set.

    That is where they put what they were given, or have computed, and no constant.

    Args:
        content: of the module.

    Returns:
        The names by that of the class; by an empty text those of globals.
    """
    found: dict[str, set[str]] = {}
    for function, owner in _setters(content):
        operations = function.__code__.co_code[::2]
        if _STORE_GLOBAL in operations or _STORE_ATTR in operations:  # few: to list all takes long
            for cls, name in _set_by(function.__code__, content, owner):
                found.setdefault(cls, set()).add(name)
    return found


def _setters(content: Mapping[str, Any]) -> Iterator[tuple[FunctionType, str]]:
    """A module's functions, and those in its classes; each class method with that of its class."""
    for value in list(content.values()):
        held = vars(value).copy().values() if _is_own_class(value, content) else ()
        methods = [each for each in held if type(each) in (classmethod, staticmethod)]
        owners = [value.__qualname__ if type(each) is classmethod else "" for each in methods]
        inner = [each.__func__ for each in methods]
        for function, owner in ((value, ""), *zip(inner, owners, strict=True)):
            if type(function) is FunctionType and function.__globals__ is content:
                yield function, owner


def _set_by(code: CodeType, content: Mapping[str, Any], owner: str) -> Iterator[tuple[str, str]]:
    """Class, or an empty text, and name of what a function sets to what is no constant."""
    listed = Instructions(code)
    for at, each in enumerate(listed):
        if each.op == "STORE_GLOBAL" and listed[at - 1].op != "LOAD_CONST":
            yield "", each.value
        elif each.op == "STORE_ATTR" and at > 1 and listed[at - 2].op != "LOAD_CONST":
            cls = _class_loaded(listed[at - 1], code, content, owner)
            yield from [(cls, each.value)] if cls else []


def _class_loaded(load: Instruction, code: CodeType, content: Mapping[str, Any], owner: str) -> str:
    """The name of the module's class that an instruction loads; empty for anything else."""
    if owner and load.op.startswith("LOAD_FAST") and load.value == code.co_varnames[0]:
        return owner
    found: Any = content.get(load.value) if load.op == "LOAD_GLOBAL" else None
    return str(found.__qualname__) if _is_own_class(found, content) else ""


def _is_own_class(value: Any, content: Mapping[str, Any]) -> bool:
    is_class = type in type(value).__mro__  # a lazy object would run code for `isinstance`
    return is_class and value.__module__ == content.get("__name__")
