"""What is read from a code object: its own content, and what it reads from outside.

What is read is found by following each name that is loaded: ``cfg.model.width`` is one read of
`cfg` with two steps. A value that goes anywhere else (into a call, a variable, a result) ends the
chain there and counts whole.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.process import IdentityMemo
from jaxd_protocol.fingerprint.code.bytecode import HERE, instructions_of, stack_effect
from jaxd_protocol.fingerprint.code.callbacks import (
    AS_CALLBACK,
    callback_references,
    loads_given_to_callbacks,
    nested_codes,
    passed_arguments,
)
from jaxd_protocol.fingerprint.code.content import digest_of
from jaxd_protocol.fingerprint.data_model import (
    SHOWN,
    Alias,
    CallbackReferences,
    Reader,
    Step,
    Steps,
    VariableReads,
)


class Read(NamedTuple):
    """A global that is loaded.

    Attributes:
        name: of the global.
        steps: what is read of it; none when it counts whole.
        written: whether what the steps lead to is a container that this code writes to; without
            steps, also whether this code assigns the global.
        line: where, the first time.
    """

    name: str
    steps: Steps
    written: bool
    line: int


class Import(NamedTuple):
    """An import statement inside of a function.

    Attributes:
        name, level: as in the statement, level counting the leading dots.
        names: those after `from … import`, empty for a plain `import`.
        bound: the variables that it binds.
        uses: for each of these, in the code with the statement, what is read of it and the line of
            each read; None: all of it.
    """

    name: str
    level: int
    names: tuple[str, ...]
    bound: tuple[BoundName, ...]
    uses: tuple[tuple[tuple[Steps, int], ...] | None, ...] = ()

    def uses_at(self, path: tuple[str, ...] | None) -> dict[Steps, int] | None:
        """What is read of the first variable that is bound to this path; None: all of it."""
        for (_, bound), uses in zip(self.bound, self.uses, strict=True):
            if bound == path:
                return None if uses is None else dict(uses)
        return None


class CodeFacts(NamedTuple):
    """What is known about a code object, nested ones included.

    Attributes:
        digest: of its content.
        names: every global that is loaded, stored or deleted.
        reads: loads of globals, in order, each once.
        uses: for each free variable, each parameter and each variable that an import binds, the
            reads of it and the line of each; a name that is missing counts whole.
        imports: import statements.
        callbacks_passed: what is given to jax to be called back.
        readers: what it reads of all that it reaches, beside what counts in any case.
        compared: access paths of globals and free variables that are compared with other objects,
            each behind the instruction that does so.
    """

    digest: bytes
    names: frozenset[str]
    reads: tuple[Read, ...]
    uses: dict[str, dict[Steps, int]]
    imports: tuple[Import, ...]
    callbacks_passed: CallbackReferences
    readers: frozenset[Reader]
    compared: frozenset[tuple[str, ...]]


_READERS_BY_ATTRIBUTE: Final[dict[str, Reader]] = {
    "__dict__": "order",
    "__name__": "names",
    "__qualname__": "qualified names",
    "__doc__": "docstrings",
    "__annotations__": "annotations",
    "__orig_bases__": "annotations",
    "__parameters__": "annotations",
    "__dataclass_fields__": "fields",
    "type": "types",
    "__subclasses__": "subclasses",
}

_WRITES_IN_PLACE: Final = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})


def _readers_in(code: CodeType, listing: Iterable[dis.Instruction]) -> frozenset[Reader]:
    """By attributes, and by names of attributes in quotes."""
    texts = (
        *code.co_consts,
        *(one for each in code.co_consts if type(each) is tuple for one in each),
    )
    names = {each for each in texts if type(each) is str and each.startswith("__")}
    found: set[Reader] = set()
    before = None
    for each in listing:
        if each.opname in _ATTRIBUTE:
            names.add(each.argval)
        elif _tells_objects_apart(code, before, each):
            found.add("identities")
        before = each
    found.update(_READERS_BY_ATTRIBUTE[name] for name in names & _READERS_BY_ATTRIBUTE.keys())
    return frozenset(found)


def _tells_objects_apart(
    code: CodeType, before: dis.Instruction | None, each: dis.Instruction
) -> bool:
    """Whether an instruction gives something else for one object than for two equal ones."""
    if each.opname == "IS_OP":
        return before is None or before.opname not in ("LOAD_CONST", "LOAD_COMMON_CONSTANT")
    if each.opname == "BINARY_OP":
        return each.argrepr.endswith("=")
    if each.opname == "STORE_DEREF":
        return each.argval in code.co_freevars
    return each.opname in _WRITES_IN_PLACE


_facts: Final = IdentityMemo[CodeFacts]()


def facts_of(code: CodeType) -> CodeFacts:
    """The facts about a code object; found once while it lives."""
    return _facts.get(code) or _facts.put(code, _CodeReader(code).facts())


_READ_ALL_LOCALS: Final = frozenset({"locals", "vars", "eval", "exec", "dir"})


_SHOWING: Final = frozenset({"_saferepr", "_should_repr_global_name"})
"""What an assert that pytest has rewritten gives all that it names, for its message."""

_TYPEGUARD_READS: Final = {"globals": 1, "locals": 3}
"""What the first line that typeguard adds to a function calls, so many instructions after the
class that it gives them to, to look up types by name: ``TypeCheckMemo(globals(), locals())``."""


class _CodeReader:
    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.listing = instructions_of(code)
        self.instructions = Instructions(code, self.listing)
        self.reads: dict[tuple[str, Steps], Read] = {}
        self.names: dict[str, None] = {}
        self.imports: list[Import] = []
        self.inner_imports: list[Import] = []
        self.uses = VariableReads()
        self.stored: dict[str, int] = {}
        self.cells = frozenset(code.co_cellvars) | frozenset(code.co_freevars)
        self.inner = [facts_of(each) for each in nested_codes(code)]
        self.passed = passed_arguments(self.instructions, code.co_consts)
        self.given, self.made = loads_given_to_callbacks(code)

    def facts(self) -> CodeFacts:
        content = digest_of(self.code, self.listing, lambda nested: facts_of(nested).digest)
        for at, each in enumerate(self.instructions):
            read = _READERS.get(each.op)
            if read is not None:
                read(self, at, each)
        later: list[tuple[CodeFacts, CodeType]] = []
        for inner, nested in zip(self.inner, nested_codes(self.code), strict=True):
            if self._may_be_callback(nested.co_name):
                later.append((inner, nested))
            else:
                self._join(inner, nested)
        for inner, nested in later:  # once it is known what else is done with them
            self._join(inner, nested)
        self._look_through_aliases()
        uses = self._analysed()
        return CodeFacts(
            content,
            frozenset(self.names),
            tuple(self.reads.values()),
            uses,
            tuple(dict.fromkeys([*self._own_imports(uses), *self.inner_imports])),
            callback_references(self.code, [each.callbacks_passed for each in self.inner]),
            _readers_in(self.code, self.listing).union(*(each.readers for each in self.inner)),
            self.instructions.compared().union(*(each.compared for each in self.inner)),
        )

    # what is loaded ---------------------------------------------------------------------------

    def on_pair(self, at: int, each: Instruction) -> None:
        """Two instructions in one, as Python 3.13 has them."""
        first, second = each.value
        if each.op == "LOAD_FAST_LOAD_FAST" and each.offset in self.given:
            self.uses.add(first, AS_CALLBACK, each.line)
        elif each.op == "LOAD_FAST_LOAD_FAST":
            self.uses.whole.add(first)
        else:
            self._store(first)
        if each.op == "STORE_FAST_STORE_FAST":
            self._store(second)
        else:
            steps, _ = self.instructions.chain(at + 1)
            self.uses.add(second, steps, each.line)

    def _store(self, name: str) -> None:
        self.stored[name] = self.stored.get(name, 0) + 1

    def on_variable_write(self, _: int, each: Instruction) -> None:
        self._store(each.value)

    def on_cell_read(self, at: int, each: Instruction) -> None:
        steps, end = self._access_steps(at)
        if not self._is_alias(each, False, steps, end):
            self.uses.add(each.value, steps, each.line)

    def on_local_read(self, at: int, each: Instruction) -> None:
        if each.value not in self.cells:  # else the cell itself, for a closure
            self.on_cell_read(at, each)

    def _access_steps(self, at: int) -> tuple[Steps, int]:
        """The steps from what is loaded there, and where they end."""
        if self.instructions[at].offset in self.given:
            return AS_CALLBACK, at + 1
        steps, end = self.instructions.chain(at + 1)
        tested = self.instructions.tested_key(at, end)
        if tested is not None and all(kind in "ai" for kind, _ in steps):
            return (*steps, ("k", tested)), end
        passed = self.passed.get(at)
        if passed is not None and passed[0] == end and all(kind in "ai" for kind, _ in steps):
            return (*steps, ("p", passed[1])), end
        return steps, end

    def _is_alias(self, each: Instruction, is_global: bool, steps: Steps, end: int) -> bool:
        """Whether the value is assigned to a variable there, and noted as such."""
        stored = self.instructions.stored_at(end)
        if stored is None or not all(kind in "ai" for kind, _ in steps):
            return False
        self.uses.aliases.append(Alias(each.value, is_global, steps, stored, each.line))
        return True

    def _look_through_aliases(self) -> None:
        """Adds what is read of values by way of variables that hold nothing else."""
        outer = (*self.code.co_freevars, *self._parameters())
        once = {name for name, count in self.stored.items() if count == 1 and name not in outer}
        if not _READ_ALL_LOCALS.isdisjoint(self.names):
            once = set()
        for name, steps, line in self.uses.look_through(once):
            self._read(name, steps, False, line)

    def _parameters(self) -> tuple[str, ...]:
        flags = self.code.co_flags
        more = bool(flags & inspect.CO_VARARGS) + bool(flags & inspect.CO_VARKEYWORDS)
        count = self.code.co_argcount + self.code.co_kwonlyargcount + more
        return self.code.co_varnames[:count]

    def on_global_write(self, _: int, each: Instruction) -> None:
        self.names[each.value] = None
        self._read(each.value, (), True, each.line)

    def on_global_read(self, at: int, each: Instruction) -> None:
        if each.value in _TYPEGUARD_READS and self._is_by_typeguard(
            at - _TYPEGUARD_READS[each.value]
        ):
            return
        self.names[each.value] = None
        if self._is_shown_by_pytest(at):
            self._read(each.value, SHOWN, False, each.line)
            return
        steps, end = self._access_steps(at)
        if not self._is_alias(each, True, steps, end):
            written = self.instructions.is_written(steps, end)
            self._read(each.value, steps, written, each.line)

    def _is_shown_by_pytest(self, at: int) -> bool:
        """Whether what is loaded there only goes into the message of an assert."""
        called = self.instructions[at - 1 : at + 2] if at >= 2 else []
        if [each.op for each in called[::2]] not in _SHOWN_BY:
            return False
        is_call = called[0].value in _SHOWING and called[2].arg == 1
        return is_call and self.instructions[at - 2].value == "@pytest_ar"

    def _is_by_typeguard(self, at: int) -> bool:
        """Whether `TypeCheckMemo` is loaded there in code that typeguard has instrumented."""
        is_known = at >= 0 and self.instructions[at].value == "TypeCheckMemo"
        return is_known and "typeguard._functions" in self.code.co_names

    def _read(self, name: str, steps: Steps, written: bool, line: int) -> None:
        key = (name, steps)
        known = self.reads.get(key)
        if known is None:
            self.reads[key] = Read(name, steps, written, line)
        else:
            first = min(line, known.line)
            self.reads[key] = known._replace(written=written or known.written, line=first)

    # imports ----------------------------------------------------------------------------------

    def on_import(self, at: int, each: Instruction) -> None:
        level, names = self.instructions[at - 2].value, self.instructions[at - 1].value
        names = tuple(names or ())
        found = self.instructions
        bound = found.from_names(at + 1) if names else found.module_names(at + 1, each.value)
        level = level if isinstance(level, int) else 0
        self.imports.append(Import(each.value, level, names, tuple(bound)))

    def _imported(self) -> Iterator[str]:
        """The variables that import statements bind, and nothing else, each to one thing.

        `import a.b` and `import a.c` both bind `a`.
        """
        targets: dict[str, list[tuple[str, ...]]] = {}
        for each in self.imports:
            for name, path in each.bound:
                target = each.name.partition(".")[0] if path is None else each.name
                targets.setdefault(name, []).append((str(each.level), target, *(path or ())))
        for name, bound in targets.items():
            if self.stored.get(name) == len(bound) and len(set(bound)) == 1:
                yield name

    def _own_imports(self, uses: dict[str, dict[Steps, int]]) -> Iterator[Import]:
        """Those of this code; nested code may have other variables of the same names."""
        is_module = self.code.co_name == "<module>"
        for each in self.imports:
            found = (
                self._read_of_global(name) if is_module and path is None else uses.get(name)
                for name, path in each.bound
            )
            yield each._replace(uses=tuple(u if u is None else (*u.items(),) for u in found))

    def _read_of_global(self, name: str) -> dict[Steps, int] | None:
        """What a module reads of `a` after its own `import a.b`."""
        reads = [read for read in self.reads.values() if read.name == name]
        if any(read.written for read in reads) or not _READ_ALL_LOCALS.isdisjoint(self.names):
            return None
        return {read.steps: read.line for read in reads}

    # nested code ------------------------------------------------------------------------------

    def _may_be_callback(self, name: str) -> bool:
        """Whether nothing is done, so far, with a variable but giving it to be called back."""
        is_own = name in self.code.co_varnames or name in self.code.co_cellvars
        others = self.uses.reads.get(name, {}).keys() - {AS_CALLBACK}
        is_aliased = any(each.base == name for each in self.uses.aliases)
        return is_own and name not in self.uses.whole and not others and not is_aliased

    def _is_callback(self, code: CodeType) -> bool:
        """Whether a nested function is only given to be called back."""
        if id(code) in self.made:
            return True
        name = code.co_name
        same = [each for each in nested_codes(self.code) if each.co_name == name]
        is_certain = len(same) == self.stored.get(name) == 1
        return is_certain and name in self.uses.reads and self._may_be_callback(name)

    def _join(self, inner: CodeFacts, code: CodeType) -> None:
        if self._is_callback(code):
            for name in code.co_freevars:
                self.uses.add(name, AS_CALLBACK, 0)
            return
        self.names.update(dict.fromkeys(inner.names))
        for read in inner.reads:
            self._read(*read)
        self.inner_imports += inner.imports
        for name in code.co_freevars:
            for steps, line in inner.uses.get(name, {(): 0}).items():
                self.uses.add(name, steps, line)

    def _analysed(self) -> dict[str, dict[Steps, int]]:
        code = self.code
        if not _READ_ALL_LOCALS.isdisjoint(self.names):
            return {}
        count = code.co_argcount + code.co_kwonlyargcount
        # super() reads the first parameter and `__class__`, and names neither: both count whole
        uses_super = "super" in self.names or "__class__" in code.co_freevars
        first = set(code.co_varnames[:1]) if uses_super else set()
        wanted = {
            *(name for name in code.co_varnames[:count] if name not in first | self.stored.keys()),
            *(name for name in code.co_freevars if name not in self.stored.keys() | {"__class__"}),
            *(name for name in self._imported() if name not in code.co_freevars),
        }
        return {
            name: self.uses.reads.get(name, {})
            for name in sorted(wanted)
            if name not in self.uses.whole
        }


_READERS: Final[dict[str, Callable[[_CodeReader, int, Instruction], None]]] = {
    "LOAD_GLOBAL": _CodeReader.on_global_read,
    "LOAD_NAME": _CodeReader.on_global_read,
    "LOAD_FROM_DICT_OR_GLOBALS": _CodeReader.on_global_read,
    "STORE_GLOBAL": _CodeReader.on_global_write,
    "DELETE_GLOBAL": _CodeReader.on_global_write,
    "LOAD_DEREF": _CodeReader.on_cell_read,
    "LOAD_CLASSDEREF": _CodeReader.on_cell_read,
    "LOAD_FROM_DICT_OR_DEREF": _CodeReader.on_cell_read,
    "LOAD_FAST": _CodeReader.on_local_read,
    "LOAD_FAST_CHECK": _CodeReader.on_local_read,
    "STORE_FAST": _CodeReader.on_variable_write,
    "DELETE_FAST": _CodeReader.on_variable_write,
    "LOAD_FAST_AND_CLEAR": _CodeReader.on_variable_write,
    "STORE_DEREF": _CodeReader.on_variable_write,
    "DELETE_DEREF": _CodeReader.on_variable_write,
    "IMPORT_NAME": _CodeReader.on_import,
    "LOAD_FAST_LOAD_FAST": _CodeReader.on_pair,
    "STORE_FAST_LOAD_FAST": _CodeReader.on_pair,
    "STORE_FAST_STORE_FAST": _CodeReader.on_pair,
}
"""What reads an instruction, by its name."""

BoundName = tuple[str, "tuple[str, ...] | None"]
"""A variable that an import statement binds, and the attribute path from the module that the
statement names; None for its top-level package, which `import a.b` binds."""

_NO_EFFECT: Final = HERE.without_effect | {"PRECALL", "PUSH_NULL", "RESUME", "COPY_FREE_VARS"}
_ATTRIBUTE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SHOWN_BY: Final = [[each, "CALL"] for each in sorted(_ATTRIBUTE)]
_COMPARE: Final = frozenset({"IS_OP", "COMPARE_OP", "CONTAINS_OP"})
_BUILD: Final = frozenset({"BUILD_TUPLE", "BUILD_LIST", "BUILD_SET"})
_LOAD_FROM_OUTSIDE: Final = frozenset({"LOAD_GLOBAL", "LOAD_DEREF"})
_STORE: Final = frozenset({"STORE_FAST", "STORE_NAME", "STORE_DEREF", "STORE_GLOBAL"})
_STORE_VARIABLE: Final = frozenset(
    {"STORE_FAST", "STORE_DEREF", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"}
)
_MUTATORS: Final = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
        *("popleft", "remove", "setdefault", "sort", "reverse", "update"),
    }
)


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        op: its name.
        value: what it is about: a name, a constant.
        arg: the number in the bytecode.
        line: where it stands.
        target: whether a jump leads here.
        offset: in the bytecode.
    """

    op: str
    value: Any
    arg: int
    line: int
    target: bool
    offset: int = -1


