"""A module of MLIR as text that is equal for modules which compute the same in the same way.

Functions that differ in their names, that are there twice, or whose operations stand in another
order, as where Python goes through a set, give the same text. So do sums and products of several
that are taken in another order, loops that carry their values in another order, and functions that
take or return them so, and constants that are there more than once: jax writes one array once, and
two equal arrays twice. What neither a result nor an effect depends on is left out. Read is the
generic form of MLIR, in which each operation begins a line.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|%[\w.$-]+')
_SYMBOL: Final = re.compile(r'@("(?:[^"\\]|\\.)*"|[\w.$-]+)')
_OWN_NAME: Final = re.compile(r'sym_name = ("(?:[^"\\]|\\.)*")')
_BLOB: Final = re.compile(r'"0x[0-9A-Fa-f]{64,}"')
_CHAIN: Final = re.compile(r'("stablehlo\.(?:add|multiply)")\(([^)]*)\)(.*)')
_CONSTANT: Final = '"stablehlo.constant"('
_EFFECT: Final = "has_side_effect = true"
_MAIN: Final = '"main"'
_OPERANDS: Final = re.compile(r'("[\w.]+")\(([^)]*)\)(.*)', re.DOTALL)
_ARGUMENTS: Final = re.compile(r"(\^[\w.$-]+)\((.*)\)(:.*)", re.DOTALL)
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_WHILE: Final = '"stablehlo.while"('
_CALL: Final = '"func.call"('
_PRIVATE: Final = 'sym_visibility = "private"'


@dataclass(slots=True)
class _Operation:
    """One operation.

    Attributes:
        head: its line, without what it defines.
        defines: the names of its results.
        results: the same as they stand in the text: `%3:2`.
        blocks: those of its regions, one after the other.
        tail: what stands behind its regions.
        is_in_order: of a call, whether what it gives and gets is in the order of the function.
        has_effect: whether it, something in it, or a function that it calls has one.
    """

    head: str
    defines: list[str]
    results: str = ""
    blocks: list[_Block] = field(default_factory=list)
    tail: str = ""
    is_in_order: bool = False
    has_effect: bool = False

    def walk(self) -> Iterator[_Operation]:
        """It, and those inside of its regions."""
        yield self
        for block in self.blocks:
            for operation in block.operations:
                yield from operation.walk()

    def uses(self) -> Iterator[str]:
        """The names of the values that it uses, those inside of its regions among them."""
        return itertools.chain.from_iterable(_names(each.head) for each in self.walk())


@dataclass(slots=True)
class _Block:
    """One block: its header, which names its arguments, and its operations."""

    header: str = ""
    operations: list[_Operation] = field(default_factory=list)


def canonical_lines(module: str) -> list[str]:
    """The lines of a module, from `main` on, each function once, in the order of their calls.

    Args:
        module: in MLIR's generic form, without places in the source.
    """
    (top,) = _block(iter(module.splitlines()))[0].operations
    parts = [operation for block in top.blocks for operation in block.operations]
    for part in parts:
        _with_own_names(part, {}, itertools.count())
        _with_constants_once(part, {})
    named = {_own_name(part): part for part in parts}
    _note_effects(named)
    return _Functions(named).numbered()


def _own_name(part: _Operation) -> str:
    found = _OWN_NAME.search(part.head)
    return found[1] if found else part.head


# reading -----------------------------------------------------------------------------------------


def _block(lines: Iterator[str]) -> tuple[_Block, str]:
    """The block of the lines up to the end of its region, and the line that ends it."""
    block = _Block()
    for each in lines:
        line = each.strip()
        if line.startswith("}"):
            return block, line
        if line.startswith("^"):
            block.header = line
        elif line:
            block.operations.append(_operation(line, lines))
    return block, ""


def _operation(line: str, lines: Iterator[str]) -> _Operation:
    results, is_named, head = line.partition(' = "') if line.startswith("%") else ("", "", line)
    operation = _Operation(f'"{head}' if is_named else head, list(_names(results)), results)
    more = line.endswith("({")
    while more:
        block, end = _block(lines)
        operation.blocks.append(block)
        more = end.endswith("{")
        operation.tail = end
    return operation


def _names(text: str) -> Iterator[str]:
    return (token for token in _TOKEN.findall(text) if token.startswith("%"))


def _with_own_names(operation: _Operation, names: dict[str, str], numbers: Iterator[int]) -> None:
    """Gives each value of a part a name of its own: regions beside one another have the same.

    Args:
        operation: is changed.
        names: the new names of those that it may use; gets those of its results.
        numbers: are not in use yet.
    """
    operation.head = _renamed(operation.head, names)
    names.update((name, f"%v{next(numbers)}") for name in operation.defines)
    operation.results = _renamed(operation.results, names)
    operation.defines = [names[name] for name in operation.defines]
    for block in operation.blocks:
        inside = {**names, **{name: f"%v{next(numbers)}" for name in _names(block.header)}}
        block.header = _renamed(block.header, inside)
        for each in block.operations:
            _with_own_names(each, inside, numbers)


def _all_within(operations: Iterable[_Operation]) -> Iterator[_Operation]:
    return itertools.chain.from_iterable(each.walk() for each in operations)


def _note_effects(parts: dict[str, _Operation]) -> None:
    """Notes which operations have an effect, however deep inside of them and what they call."""
    effectful: set[str] = set()
    count = -1
    while len(effectful) != count:
        count = len(effectful)
        for name, part in parts.items():
            if any(_has_own_effect(each, effectful) for each in part.walk()):
                effectful.add(name)
    for each in _all_within(parts.values()):
        each.has_effect = any(_has_own_effect(inner, effectful) for inner in each.walk())


def _has_own_effect(operation: _Operation, effectful: set[str]) -> bool:
    called = _SYMBOL.findall(operation.head) if operation.head.startswith(_CALL) else ()
    return _EFFECT in operation.head or not effectful.isdisjoint(map(_quoted, called))


# constants ---------------------------------------------------------------------------------------


def _with_constants_once(operation: _Operation, instead: dict[str, str]) -> None:
    """Leaves one of the equal constants in each block of an operation.

    Args:
        operation: is changed.
        instead: by the names of constants that were left out, those that stand for them; grows.
    """
    operation.head = _renamed(operation.head, instead) if instead else operation.head
    for block in operation.blocks:
        first: dict[str, str] = {}
        kept = []
        for each in block.operations:
            if each.head.startswith(_CONSTANT):
                name = each.defines[0]
                if first.setdefault(each.head, name) != name:
                    instead[name] = first[each.head]
                    continue
            _with_constants_once(each, instead)
            kept.append(each)
        block.operations = kept


# what loops carry and functions take -------------------------------------------------------------


class _Order(NamedTuple):
    """The places that arguments and results of a function had before, in their new order.

    None where these are as they were.
    """

    arguments: list[int] | None = None
    results: list[int] | None = None


class _InOrder:
    """Puts what loops carry, and what functions take and return, in an order that follows from it.

    That is: from its type, from what is given or returned, and from the operations that use it.
    Where two are alike in all of that, their order is left as it is: then equal programs may differ
    in their text, and never do different ones have the same.

    Args:
        nameless: gives a line with digests in the place of the names of parts.
        order_of: by the name of a function, the order that it was put in.
    """

    def __init__(self, nameless: Callable[[str], str], order_of: Callable[[str], _Order]) -> None:
        self._known = _Known(nameless)
        self._order_of = order_of

    def put(self, part: _Operation, *, may_take: bool) -> _Order:
        """Puts all loops of a part in order; where it may, also the arguments and results of it."""
        self._inside(part, is_fixed=not may_take)
        if not may_take or len(part.blocks) != 1:
            return _Order()
        (block,) = part.blocks
        *operations, end = block.operations
        kinds = _arguments(block)
        uses = self._uses(operations, kinds)
        arguments = _sorted_places(list(zip(kinds.values(), uses, strict=True)))
        if arguments is not None:
            _reorder_header(block, arguments)
        self._inside(part, is_fixed=True)  # what it returns, by the places of its arguments
        returned = _OPERANDS.fullmatch(end.head)
        made = [] if returned is None else _split(self._known.said(returned[2]))
        results = _sorted_places([(each,) for each in made])
        if results is not None:
            end.head = _reordered_operands(end.head, results)
        order = _Order(arguments, results)
        part.head = _reordered_function(part.head, order)
        return order

    def _inside(self, operation: _Operation, *, is_fixed: bool = False) -> str:
        """Puts what is in an operation in order; what the operation is.

        Args:
            operation: is changed.
            is_fixed: whether the order of its arguments is part of what it is.
        """
        for block in operation.blocks:
            for place, (name, kind) in enumerate(_arguments(block).items()):
                self._known.values[name] = f"%argument {place if is_fixed else ''} {kind}"
        said = []
        for block in operation.blocks:
            for number, each in enumerate(block.operations):
                what = self._inside(each)
                moved = self._reorder_call(each) or self._reorder_loop(each)
                if moved:
                    _rename_results(block.operations[number + 1 :], each.defines[0], moved)
                if moved or each.head.startswith(_CALL):
                    what = self._inside(each)
                if _is_root(each):
                    said.append(what)
        head = self._known.said(operation.head)
        return self._known.learn(operation.defines, "\n".join([head, *said]))

    def _reorder_call(self, call: _Operation) -> list[int] | None:
        """Calls a function as it was put in order; the order of what it returns, if that is new."""
        if call.is_in_order or not call.head.startswith(_CALL):
            return None
        call.is_in_order = True  # loops are gone through more than once
        name = _SYMBOL.search(call.head, call.head.index("callee = "))
        order = _Order() if name is None else self._order_of(_quoted(name[1]))
        if order.arguments is not None:
            call.head = _reordered_operands(call.head, order.arguments)
        call.head = _reordered_types(call.head, None, order.results)
        return order.results

    def _reorder_loop(self, loop: _Operation) -> list[int] | None:
        """Has a loop carry its values in their order; that, if it is a new one."""
        found = _OPERANDS.fullmatch(loop.head)
        is_loop = loop.head.startswith(_WHILE) and len(loop.blocks) == 2
        if found is None or not is_loop or not loop.blocks[1].operations:
            return None
        count, inside = len(_split(found[2])), [_arguments(block) for block in loop.blocks]
        returned = _OPERANDS.fullmatch(loop.blocks[1].operations[-1].head)
        if returned is None or {count} != {*map(len, inside), len(_split(returned[2]))}:
            return None
        # not where it returns them, whose order is that of what it carries
        parts = loop.blocks[0].operations, loop.blocks[1].operations[:-1]
        uses = [self._uses(*each) for each in zip(parts, inside, strict=True)]
        given, made = map(self._known.said, (found[2], returned[2]))
        keys = zip(inside[0].values(), _split(given), _split(made), *uses, strict=True)
        order = _sorted_places(list(keys))
        if order is None:
            return None
        loop.head = f"{found[1]}({_listed(found[2], order)}){found[3]}"
        loop.tail = _reordered_types(loop.tail, order, order)
        for block in loop.blocks:
            _reorder_header(block, order)
        last = loop.blocks[1].operations[-1]
        last.head = _reordered_operands(last.head, order)
        return order

    def _uses(self, operations: list[_Operation], names: Iterable[str]) -> list[list[str]]:
        """What becomes of each of some values in the operations of a block."""
        found: dict[str, list[str]] = {}
        for operation in reversed(operations):
            results = (found.get(name, []) for name in operation.defines)
            after = "".join(sorted(itertools.chain.from_iterable(results)))
            heads = [each.head for each in operation.walk()]
            places: dict[str, list[int]] = {}
            for place, head in enumerate(heads):
                for name in set(_names(head)):
                    places.setdefault(name, []).append(place)
            for name, used_at in places.items():
                lines = [""] * len(heads)
                for place in used_at:
                    lines[place] = self._with_self(name, heads[place])
                found.setdefault(name, []).append(_digest("\n".join([*lines, after])))
        return [sorted(found.get(name, ())) for name in names]

    def _with_self(self, name: str, head: str) -> str:
        """The line of an operation, in which a value that it uses is called `%self`."""
        known = self._known.values
        before = known.get(name, name)
        known[name] = "%self"
        try:
            return self._known.said(head)
        finally:
            known[name] = before


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _arguments(block: _Block) -> dict[str, str]:
    """The arguments of a block, and their types."""
    found = _ARGUMENTS.fullmatch(block.header)
    each = () if found is None else map(str.strip, _split(found[2]))
    return {name: kind for name, _, kind in (one.partition(": ") for one in each)}


def _reorder_header(block: _Block, order: list[int]) -> None:
    found = _ARGUMENTS.fullmatch(block.header)
    assert found is not None
    block.header = f"{found[1]}({_listed(found[2], order)}){found[3]}"


def _reordered_function(head: str, order: _Order) -> str:
    """The line of a function with its types and attributes in another order."""
    start, rest = _after(head, "function_type = ")
    end = _end_of(rest)
    signature = _reordered_types(f" : {rest[:end]}", *order).removeprefix(" : ")
    head = f"{start}{signature}{rest[end:]}"
    for name, places in zip(("arg_attrs = [", "res_attrs = ["), order, strict=True):
        start, rest = _after(head, name)
        if rest and places is not None:
            end = _end_of(rest)
            head = f"{start}{_listed(rest[:end], places)}{rest[end:]}"
    return head


def _reordered_operands(head: str, order: list[int]) -> str:
    """The line of an operation with its operands, and their types, in another order."""
    found = _OPERANDS.fullmatch(head)
    assert found is not None
    rest = _reordered_types(found[3], order, None)
    return f"{found[1]}({_listed(found[2], order)}){rest}"


def _reordered_types(text: str, operands: list[int] | None, results: list[int] | None) -> str:
    """The end of an operation, `: (types) -> types`, with these in another order."""
    begin = _masked(text).rindex(" : (") + len(" : (")
    types = text[begin:]
    end = _end_of(types)
    taken, made = types[:end], types[end:]
    if results is not None:
        arrow, inside, after = made.partition("-> (")
        end = _end_of(after)
        made = f"{arrow}{inside}{_listed(after[:end], results)}{after[end:]}"
    taken = taken if operands is None else _listed(taken, operands)
    return f"{text[:begin]}{taken}{made}"


def _rename_results(operations: list[_Operation], name: str, order: list[int]) -> None:
    """Names the results of a loop or a call by their new places, in what follows it."""
    places = {old: new for new, old in enumerate(order)}
    one = re.compile(re.escape(name) + r"#(\d+)(?![\w.$-])")
    for each in _all_within(operations):
        each.head = one.sub(lambda found: f"{name}#{places[int(found[1])]}", each.head)


def _sorted_places(keys: list[tuple[Any, ...]]) -> list[int] | None:
    """The places of keys in their order; None where that is the one that they have."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return None if order == list(range(len(keys))) else order


