"""CallbackTargets, which say what is to be called back: as literals, and as trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from jaxd_protocol.pytree import dump_literal
from tests.hostile.drawing import NUMBERS, PATHS, RandomValues, WeightedChoice
from tests.hostile.inventory import REACHING
from tests.hostile.trees import COUNT, TreeBuffer, TreeWriter


class CallbackTargetWriter:
    """Writes callback targets of every kind, and what a function is called back with.

    Args:
        draws: what they are drawn from.
        trees: writes what is in them.
    """

    def __init__(self, draws: RandomValues, trees: TreeWriter) -> None:
        self._draws, self._trees = draws, trees
        self._callback_target = WeightedChoice(
            list(_CALLBACK_TARGETS), [weight for weight, _ in _CALLBACK_TARGETS.values()]
        )

    def literal(self, depth: int) -> tuple[Any, ...]:
        """A target that is a literal: an entry of the client's own table, with data."""
        rng = self._draws.rng
        kind = rng.choice(_LITERALS)
        self._draws.counts["aim", kind] += 1
        number = rng.randrange(4) if rng.random() < 0.95 else rng.choice(NUMBERS)
        if kind == "partial" and depth:
            data = tuple(self._said(1) for _ in range(rng.randrange(3)))
            named = ((self._draws.text(), self._said(1)),) if rng.random() < 0.2 else ()
            return kind, self.literal(depth - 1), data, named
        if kind == "made":
            return kind, number, *self._cells(depth)
        if kind == "library":
            return kind, *self._library()
        if kind == "other":
            return tuple(self._draws.plain(1) for _ in range(rng.randrange(4)))
        return kind, number

    def _library(self) -> tuple[Any, ...]:
        """What a module gives, by a name: often one that reaches far."""
        rng, known = self._draws.rng, self._draws.inventory
        callables = known["callables"]
        module, name, _ = rng.choices(callables, [weight for *_, weight in callables])[0]
        by = module if rng.random() < 0.6 else rng.choice(known["modules"])
        if rng.random() < 0.5:
            return by, "global", name, ()
        names = tuple(name.split(".")) if rng.random() < 0.9 else (self._draws.text(),)
        return by, rng.choice(("module", "variable", "code")), module, names

    def _cells(self, depth: int) -> tuple[Any, ...]:
        rng = self._draws.rng
        names = self._draws.inventory["cells"]
        cells = tuple(
            (rng.choice(names) if names else "x", self._said(depth))
            for _ in range(rng.randrange(3))
        )
        defaults = None if rng.random() < 0.7 else (self._said(1),)
        keywords = None if rng.random() < 0.8 else ((self._draws.text(), self._said(1)),)
        return cells, defaults, keywords

    def _said(self, depth: int) -> tuple[Any, ...]:
        """What a cell holds, or an argument that is data."""
        rng = self._draws.rng
        kind = rng.choice(
            (
                "value",
                "held",
                "array",
                "list",
                "tuple",
                "dict",
                "listed",
                "argument",
                "self",
                "code",
            )
        )
        self._draws.counts["aim data", kind] += 1
        if kind in ("held", "array", "listed", "self"):
            return kind, rng.randrange(3)
        if kind in ("list", "tuple") and depth:
            return kind, tuple(self._said(depth - 1) for _ in range(rng.randrange(3)))
        if kind == "dict" and depth:
            return kind, ((("value", self._draws.text()), self._said(depth - 1)),)
        if kind == "code" and depth:
            return kind, *self._cells(depth - 1)
        if kind == "argument":
            return (kind,)
        return "value", self._draws.plain(1)

    def write(self, tree: TreeBuffer, depth: int) -> None:
        rng = self._draws.rng
        kind = self._callback_target(rng) if depth else rng.choice(("object", "value", "live"))
        self._draws.counts["aim", kind] += 1
        _CALLBACK_TARGETS[kind][1](self, tree, depth, kind)

    def put(self, tree: TreeBuffer, *literals: Any) -> None:
        for each in literals:
            self._trees.tag(tree, b"S")
            tree.parts.append(dump_literal(each))

    def _head(self, tree: TreeBuffer, kind: str, count: int) -> None:
        self._trees.tag(tree, b"T")
        tree.parts.append(COUNT.pack(count))
        self.put(tree, kind)

    def _number(self, of: str) -> int:
        rng = self._draws.rng
        count = len(self._draws.of[of])
        number = rng.randrange(count) if count else 0
        return number if rng.random() < 0.97 else rng.choice((-1, count, 1 << 40))

    def _a_live(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        rng = self._draws.rng
        names: tuple[str, ...] = ()
        if rng.random() < 0.4:
            names = tuple(self._attribute() for _ in range(rng.randrange(1, 3)))
        self._head(tree, kind, 3)
        self.put(tree, self._number("live"), names)

    def _method(self, of: int) -> str:
        """A method of data: those more often that reach further."""
        names = self._draws.inventory["methods"][of]
        weights = [12 if name in REACHING else 1 for name in names]
        return str(self._draws.rng.choices(names, weights)[0])

    def argument(self, tree: TreeBuffer) -> None:
        """Of a callback: a file, something of the client's own, or anything else."""
        drawn = self._draws.rng.random()
        if drawn < 0.35:
            self.put(tree, self._draws.rng.choice(PATHS))
        elif drawn < 0.55 and self._draws.of["objects"]:
            self._trees.tag(tree, b"R")
            self._draws.counts["reference", "n"] += 1
            tree.parts.append(dump_literal(("n", self._trees.own_number(0), b"", "")))
        else:
            self._trees.value(tree, 2)

    def _attribute(self) -> str:
        rng = self._draws.rng
        own = [*self._draws.of["objects"], *self._draws.of["live"]]
        if own and rng.random() < 0.5:
            names = rng.choice(own)["names"]
            if names:
                return str(rng.choice(names))
        return str(rng.choice(rng.choice(self._draws.inventory["methods"])))

    def _a_object(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        self._head(tree, kind, 2)
        self.put(tree, self._number("objects"))

    def _a_get(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        draws, rng = self._draws, self._draws.rng
        self._head(tree, kind, 3)
        if rng.random() < 0.5:  # a method of data
            of = rng.choice((0, 0, 0, 2, 2, *range(len(draws.inventory["methods"]))))
            self._head(tree, "value" if rng.random() < 0.7 else "array", 2)
            if of == 2:
                self.put(
                    tree,
                    draws.template() if rng.random() < 0.6 else draws.text(),
                )
            elif of == 0 or rng.random() < 0.5:
                self._trees.tag(tree, b"A")
                self._trees.leaf(tree, self._trees.array())
            else:
                self._trees.value(tree, depth - 1)
            self.put(tree, self._method(of))
        else:
            self.write(tree, depth - 1)
            self.put(tree, self._attribute())

    def _a_partial(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        self._head(tree, kind, 4)
        self.write(tree, depth - 1)
        self._callback_targets_in(tree, self._draws.rng.randrange(3), depth)
        self._trees.tag(tree, b"D")
        tree.parts.append(COUNT.pack(0))

    def _callback_targets_in(self, tree: TreeBuffer, count: int, depth: int) -> None:
        self._trees.tag(tree, b"T")
        tree.parts.append(COUNT.pack(count))
        for _ in range(count):
            self.write(tree, depth - 1)

    def _a_made(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        rng = self._draws.rng
        makers = [number for number, each in enumerate(self._draws.of["objects"]) if each["codes"]]
        number = rng.choice(makers) if makers else 0
        path, cells = (), 0
        if makers and rng.random() < 0.95:
            path, cells = rng.choice(self._draws.of["objects"][number]["codes"])
        self._head(tree, kind, 6)
        self._head(tree, "object", 2)
        self.put(tree, number, tuple(path))
        self._callback_targets_in(tree, cells, depth)
        self.put(tree, None) if rng.random() < 0.8 else self.write(tree, depth - 1)
        self.put(tree, None) if rng.random() < 0.9 else self.write(tree, depth - 1)

    def _a_cell(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        self._head(tree, kind, 3)
        self._a_object(tree, depth, "object")
        self.put(tree, self._draws.rng.randrange(2))

    def _a_items(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        self._head(tree, kind, 3)
        self.put(tree, self._draws.rng.choice(("list", "tuple", "dict", "set")))
        self._callback_targets_in(tree, self._draws.rng.randrange(3), depth)

    def _a_value(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        self._head(tree, kind, 2)
        if self._draws.rng.random() < 0.5:
            self._trees.tag(tree, b"R")
            self._trees.refer(tree)
        else:
            self._trees.value(tree, depth)

    def _a_array(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        self._head(tree, kind, 2)
        self._trees.value(tree, depth - 1)

    def _a_other(self, tree: TreeBuffer, depth: int, kind: str) -> None:
        self._head(tree, self._draws.text(), 2)
        self._trees.value(tree, depth - 1)


_LITERALS: Final = ("given", "given", "listed", "argument", "partial", "made", "library", "other")

_Writer = Callable[[CallbackTargetWriter, TreeBuffer, int, str], None]

_CALLBACK_TARGETS: Final[Mapping[str, tuple[float, _Writer]]] = {
    "live": (4, CallbackTargetWriter._a_live),
    "object": (3, CallbackTargetWriter._a_object),
    "get": (6, CallbackTargetWriter._a_get),
    "partial": (3, CallbackTargetWriter._a_partial),
    "made": (5, CallbackTargetWriter._a_made),
    "cell": (1.5, CallbackTargetWriter._a_cell),
    "items": (2, CallbackTargetWriter._a_items),
    "array": (1.5, CallbackTargetWriter._a_array),
    "value": (3, CallbackTargetWriter._a_value),
    "other": (1, CallbackTargetWriter._a_other),
}