class Instructions(list[Instruction]):
    """Those of a code object that do something, in order."""

    def __init__(self, code: CodeType, listing: Iterable[dis.Instruction] | None = None) -> None:
        super().__init__()
        line, target = code.co_firstlineno, False
        for each in listing or instructions_of(code):
            if each.starts_line and each.positions is not None:
                line = each.positions.lineno or line
            target = target or each.is_jump_target
            if each.opname in _NO_EFFECT:
                continue  # a jump to a prefix is a jump to what it prefixes
            self.append(
                Instruction(each.opname, each.argval, each.arg or 0, line, target, each.offset)
            )
            target = False

    def stored_at(self, at: int) -> str | None:
        """The variable that the instruction there assigns first; None for any other."""
        each = self._at(at, *_STORE_VARIABLE)
        if each is None:
            return None
        name: str = each.value[0] if isinstance(each.value, tuple) else each.value
        return name

    def _at(self, at: int, *ops: str) -> Instruction | None:
        """The instruction there, if it is one of these and nothing jumps to it."""
        if at >= len(self):
            return None
        each = self[at]
        return each if each.op in ops and not each.target else None

    def chain(self, at: int) -> tuple[Steps, int]:
        """The steps from a value that was just loaded, and where they end."""
        steps: list[Step] = []
        while True:
            attribute = self._at(at, *_ATTRIBUTE)
            key = self._at(at, "LOAD_CONST")
            if attribute is not None:
                steps.append(("a", attribute.value))
                at += 1
            elif key is not None and type(key.value) in (str, int) and self._item(at):
                end = self._item(at)
                steps.append(("i", key.value))
                if end - at > 2:
                    return (*steps, ("+", None)), end
                at = end
            elif self._augmented(at):
                steps.append(("a", self[at + 1].value))
                return (*steps, ("+", None)), at + 2
            else:
                break
        stored = self._at(at, "STORE_ATTR")
        if stored is not None:
            steps.append(("w", stored.value))
        elif (not steps or steps[-1][0] == "a") and self._called_with_constant(at):
            steps.append(("c", self[at].value))
        return tuple(steps), at

    def _item(self, at: int) -> int:
        """Where `[constant]`, whose constant is loaded at `at`, ends; 0 when it is none."""
        if self._at(at + 1, "BINARY_SUBSCR"):
            return at + 2
        copies = self._at(at + 1, "COPY") and self._at(at + 2, "COPY")
        return at + 4 if copies and self._at(at + 3, "BINARY_SUBSCR") else 0  # x[k] += …

    def _augmented(self, at: int) -> bool:
        """Whether this is `value.name += …`: a copy of it is assigned to afterwards."""
        copy = self._at(at, "COPY")
        return copy is not None and copy.arg == 1 and self._at(at + 1, "LOAD_ATTR") is not None

    def _called_with_constant(self, at: int) -> bool:
        """Whether a call follows whose first argument is the constant loaded at `at`."""
        first = self._at(at, "LOAD_CONST")
        if first is None or type(first.value) is not str:
            return False
        one = self._at(at + 1, "CALL")
        if one is not None:
            return one.arg == 1
        simple = self._at(at + 1, "LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF")
        two = self._at(at + 2, "CALL")
        return simple is not None and two is not None and two.arg == 2

    def tested_key(self, at: int, end: int) -> str | None:
        """The constant of `constant in value`, whose value is loaded at `at` and before `end`."""
        key = self[at - 1] if at else None
        is_key = key is not None and key.op == "LOAD_CONST" and type(key.value) is str
        if not is_key or self[at].target or self._at(end, "CONTAINS_OP") is None:
            return None
        return str(self[at - 1].value)

    def is_written(self, steps: Steps, at: int) -> bool:
        """Whether the value that was loaded before `at` is changed by what follows."""
        if steps and steps[-1][0] in "wc+":
            return steps[-1][0] != "c" or (len(steps) > 1 and steps[-2][1] in _MUTATORS)
        if steps and steps[-1][0] == "a" and steps[-1][1] in _MUTATORS:
            return True
        return self._is_item_assigned(at)

    def _is_item_assigned(self, at: int) -> bool:
        """Whether an item of the value that was loaded before `at` is assigned or deleted."""
        above = 0  # values on the stack above ours
        for each in self[at : at + 200]:
            if each.target or each.op in ("COPY", "SWAP", "UNPACK_SEQUENCE"):
                return False
            if each.op in ("STORE_SUBSCR", "DELETE_SUBSCR") and above == 1:
                return True
            above += stack_effect(each.op, each.arg)
            if above <= 0:
                return False
        return False

    def compared(self) -> frozenset[tuple[str, ...]]:
        """See `CodeFacts.compared`."""
        found: set[tuple[str, ...]] = set()
        for at, each in enumerate(self):
            if each.op in _COMPARE:
                count, end = 2, at
                if self[at - 1].op in _BUILD:  # the left one is before all the items
                    count, end = 1 + self[at - 1].arg, at - 1
                for _ in range(count):
                    begin = self._operand_before(end)
                    if names := self._names_in(begin, end):
                        found.add((each.op, *names))
                    end = begin
        return frozenset(found)

    def _operand_before(self, at: int) -> int:
        """Where what puts one value on the stack begins, which is taken by what is there."""
        missing = 1
        while missing > 0 and at > 0:
            at -= 1
            missing -= stack_effect(self[at].op, self[at].arg)
        return at

    def _names_in(self, begin: int, end: int) -> tuple[str, ...]:
        """The access path that these instructions load; empty where they do anything else."""
        part = self[begin:end]
        if not part or part[0].op not in _LOAD_FROM_OUTSIDE:
            return ()
        are_attributes = all(each.op in _ATTRIBUTE for each in part[1:])
        return tuple(each.value for each in part) if are_attributes else ()

    def from_names(self, at: int) -> Iterator[BoundName]:
        """What `from … import …` binds, whose names begin at `at`."""
        while self._at(at, "IMPORT_FROM"):
            stored = self._at(at + 1, *_STORE)
            if stored is None:
                return
            yield stored.value, (self[at].value,)
            at += 2

    def module_names(self, at: int, name: str) -> list[BoundName]:
        """What `import name` binds, with or without `as`."""
        stored = self._at(at, *_STORE)
        if stored is not None:
            return [(stored.value, () if "." not in name else None)]
        while self._at(at, "IMPORT_FROM", "SWAP", "POP_TOP"):  # import a.b as c
            at += 1
        stored = self._at(at, *_STORE)
        return [] if stored is None else [(stored.value, ())]