def _listed(text: str, order: list[int]) -> str:
    """A list with commas, in another order.

    Raises:
        ValueError: when it has another length.
    """
    items = _split(text)
    if len(items) != len(order):
        raise ValueError("a program has a form that is not known")
    return ", ".join([items[place] for place in order])


def _after(text: str, name: str) -> tuple[str, str]:
    """What stands before the end of a name, and behind; nothing behind where it is not there."""
    place = _masked(text).find(name)
    return (text, "") if place < 0 else (text[: place + len(name)], text[place + len(name) :])


def _masked(text: str) -> str:
    """The text with all in quotes, and arrows, replaced by as many other letters."""
    return _QUOTED.sub(lambda found: "~" * len(found[0]), text).replace("->", "~~")


def _end_of(text: str) -> int:
    """Where the bracket ends that a text is in."""
    depth = 0
    for place, letter in enumerate(_masked(text)):
        if letter in ")]}>" and not depth:
            return place
        depth += (letter in "([{<") - (letter in ")]}>")
    return len(text)


def _split(text: str) -> list[str]:
    """What stands between the commas of a text that are in no bracket."""
    cuts, depth = [-1], 0
    for place, letter in enumerate(_masked(text)):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and not depth:
            cuts.append(place)
    cuts.append(len(text))
    parts = [text[a + 1 : b].strip() for a, b in itertools.pairwise(cuts)]
    return parts if parts != [""] else []


