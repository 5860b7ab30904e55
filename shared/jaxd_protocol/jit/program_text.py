"""A module of MLIR as text that is equal for modules which compute the same in the same way.

Functions that differ in their names, that are there twice, or whose operations stand in another
order, as where Python goes through a set, give the same text. So do sums and products of several
that are taken in another order, and constants that are there more than once: jax writes one array
once, and two equal arrays twice. What no result depends on is left out. Read is the generic form of
MLIR, in which each operation begins a line.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|%[\w.$-]+')
_SYMBOL: Final = re.compile(r'@("(?:[^"\\]|\\.)*"|[\w.$-]+)')
_OWN_NAME: Final = re.compile(r'sym_name = ("(?:[^"\\]|\\.)*")')
_BLOB: Final = re.compile(r'"0x[0-9A-Fa-f]{64,}"')
_CHAIN: Final = re.compile(r'("stablehlo\.(?:add|multiply)")\(([^)]*)\)(.*)')
_CONSTANT: Final = '"stablehlo.constant"('
_EFFECT: Final = "has_side_effect = true"
_MAIN: Final = '"main"'


@dataclass(slots=True)
class _Operation:
    """One operation.

    Attributes:
        head: its line, without what it defines.
        defines: the names of its results.
        results: the same as they stand in the text: `%3:2`.
        blocks: those of its regions, one after the other.
        tail: what stands behind its regions.
    """

    head: str
    defines: list[str]
    results: str = ""
    blocks: list[_Block] = field(default_factory=list)
    tail: str = ""

    def uses(self) -> Iterator[str]:
        """The names of the values that it uses, those inside of its regions among them."""
        yield from _names(self.head)
        for block in self.blocks:
            for operation in block.operations:
                yield from operation.uses()


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
        _with_constants_once(part, {})
    return _Functions({_own_name(part): part for part in parts}).numbered()


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
        digest = hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
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
    for name in _names(chain[2]):
        is_joined = name in chains and chains[name][0] == kind
        operands += chains.pop(name)[1] if is_joined else [name]
    operands.sort(key=lambda name: known.values.get(name, name))
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
    return not operation.defines or _EFFECT in operation.head


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
            _with_chains(self._parts[name], _Known(self._nameless), 0)
            self._lines[name] = list(_written(self._parts[name], {}))
            lines = map(self._nameless, self._lines[name])
            self._contents[name] = hashlib.blake2b("\n".join(lines).encode()).hexdigest()
        return self._contents[name]

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
            name = symbol[1] if symbol[1].startswith('"') else f'"{symbol[1]}"'
            return f"@{rename(name)}" if name in self._parts else symbol[0]

        return _SYMBOL.sub(renamed, _OWN_NAME.sub("sym_name", line))


def _short(blob: re.Match[str]) -> str:
    """The bytes of a large constant, by their digest."""
    return f"<{hashlib.blake2b(blob[0].encode(), digest_size=16).hexdigest()}>"
