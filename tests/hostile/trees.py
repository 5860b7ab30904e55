"""Trees by the grammar of `jaxd_protocol.pytree.decoder`, with what is loaded in the victim."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.data_values import KINDS
from jaxd_protocol.pytree.leaves import Leaf, lay_out_leaves, spec_bytes
from tests.hostile.drawing import DTYPES, PATHS, RandomValues, WeightedChoice

COUNT: Final = struct.Struct("!I")


class TreeBuffer:
    """A skeleton that is being written, and its leaves.

    Attributes:
        parts: of the skeleton.
        leaves: so far.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.leaves: list[Leaf] = []

    def data(self, rng: random.Random) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """Skeleton, blob and buffers: of the sizes that the leaves ask for, as they may not be."""
        skeleton = b"".join(self.parts)
        leaves = [each if _has_size(each) else Leaf("F") for each in self.leaves]
        placed = lay_out_leaves(leaves)
        blob = rng.randbytes(placed.blob_bytes)
        buffers = []
        for leaf, place in zip(leaves, placed.places, strict=True):
            if place.buffer >= 0:
                size = leaf.nbytes if leaf.dtype else 4
                buffers += [rng.randbytes(size)] + [b""] * leaf.buffers
        if rng.random() < 0.01:
            blob += b"\0"
        return skeleton, blob, tuple(buffers)


def _has_size(leaf: Leaf) -> bool:
    """Whether data can be made for it: not of dtypes that are none, nor of sizes without end."""
    return not leaf.dtype or (leaf.dtype in DTYPES and leaf.nbytes < 1 << 16)


def leaf_bytes(leaf: Leaf) -> bytes:
    """As it stands in a skeleton."""
    if leaf.tag == "A":
        return spec_bytes("A", leaf.dtype, leaf.shape, leaf.weak, leaf.exact)
    return leaf.tag.encode()