# sums and products ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Known:
    """What values are, as digests.

    Attributes:
        nameless: gives a line with digests in the place of the names of parts.
        values: by their names.
    """

    nameless: Callable[[str], str]
    values: dict[str, str] = field(default_factory=dict)

    def said(self, head: str) -> str:
        """The line of an operation, with these in the place of names."""
        return self.nameless(_renamed(head, self.values))

    def learn(self, names: list[str], said: str) -> str:
        """Takes note of the results of an operation; returns its digest."""
        digest = _digest(said)
        self.values.update(dict.fromkeys(names, f"%{digest}"))
        return digest


def _with_chains(operation: _Operation, known: _Known, depth: int) -> str:
    """Joins sums of sums, and products of products, in all blocks of an operation.

    Args:
        operation: is changed.
        known: gets what its results are.
        depth: in how many others it is.

    Returns:
        What the operation is.
    """
    said = [known.said(operation.head)]
    for number, block in enumerate(operation.blocks):
        for place, name in enumerate(_names(block.header)):
            known.values[name] = f"%argument {depth}.{number}.{place}"
        single = _used_once(block)
        chains: dict[str, tuple[str, list[str]]] = {}
        for each in block.operations:
            if (chain := _CHAIN.fullmatch(each.head)) is not None:
                _join(each, chain, chains, known, single)
                continue
            what = _with_chains(each, known, depth + 1)
            if _is_root(each):
                said.append(what)
    return known.learn(operation.defines, "\n".join(said))


def _join(
    operation: _Operation,
    chain: re.Match[str],
    chains: dict[str, tuple[str, list[str]]],
    known: _Known,
    single: frozenset[str],
) -> None:
    """Gives a sum the operands of the sums that only it uses, in the order of what they are.

    Args:
        operation: the sum, or product; is changed.
        chain: its name, operands, and the rest.
        chains: of those before that are used once their kind and operands.
        known: see `_with_chains`.
        single: the values that are used once.
    """
    kind, operands = chain[1] + chain[3], list[str]()
    for name in chain[2].split(", "):  # `%3#1` where it is one of several results
        is_joined = name in chains and chains[name][0] == kind
        operands += chains.pop(name)[1] if is_joined else [name]
    operands.sort(key=known.said)
    operation.head = f"{chain[1]}({', '.join(operands)}){chain[3]}"
    known.learn(operation.defines, known.said(operation.head))
    if operation.defines[0] in single:
        chains[operation.defines[0]] = kind, operands


def _used_once(block: _Block) -> frozenset[str]:
    """The values that one operation of the block uses, once."""
    counts = Counter(name for each in block.operations for name in each.uses())
    return frozenset(name for name, count in counts.items() if count == 1)


def _is_root(operation: _Operation) -> bool:
    """Whether it counts although no value of its is used: it ends its block, or has an effect."""
    return not operation.defines or operation.has_effect