class TreeWriter:
    """Writes nodes of every tag.

    Args:
        draws: what they are drawn from.
        to_server: whether a server is the victim: it is sent arguments.

    Attributes:
        pickles: what stands where a pickle belongs.
    """

    def __init__(self, draws: RandomValues, *, to_server: bool) -> None:
        self._draws = draws
        self.pickles: Sequence[bytes] = (b"",)
        classes = draws.inventory["classes"]
        self._classes = WeightedChoice(classes, [each["weight"] for each in classes])
        self._tuples = WeightedChoice([each for each in classes if each["fields"]])
        nodes = [each for each in classes if each["is_node"]]
        self._nodes = WeightedChoice(nodes, [each["weight"] for each in nodes])
        self._dataclasses = WeightedChoice(
            [each for each in classes if each["is_dataclass"]] or classes
        )
        called = draws.inventory["callables"]
        self._callables = WeightedChoice(called, [each[2] for each in called])
        weights = {tag: weight for tag, (weight, _) in _NODES.items()}
        if to_server:
            weights |= _TO_SERVERS
        self._node = WeightedChoice(list(weights), list(weights.values()))
        self._reference = WeightedChoice(
            list(_REFERENCES), [each[0] for each in _REFERENCES.values()]
        )

    def whole(self) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        tree = TreeBuffer()
        if self._draws.rng.random() < 0.3:
            count = self._draws.rng.randrange(1, 4)
            self.tag(tree, b"T")
            tree.parts.append(COUNT.pack(count))
            for _ in range(count):
                self.write(tree, 3)
        else:
            self.write(tree, 3)
        skeleton, blob, buffers = tree.data(self._draws.rng)
        if self._draws.rng.random() < 0.01:  # cut off, or more than there is
            skeleton = skeleton[: self._draws.rng.randrange(len(skeleton))]
        return skeleton, blob, buffers

    def tag(self, tree: TreeBuffer, tag: bytes) -> None:
        self._draws.counts["tag", tag.decode()] += 1
        tree.parts.append(tag)

    def write(self, tree: TreeBuffer, depth: int) -> None:
        """A node, of any tag."""
        tag = self._node(self._draws.rng) if depth else self._draws.rng.choice("SSSAFIN")
        self.tag(tree, tag.encode())
        _NODES[tag][1](self, tree, depth, tag)

    def value(self, tree: TreeBuffer, depth: int) -> None:
        """What may stand in an attribute or be an argument: mostly data, some of it dangerous."""
        kind = self._draws.rng.random()
        if kind < 0.5 or not depth:
            self.tag(tree, b"S")
            drawn = self._draws.rng.random()
            path, number = self._draws.rng.choice(PATHS), self._draws.rng.choice((None, True, 1, 0))
            literal = path if drawn < 0.4 else number if drawn < 0.7 else self._draws.plain(1)
            tree.parts.append(dump_literal(literal))
        elif kind < 0.65:
            self.tag(tree, b"R")
            self.refer(tree)
        elif kind < 0.75:
            self.tag(tree, b"A")
            self.leaf(tree, self.array())
        else:
            self.write(tree, depth - 1)

    def leaf(self, tree: TreeBuffer, leaf: Leaf) -> None:
        tree.leaves.append(leaf)
        tree.parts.append(leaf_bytes(leaf)[1:])

    def array(self) -> Leaf:
        rng = self._draws.rng
        if rng.random() < 0.02:
            return Leaf("A", rng.choice(("object", "V8", "str_", "x")), (2,))
        shape = rng.choice(((), (1,), (3,), (3,), (2, 2), (0,)))
        if rng.random() < 0.01:
            shape = rng.choice(((1 << 40, 1 << 40), (1 << 62,)))
        return Leaf("A", rng.choice(DTYPES[:2] if rng.random() < 0.8 else DTYPES), shape)

    def _arrays(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        self.leaf(tree, self.array())

    def _keys(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        impl = self._draws.rng.choice(("fry", "threefry2x32", "rbg", self._draws.text()))
        tree.leaves.append(Leaf("K", "uint32", (2,), False, impl))
        tree.parts.append(dump_literal(impl) + spec_bytes("K", "uint32", (2,))[1:])

    def _scalar(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        tree.leaves.append(Leaf(tag))

    def _nothing(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        """Nothing follows."""

    def _sequence(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        count = self._draws.rng.randrange(3)
        tree.parts.append(COUNT.pack(count))
        for _ in range(count):
            self.write(tree, depth - 1)

    def _mapping(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        count = self._draws.rng.randrange(3)
        tree.parts.append(COUNT.pack(count))
        for _ in range(count):
            tree.parts.append(dump_literal(self._draws.plain(0)))
            self.write(tree, depth - 1)

    def _class_name(self, drawn: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        rng = self._draws.rng
        classes = self._draws.of["classes"]
        if classes and rng.random() < 0.2:
            module, name, content = rng.choice(classes)
            places = ((bytes.fromhex(self._draws.of["mark"]), rng.randrange(8)),)
            own = (module, name, bytes.fromhex(content))
            return (*own, places) if rng.random() < 0.5 else own
        module, name = (drawn or self._classes(rng))["name"]
        if rng.random() < 0.02:
            return module, name, self._draws.bytes()
        return module, name

    def _named_tuple(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        rng = self._draws.rng
        drawn = self._tuples(rng)
        fields = tuple(drawn["fields"])
        name = self._class_name(drawn)
        if rng.random() < 0.2:
            fields = tuple(self._draws.text() for _ in range(rng.randrange(3)))
        tree.parts.append(dump_literal(name) + dump_literal(fields))
        for _ in fields:
            self.value(tree, depth - 1)

    def _object(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        rng = self._draws.rng
        drawn = self._classes(rng) if rng.random() < 0.8 else self._dataclasses(rng)
        tree.parts.append(dump_literal(self._class_name(drawn)))
        groups = drawn["groups"]
        names: list[str] = []
        if groups:
            names = rng.choices([each[1] for each in groups], [each[0] for each in groups])[0]
            names = [name for name in names if rng.random() < 0.9]
        self.tag(tree, b"D")
        tree.parts.append(COUNT.pack(len(names)))
        for name in names:
            tree.parts.append(dump_literal(name))
            self.value(tree, depth - 1)

    def _registered(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        """A class with its aux data: a callable, a value, or several; and children."""
        rng = self._draws.rng
        tree.parts.append(dump_literal(self._class_name(self._nodes(rng))))
        if rng.random() < 0.5:
            self.tag(tree, b"R")
            self.refer(tree)
        elif rng.random() < 0.5:
            self.value(tree, depth - 1)
        else:
            self.tag(tree, b"T")
            tree.parts.append(COUNT.pack(2))
            self.value(tree, depth - 1)
            self.value(tree, depth - 1)
        count = rng.randrange(3)
        tree.parts.append(COUNT.pack(count))
        for _ in range(count):
            if rng.random() < 0.6:
                self.tag(tree, rng.choice((b"T", b"T", b"D")))
                inner = rng.randrange(3) if tree.parts[-1] == b"T" else 0
                tree.parts.append(COUNT.pack(inner))
                for _ in range(inner):
                    self.value(tree, depth - 1)
            else:
                self.value(tree, depth - 1)

    def _structure(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        self.write(tree, depth - 1)

    def _static(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        tree.parts.append(dump_literal(self._draws.plain(2)))

    def _pickled_static(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        data = self._draws.rng.choice(self.pickles)
        tree.parts.append(COUNT.pack(len(data)) + data)

    def _static_leaf(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        tree.parts.append(dump_literal(self._draws.text()))
        self.tag(tree, b"S")
        self._static(tree, depth, "S")

    def _template_node(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        tree.parts.append(dump_literal(self._draws.plain(1)))
        self._pickled_static(tree, depth, tag)
        tree.parts.append(COUNT.pack(0))

    def _no_data(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        leaf = self.array()
        tree.parts.append(leaf_bytes(leaf)[1:])

    def _pickled(self, tree: TreeBuffer, depth: int, tag: str) -> None:
        tree.leaves.append(Leaf("P", buffers=1))
        tree.parts.append(COUNT.pack(1))

    def refer(self, tree: TreeBuffer, depth: int = 0, tag: str = "R") -> None:
        tree.parts.append(dump_literal(self._reference_of(2)))

    def _reference_of(self, depth: int) -> tuple[Any, ...]:
        rng = self._draws.rng
        kind = self._reference(rng)
        self._draws.counts["reference", kind] += 1
        detail = _REFERENCES[kind][1](self, depth)
        token = b"" if rng.random() < 0.8 else rng.randbytes(16)
        return kind, detail, token, self._draws.text()

    def own_number(self, depth: int) -> tuple[Any, ...]:
        rng = self._draws.rng
        mark = bytes.fromhex(self._draws.of["mark"]) if rng.random() < 0.9 else self._draws.bytes()
        count = len(self._draws.of["objects"])
        return (((mark, rng.randrange(count + 1) if rng.random() < 0.97 else -1),),)

    def _r_content(self, depth: int) -> tuple[Any, ...]:
        known = [bytes.fromhex(each) for each in self._draws.of["contents"]]
        return (self._draws.rng.choice([*known, self._draws.bytes()]),)

    def _r_class(self, depth: int) -> tuple[Any, ...]:
        module, name, *content = self._class_name()
        return module, name, content[0] if content else b""

    def _r_installed(self, depth: int) -> tuple[Any, ...]:
        if self._draws.rng.random() < 0.05:
            return self._draws.rng.choice(self._draws.inventory["modules"]), ""
        module, name, _ = self._callables(self._draws.rng)
        return module, name

    def _r_default(self, depth: int) -> tuple[Any, ...]:
        module, name = self._dataclasses(self._draws.rng)["name"]
        return (
            module,
            name,
            self._draws.rng.choice(("activation", "dtype", "name", self._draws.text())),
        )

    def _r_method(self, depth: int) -> tuple[Any, ...]:
        name = self._draws.rng.choice(self._draws.rng.choice(self._draws.inventory["methods"]))
        if not depth:
            return (("o", (), b"", ""), name)
        return self._reference_of(depth - 1), name

    def _r_member(self, depth: int) -> tuple[Any, ...]:
        return *self._r_class(depth), self._draws.text()

    def _r_dtype(self, depth: int) -> tuple[Any, ...]:
        return (self._draws.rng.choice((*DTYPES, "object", "V8", self._draws.text())),)

    def _r_data(self, depth: int) -> tuple[Any, ...]:
        count = self._draws.rng.randrange(5)
        return self._draws.rng.choice(_DATA), tuple(self._part(depth) for _ in range(count))

    def _part(self, depth: int) -> Any:
        """Of a value that is nothing but data: a literal, several, or a reference."""
        rng = self._draws.rng
        if not depth or rng.random() < 0.4:
            return rng.choice((1, 0, "a", b"a", None, True, "0", "F", 1 << 20, self._draws.text()))
        if rng.random() < 0.5:
            return "r", self._reference_of(depth - 1)
        tag = rng.choice("ttlld?")
        return tag, *(self._part(depth - 1) for _ in range(2 * rng.randrange(3)))

    def _r_nothing(self, depth: int) -> tuple[Any, ...]:
        return ()


_Writer = Callable[[TreeWriter, TreeBuffer, int, str], None]

_NODES: Final[Mapping[str, tuple[float, _Writer]]] = {
    "N": (1, TreeWriter._nothing),
    "T": (2, TreeWriter._sequence),
    "L": (2, TreeWriter._sequence),
    "D": (2, TreeWriter._mapping),
    "M": (1, TreeWriter._mapping),
    "U": (4, TreeWriter._named_tuple),
    "O": (14, TreeWriter._object),
    "S": (2, TreeWriter._static),
    "R": (6, TreeWriter.refer),
    "G": (8, TreeWriter._registered),
    "J": (1, TreeWriter._structure),
    "Q": (1.0, TreeWriter._pickled_static),
    "X": (1.0, TreeWriter._static_leaf),
    "V": (1.0, TreeWriter._template_node),
    "Z": (1, TreeWriter._no_data),
    "A": (4, TreeWriter._arrays),
    "K": (1, TreeWriter._keys),
    "F": (1, TreeWriter._scalar),
    "I": (1, TreeWriter._scalar),
    "B": (1, TreeWriter._scalar),
    "C": (1, TreeWriter._scalar),
    "P": (1.0, TreeWriter._pickled),
    "?": (1.1, TreeWriter._nothing),
}

_DATA: Final = (
    *(f"{cls.__module__}.{cls.__qualname__}" for cls in KINDS),
    *("shape", "abstract array", "key type", "partition spec", "device", "mesh", "named sharding"),
    *("single device sharding", "DictKey", "SequenceKey", "GetAttrKey", "os.system", "?"),
)
"""Kinds of values that are nothing but data, and what is none."""

_TO_SERVERS: Final[Mapping[str, float]] = {
    "A": 12, "S": 5, "F": 3, "I": 3, "U": 3, "O": 4, "Q": 2, "X": 3, "V": 2, "P": 2,
    "R": 1, "G": 1, "J": 1,  # only towards a client: refused
}  # fmt: skip
"""Other weights, towards a server."""

_REFERENCES: Final[Mapping[str, tuple[float, Callable[[TreeWriter, int], tuple[Any, ...]]]]] = {
    "n": (4, TreeWriter.own_number),
    "c": (1, TreeWriter._r_content),
    "k": (2, TreeWriter._r_class),
    "i": (10, TreeWriter._r_installed),
    "p": (1, TreeWriter._r_default),
    "m": (2, TreeWriter._r_method),
    "e": (1, TreeWriter._r_member),
    "d": (1, TreeWriter._r_dtype),
    "v": (4, TreeWriter._r_data),
    "o": (1, TreeWriter._r_nothing),
}