# writing -----------------------------------------------------------------------------------------


def _written(operation: _Operation, numbers: dict[str, str]) -> Iterator[str]:
    """The lines of an operation, values named by numbers in the order in which they come."""
    head = _renamed(operation.head, numbers)
    for name in operation.defines:
        numbers[name] = f"%{len(numbers)}"
    results = f"{_renamed(operation.results, numbers)} = " if operation.defines else ""
    yield results + head
    for block in operation.blocks:
        for name in _names(block.header):
            numbers[name] = f"%{len(numbers)}"
        if block.header:
            yield _renamed(block.header, numbers)
        for each in _in_order(block.operations):
            yield from _written(each, numbers)
    if operation.tail:
        yield operation.tail


def _renamed(text: str, numbers: dict[str, str]) -> str:
    return _TOKEN.sub(lambda token: numbers.get(token[0], token[0]), text)


def _in_order(operations: list[_Operation]) -> list[_Operation]:
    """Those that results and effects depend on, each behind what it uses, else as it is used."""
    makers = {name: each for each in operations for name in each.defines}
    done: dict[int, _Operation] = {}
    for root in operations:
        if not _is_root(root):
            continue
        waiting = [(root, _makers_of(root, makers))]
        while waiting:
            operation, needed = waiting[-1]
            following = next((each for each in needed if id(each) not in done), None)
            if following is None:
                done[id(operation)] = operation
                waiting.pop()
            else:
                waiting.append((following, _makers_of(following, makers)))
    return list(done.values())


def _makers_of(operation: _Operation, makers: dict[str, _Operation]) -> Iterator[_Operation]:
    return (makers[name] for name in operation.uses() if name in makers)


# names of functions ------------------------------------------------------------------------------


class _Functions:
    """The parts of a module, by name.

    Args:
        parts: the operation that each is; is changed.
    """

    def __init__(self, parts: dict[str, _Operation]) -> None:
        self._parts = parts
        self._lines: dict[str, list[str]] = {}
        self._contents: dict[str, str] = {}
        self._orders: dict[str, _Order] = {}
        self._only_called = _only_called(parts)
        self._numbers: dict[str, str] = {}
        self._order: list[str] = []

    def numbered(self) -> list[str]:
        """The lines of all parts that `main` reaches, with numbers for names."""
        self._number(_MAIN if _MAIN in self._parts else next(iter(self._parts)))
        lines: list[str] = []
        for name in self._order:  # grows meanwhile
            lines += (self._with_names(line, self._number) for line in self._lines[name])
        return [_BLOB.sub(_short, line) for line in lines]

    def _content(self, name: str) -> str:
        """What a part is, whatever it and those that it names are called."""
        if name not in self._contents:
            self._contents[name] = "itself"
            part = self._parts[name]
            may_take = name in self._only_called and _PRIVATE in part.head
            put = _InOrder(self._nameless, self._order_of).put
            self._orders[name] = put(part, may_take=may_take)
            _with_chains(part, _Known(self._nameless), 0)
            self._lines[name] = list(_written(part, {}))
            lines = map(self._nameless, self._lines[name])
            self._contents[name] = hashlib.blake2b("\n".join(lines).encode()).hexdigest()
        return self._contents[name]

    def _order_of(self, name: str) -> _Order:
        """The order that a part was put in."""
        if name in self._parts:
            self._content(name)
        return self._orders.get(name, _Order())

    def _nameless(self, line: str) -> str:
        return self._with_names(line, self._content)

    def _number(self, name: str) -> str:
        content = self._content(name)
        if content not in self._numbers:
            self._numbers[content] = f"f{len(self._numbers)}"
            self._order.append(name)
        return self._numbers[content]

    def _with_names(self, line: str, rename: Callable[[str], str]) -> str:
        def renamed(symbol: re.Match[str]) -> str:
            name = _quoted(symbol[1])
            return f"@{rename(name)}" if name in self._parts else symbol[0]

        return _SYMBOL.sub(renamed, _OWN_NAME.sub("sym_name", line))


def _quoted(name: str) -> str:
    return name if name.startswith('"') else f'"{name}"'


def _only_called(parts: dict[str, _Operation]) -> frozenset[str]:
    """The parts that others name only to call them."""
    heads = (each.head for each in _all_within(parts.values()))
    others = [head for head in heads if not head.startswith(_CALL)]
    named = map(_quoted, itertools.chain.from_iterable(map(_SYMBOL.findall, others)))
    return frozenset(parts.keys() - set(named))


def _short(blob: re.Match[str]) -> str:
    """The bytes of a large constant, by their digest."""
    return f"<{_digest(blob[0])}>"
