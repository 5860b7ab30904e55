"""Messages by grammar, from a seed: what a hostile server says to a client.

Of each exchange, which is one thing that the client asks for, the steps: events and questions, and
then the reply. The skeletons are written by the grammar of `jaxd_protocol.trees.reader`, with what
the inventory says is loaded in the victim. Everything is drawn: nothing here knows an attack.
"""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from jaxd_protocol import errors
from jaxd_protocol.calls import FAILED, OK
from jaxd_protocol.elsewhere import pack_numbers
from jaxd_protocol.trees import dump_literal, load_literal
from jaxd_protocol.trees.leaves import Leaf, place_leaves, spec_bytes
from tests.hostile.inventory import REACHING

__all__ = ["CANARIES", "Exchange", "Generator", "Step", "Tree", "read_exchange"]

_COUNT: Final = struct.Struct("!I")

CANARIES: Final = ("canary/file.txt", "canary/pipe", "canary/sub/inner.npy", "canary")
"""In the victim's working directory: files, a FIFO, which hangs who opens it, and a folder."""

_PATHS: Final = (
    *CANARIES,
    *CANARIES,
    "canary/new.npy",
    "canary/archive.zip",
    "http://127.0.0.1:1/x",
)
_TEXTS: Final = ("", "w", "r", "wb", "rb", "a", "text", "utf-8", "touch canary/ran", "1 + 1", "os")
_DTYPES: Final = ("float32", "int32", "uint8", "bool", "float64", "bfloat16", "complex64")
_SPECIAL: Final = (  # noqa: SIM905
    "__globals__ __class__ __dict__ __init__ __mro__ __module__ __code__ __func__"
    " __self__ __wrapped__ __closure__ __builtins__ __reduce__ f_globals gi_frame"
).split()
_NUMBERS: Final = (0, 1, -1, 2, 3, 7, 255, 1 << 31, -(1 << 63), 1 << 70)
_LINKS: Final = 2

EVENTS: Final = ("print", "warned", "logged", "compiled", "unsaid", "stage", "built", "warning")


class Step(NamedTuple):
    """One message of the server's.

    Attributes:
        verb: `event`, a question's verb, or `reply`.
        args: plain values; None stands for the number of the client's request.
        buffers: what travels beside them.
    """

    verb: str
    args: Any
    buffers: tuple[bytes, ...] = ()


class Exchange(NamedTuple):
    """What a server says to one thing that a client asks for.

    Attributes:
        act: what the client is told to do.
        name: of the function with which it does that.
        steps: what is said, the reply last.
    """

    act: str
    name: str
    steps: tuple[Step, ...]

    def to_bytes(self) -> bytes:
        """As plain values, to be kept."""
        return dump_literal((self.act, self.name, tuple(map(tuple, self.steps))))


def read_exchange(data: bytes) -> Exchange:
    """What `to_bytes` wrote."""
    act, name, steps = load_literal(data, 0)[0]
    return Exchange(act, name, tuple(Step(*each) for each in steps))


class _Drawn:
    """Something to draw from, each with its weight."""

    def __init__(self, values: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        self.values = values
        self._sums = None if weights is None else list(accumulate(weights))

    def __call__(self, rng: random.Random) -> Any:
        if self._sums is None:
            return rng.choice(self.values)
        return rng.choices(self.values, cum_weights=self._sums)[0]


class Tree:
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
        placed = place_leaves(leaves)
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
    return not leaf.dtype or (leaf.dtype in _DTYPES and leaf.nbytes < 1 << 16)


class Generator:
    """Draws exchanges for one victim.

    Args:
        inventory: what is loaded there, see `inventory`.
        seed: of everything.
        to_server: whether a server is the victim: it is sent arguments.

    Attributes:
        counts: messages and their parts so far, by kind and name.
    """

    def __init__(self, inventory: Mapping[str, Any], seed: int, *, to_server: bool = False) -> None:
        self._seed = seed
        self._pickles: Sequence[bytes] = (b"",)
        self._rng = random.Random(seed)
        self.counts: Counter[tuple[str, str]] = Counter()
        self._inventory = inventory
        self._own: Mapping[str, Any] = inventory["own"]
        classes = inventory["classes"]
        self._classes = _Drawn(classes, [each["weight"] for each in classes])
        self._tuples = _Drawn([each for each in classes if each["fields"]])
        nodes = [each for each in classes if each["is_node"]]
        self._nodes = _Drawn(nodes, [each["weight"] for each in nodes])
        self._dataclasses = _Drawn([each for each in classes if each["is_dataclass"]] or classes)
        called = inventory["callables"]
        self._callables = _Drawn(called, [each[2] for each in called])
        self._exceptions = _Drawn(inventory["exceptions"])
        weights = {tag: weight for tag, (weight, _) in _NODES.items()}
        if to_server:
            weights |= _TO_SERVERS
        self._node = _Drawn(list(weights), list(weights.values()))
        self._reference = _Drawn(list(_REFERENCES), [each[0] for each in _REFERENCES.values()])
        self._aim = _Drawn(list(_AIMS), [weight for weight, _ in _AIMS.values()])
        self._of: Mapping[str, Any] = next(iter(self._own.values()))

    def begin(self, number: int) -> None:
        """What is drawn next belongs to the message of that number."""
        self._rng = random.Random((self._seed << 40) + number)

    def arguments(self, pickles: Sequence[bytes]) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """What a call may bring: skeleton, blob and buffers.

        Args:
            pickles: what stands where a pickle belongs.
        """
        self._pickles = pickles
        if self._rng.random() < 0.05:
            return self._tree()
        tree = Tree()
        tree.parts.append(b"T" + _COUNT.pack(2))
        count = self._rng.choice((1, 1, 1, 2, 0))
        tree.parts.append(b"T" + _COUNT.pack(count))
        for _ in range(count):
            self._write(tree, 3)
        tree.parts.append(b"D" + _COUNT.pack(0))
        skeleton, blob, buffers = tree.data(self._rng)
        if any(leaf.tag == "P" for leaf in tree.leaves):
            buffers = tuple(each or self._rng.choice(pickles) for each in buffers)
        return skeleton, blob, buffers

    def exchange(self, number: int, act: str, name: str) -> Exchange:
        """The exchange of that number: the same for the same seed and inventory.

        Args:
            number: of the exchange.
            act: what the client does.
            name: with which function.
        """
        self.begin(number)
        self._of = self._own[name]
        steps = []
        if act in ("call", "submit", "remote", "warm", "lower", "jaxpr"):
            draws = (self._event, self._question)
            while self._rng.random() < 0.4:
                steps.append(self._rng.choices(draws, (6, 4))[0]())
            if self._of["calls_back"] and self._rng.random() < 0.6:
                steps.append(self._callback())
        steps.append(self._reply(act))
        return Exchange(act, name, tuple(steps))

    def honest(self, act: str, name: str) -> Exchange:
        """An exchange as an honest server would have it, which shows what belongs to one."""
        tree = Tree()
        tree.parts.append(b"T" + _COUNT.pack(2))
        for leaf in (Leaf("A", "float32", (3,)), Leaf("F")):
            tree.leaves.append(leaf)
            tree.parts.append(_leaf_bytes(leaf))
        skeleton, blob, buffers = tree.data(self._rng)
        told = {"text": "told\n", "stream": "stdout", "flush": True}
        file = self._inventory["files"][0]
        warned = {"text": "t", "category": ["builtins", "UserWarning"], "bases": [],
                  "file": file, "line": 3}  # fmt: skip
        logged = {"name": "jaxd.hostile", "level": 20, "file": file, "line": 3, "text": "t",
                  "function": "f", "traceback": None}  # fmt: skip
        said = [("print", told), ("warned", warned), ("logged", logged), ("compiled", logged)]
        steps = [Step("event", (None, kind, json.dumps(what))) for kind, what in said]
        steps.append(Step("describe", (b"",)))
        reply: Any = (OK, skeleton, blob)
        if act == "remote":
            reply = (OK, skeleton, blob, b"", b"")
        elif act == "fail":
            frame = (file, "m", "f", 3, 3, 0, 4)
            links = (
                "cause",
                ("builtins", "KeyError", "'k'", dump_literal(("k",)), 0.0, "t", (), (), ()),
            )
            failure = ("builtins", "ValueError", "v", dump_literal(("v",)), 0.0, "text",
                       (frame,), links, ("a note",))  # fmt: skip
            act, reply = "call", (FAILED, failure)
        return Exchange(act, name, (*steps, Step("reply", reply, buffers)))

    # what is said ------------------------------------------------------------------------------

    def _reply(self, act: str) -> Step:
        verb = _VERBS.get(act, "call")
        self.counts["reply", verb] += 1
        if self._rng.random() < (0.12 if verb == "call" else 0.06):
            failure = self._failure(0)
            return Step("reply", (FAILED, failure, b"") if act == "remote" else (FAILED, failure))
        if verb in _JSON:
            return Step("reply", self._json_of(verb))
        if verb in ("put", "part", "fetch", "share", "unname", "name", "adopt", "named", "recipes"):
            return self._of_values(verb)
        if act == "warm":
            text = self._json_of("warm")
            return Step("reply", (OK, text, self._tree()[0]))
        skeleton, blob, buffers = self._tree()
        if act == "remote":
            away = self._rng.choice((b"", pack_numbers([0]), pack_numbers([1, 0]), b"\0"))
            return Step("reply", (OK, skeleton, blob, b"", away), buffers)
        return Step("reply", (OK, skeleton, blob), buffers)

    def _of_values(self, verb: str) -> Step:
        rng = self._rng
        leaves = [self._array() for _ in range(rng.randrange(1, 3))]
        specs = b"T" + _COUNT.pack(len(leaves)) + b"".join(map(_leaf_bytes, leaves))
        if verb == "recipes":
            return Step("reply", (self._json_of(verb), *(self._bytes() for _ in range(2))), (b"x",))
        if verb in ("put", "part", "named"):
            skeleton = specs if rng.random() < 0.7 else self._tree()[0]
            return Step("reply", (OK, skeleton), tuple(rng.randbytes(4) for _ in range(2)))
        if verb == "fetch":
            return Step("reply", (OK,), tuple(rng.randbytes(12) for _ in range(rng.randrange(3))))
        return Step("reply", (OK, self._plain(1)))

    def _json_of(self, verb: str) -> str:
        good = json.loads(_JSON.get(verb, "{}"))
        return json.dumps(self._changed(good))

    def _changed(self, value: Any) -> Any:
        """JSON like this, some of it replaced."""
        if self._rng.random() < 0.08:
            return self._json()
        if type(value) is dict:
            return {name: self._changed(each) for name, each in value.items()}
        if type(value) is list:
            return [self._changed(each) for each in value]
        return value

    def _event(self) -> Step:
        rng = self._rng
        kind = rng.choice(EVENTS) if rng.random() < 0.9 else "other"
        self.counts["event", kind] += 1
        content = self._content(kind)
        if rng.random() < 0.15:
            content = self._changed(content)
        number = None if rng.random() < 0.97 else rng.choice(_NUMBERS[:6])
        return Step("event", (number, kind, json.dumps(content)))

    def _content(self, kind: str) -> dict[str, Any]:
        rng = self._rng
        file = rng.choice(_PATHS if rng.random() < 0.5 else self._inventory["files"])
        text = rng.choice((self._text(), rng.choice(_PATHS)))
        category = rng.choice(self._inventory["warnings"])
        common: dict[str, Any] = {"text": text, "function": self._text()}
        if rng.random() < 0.1:
            common |= {"of": rng.choice("ab"), "at": rng.randrange(1 << 20)}
        line = rng.choice((0, 1, 3, 50, -1))
        own: dict[str, dict[str, Any]] = {
            "print": {"stream": rng.choice(("stdout", "stderr", "x")), "flush": True},
            "warned": {"category": category, "bases": ["UserWarning", self._text()],
                       "file": file, "line": line},
            "logged": {"name": rng.choice(("", "root", "jax", "a.b", self._text())), "file": file,
                       "level": rng.choice((0, 10, 20, 30, 40, 50, 1 << 40)), "line": line,
                       "traceback": rng.choice((None, self._text()))},
            "stage": {"stage": rng.choice(("trace", "lower", "compile", "x"))},
            "built": {"seconds": rng.choice((0.0, 1e300, -1)), "reason": self._text()},
            "warning": {"package": rng.choice(("jax", self._text())),
                        "category": rng.choice(("", "advice", "device", "x"))},
        }  # fmt: skip
        own["compiled"] = own["logged"]
        return common | own.get(kind, {})

    def _question(self) -> Step:
        rng = self._rng
        verb = rng.choices(("describe", "code", "callback", "other"), (5, 6, 8, 4))[0]
        if verb == "callback":
            return self._callback()
        self.counts["question", verb] += 1
        key = (
            bytes.fromhex(self._of["fingerprint"]) if verb == "code" else b""
        )  # b"": that of the call
        if rng.random() < 0.03:
            return Step(verb, tuple(self._plain(1) for _ in range(rng.randrange(3))))
        return Step(verb, (key,))

    def _callback(self) -> Step:
        """A function of the client's is to be called, with data of the server's choice."""
        rng = self._rng
        self.counts["question", "callback"] += 1
        tree = Tree()
        if rng.random() < 0.5:
            tree.parts.append(b"T" + _COUNT.pack(4))
            self._put(tree, dump_literal(self._aim_literal(2)))
            held = rng.randrange(3)
            tree.parts.append(b"T" + _COUNT.pack(held))
            for _ in range(held):
                self._tag(tree, b"A")
                self._leaf(tree, self._array())
        else:  # as trees, with objects and references in them
            tree.parts.append(b"T" + _COUNT.pack(3))
            self._write_aim(tree, 2)
        count = rng.choice((0, 1, 1, 1, 2, 2, 3))
        tree.parts.append(b"T" + _COUNT.pack(count))
        for _ in range(count):
            self._argument(tree)
        named = rng.random() < 0.1
        tree.parts.append(b"D" + _COUNT.pack(int(named)))
        if named:
            tree.parts.append(dump_literal(self._text()))
            self._value(tree, 1)
        skeleton, blob, buffers = tree.data(rng)
        return Step("callback", (None, skeleton, blob, rng.randrange(2)), buffers)

    def _failure(self, depth: int) -> tuple[Any, ...]:
        rng = self._rng
        self.counts["reply", "failure"] += 1
        if rng.random() < 0.05:
            return tuple(self._plain(2) for _ in range(rng.randrange(10)))
        kind = rng.random()
        if kind < 0.1:
            names = [each for each in errors.__all__ if each not in ("Busy", "WorkerReplaced")]
            module, name = "jaxd_protocol.errors", rng.choice(names)
        else:
            module, name, _ = self._exceptions(rng)
        message = self._text()
        args = tuple(self._plain(2) for _ in range(rng.randrange(4)))
        if rng.random() < 0.5:
            args = (message,)
        frames = tuple(self._frame() for _ in range(rng.randrange(3)))
        links: tuple[Any, ...] = ()
        if depth < _LINKS and rng.random() < 0.2:
            links = (rng.choice(("cause", "context")), self._failure(depth + 1))
        notes = tuple(self._text() for _ in range(rng.randrange(2)))
        literal = None if rng.random() < 0.1 else dump_literal(args)
        return module, name, message, literal, 0.0, self._text(), frames, links, notes

    def _frame(self) -> tuple[Any, ...]:
        rng = self._rng
        file = rng.choice(_PATHS if rng.random() < 0.5 else self._inventory["files"])
        lines = (rng.choice((1, 3, 40, 0, -1, 1 << 20)), 3, rng.choice((-1, 0, 4)), 9)
        module = rng.choice(("m", "__main__", rng.choice(self._inventory["modules"])))
        return file, module, self._text(), *lines

    # plain values ------------------------------------------------------------------------------

    def _text(self) -> str:
        rng = self._rng
        kind = rng.random()
        if kind < 0.4:
            return str(rng.choice(_TEXTS))
        if kind < 0.6:
            return rng.choice(_PATHS)
        if kind < 0.8:
            return self._template()
        return str(rng.choice(self._inventory["modules"]))

    def _template(self) -> str:
        """A format that walks from what it is given to what hangs there."""
        rng = self._rng
        path = rng.choice(("0", "", "x"))
        while True:
            name = rng.choice(_SPECIAL if rng.random() < 0.7 else ("environ", "os", "func", "args"))
            path += f".{name}" if rng.random() < 0.75 else f"[{name}]"
            if rng.random() < 0.5:
                return f"{{{path}}}"

    def _bytes(self) -> bytes:
        return self._rng.randbytes(self._rng.choice((0, 1, 8, 16, 40)))

    def _plain(self, depth: int) -> Any:
        """What a literal can be."""
        rng = self._rng
        kind = rng.randrange(10 if depth else 8)
        if kind < 2:
            return rng.choice((None, True, False))
        if kind < 4:
            return rng.choice(_NUMBERS)
        if kind < 6:
            return self._text()
        if kind == 6:
            return rng.choice((0.0, 1.5, float("inf"), 1j))
        if kind == 7:
            return self._bytes()
        return tuple(self._plain(depth - 1) for _ in range(rng.randrange(4)))

    def _json(self, depth: int = 2) -> Any:
        rng = self._rng
        kind = rng.randrange(8 if depth else 6)
        if kind < 2:
            return rng.choice((None, True, 0, -1, 1e300, 1 << 70))
        if kind < 6:
            return self._text()
        if kind == 6:
            return [self._json(depth - 1) for _ in range(rng.randrange(3))]
        return {self._text(): self._json(depth - 1) for _ in range(rng.randrange(3))}

    # trees --------------------------------------------------------------------------------------

    def _tree(self) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        tree = Tree()
        if self._rng.random() < 0.3:
            count = self._rng.randrange(1, 4)
            self._tag(tree, b"T")
            tree.parts.append(_COUNT.pack(count))
            for _ in range(count):
                self._write(tree, 3)
        else:
            self._write(tree, 3)
        skeleton, blob, buffers = tree.data(self._rng)
        if self._rng.random() < 0.01:  # cut off, or more than there is
            skeleton = skeleton[: self._rng.randrange(len(skeleton))]
        return skeleton, blob, buffers

    def _tag(self, tree: Tree, tag: bytes) -> None:
        self.counts["tag", tag.decode()] += 1
        tree.parts.append(tag)

    def _write(self, tree: Tree, depth: int) -> None:
        """A node, of any tag."""
        tag = self._node(self._rng) if depth else self._rng.choice("SSSAFIN")
        self._tag(tree, tag.encode())
        _NODES[tag][1](self, tree, depth, tag)

    def _value(self, tree: Tree, depth: int) -> None:
        """What may stand in an attribute or be an argument: mostly data, some of it dangerous."""
        kind = self._rng.random()
        if kind < 0.5 or not depth:
            self._tag(tree, b"S")
            drawn = self._rng.random()
            path, number = self._rng.choice(_PATHS), self._rng.choice((None, True, 1, 0))
            literal = path if drawn < 0.4 else number if drawn < 0.7 else self._plain(1)
            tree.parts.append(dump_literal(literal))
        elif kind < 0.65:
            self._tag(tree, b"R")
            self._refer(tree)
        elif kind < 0.75:
            self._tag(tree, b"A")
            self._leaf(tree, self._array())
        else:
            self._write(tree, depth - 1)

    def _leaf(self, tree: Tree, leaf: Leaf) -> None:
        tree.leaves.append(leaf)
        tree.parts.append(_leaf_bytes(leaf)[1:])

    def _array(self) -> Leaf:
        rng = self._rng
        if rng.random() < 0.02:
            return Leaf("A", rng.choice(("object", "V8", "str_", "x")), (2,))
        shape = rng.choice(((), (1,), (3,), (3,), (2, 2), (0,)))
        if rng.random() < 0.01:
            shape = rng.choice(((1 << 40, 1 << 40), (1 << 62,)))
        return Leaf("A", rng.choice(_DTYPES[:2] if rng.random() < 0.8 else _DTYPES), shape)

    def _arrays(self, tree: Tree, depth: int, tag: str) -> None:
        self._leaf(tree, self._array())

    def _keys(self, tree: Tree, depth: int, tag: str) -> None:
        impl = self._rng.choice(("fry", "threefry2x32", "rbg", self._text()))
        tree.leaves.append(Leaf("K", "uint32", (2,), False, impl))
        tree.parts.append(dump_literal(impl) + spec_bytes("K", "uint32", (2,))[1:])

    def _scalar(self, tree: Tree, depth: int, tag: str) -> None:
        tree.leaves.append(Leaf(tag))

    def _nothing(self, tree: Tree, depth: int, tag: str) -> None:
        """Nothing follows."""

    def _sequence(self, tree: Tree, depth: int, tag: str) -> None:
        count = self._rng.randrange(3)
        tree.parts.append(_COUNT.pack(count))
        for _ in range(count):
            self._write(tree, depth - 1)

    def _mapping(self, tree: Tree, depth: int, tag: str) -> None:
        count = self._rng.randrange(3)
        tree.parts.append(_COUNT.pack(count))
        for _ in range(count):
            tree.parts.append(dump_literal(self._plain(0)))
            self._write(tree, depth - 1)

    def _class_name(self, drawn: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        rng = self._rng
        classes = self._of["classes"]
        if classes and rng.random() < 0.2:
            module, name, content = rng.choice(classes)
            places = ((bytes.fromhex(self._of["mark"]), rng.randrange(8)),)
            own = (module, name, bytes.fromhex(content))
            return (*own, places) if rng.random() < 0.5 else own
        module, name = (drawn or self._classes(rng))["name"]
        if rng.random() < 0.02:
            return module, name, self._bytes()
        return module, name

    def _named_tuple(self, tree: Tree, depth: int, tag: str) -> None:
        rng = self._rng
        drawn = self._tuples(rng)
        fields = tuple(drawn["fields"])
        name = self._class_name(drawn)
        if rng.random() < 0.2:
            fields = tuple(self._text() for _ in range(rng.randrange(3)))
        tree.parts.append(dump_literal(name) + dump_literal(fields))
        for _ in fields:
            self._value(tree, depth - 1)

    def _object(self, tree: Tree, depth: int, tag: str) -> None:
        rng = self._rng
        drawn = self._classes(rng) if rng.random() < 0.8 else self._dataclasses(rng)
        tree.parts.append(dump_literal(self._class_name(drawn)))
        groups = drawn["groups"]
        names: list[str] = []
        if groups:
            names = rng.choices([each[1] for each in groups], [each[0] for each in groups])[0]
            names = [name for name in names if rng.random() < 0.9]
        self._tag(tree, b"D")
        tree.parts.append(_COUNT.pack(len(names)))
        for name in names:
            tree.parts.append(dump_literal(name))
            self._value(tree, depth - 1)

    def _registered(self, tree: Tree, depth: int, tag: str) -> None:
        """A class with its aux data: a callable, a value, or several; and children."""
        rng = self._rng
        tree.parts.append(dump_literal(self._class_name(self._nodes(rng))))
        if rng.random() < 0.5:
            self._tag(tree, b"R")
            self._refer(tree)
        elif rng.random() < 0.5:
            self._value(tree, depth - 1)
        else:
            self._tag(tree, b"T")
            tree.parts.append(_COUNT.pack(2))
            self._value(tree, depth - 1)
            self._value(tree, depth - 1)
        count = rng.randrange(3)
        tree.parts.append(_COUNT.pack(count))
        for _ in range(count):
            if rng.random() < 0.6:
                self._tag(tree, rng.choice((b"T", b"T", b"D")))
                inner = rng.randrange(3) if tree.parts[-1] == b"T" else 0
                tree.parts.append(_COUNT.pack(inner))
                for _ in range(inner):
                    self._value(tree, depth - 1)
            else:
                self._value(tree, depth - 1)

    def _structure(self, tree: Tree, depth: int, tag: str) -> None:
        self._write(tree, depth - 1)

    def _static(self, tree: Tree, depth: int, tag: str) -> None:
        tree.parts.append(dump_literal(self._plain(2)))

    def _pickled_static(self, tree: Tree, depth: int, tag: str) -> None:
        data = self._rng.choice(self._pickles)
        tree.parts.append(_COUNT.pack(len(data)) + data)

    def _static_leaf(self, tree: Tree, depth: int, tag: str) -> None:
        tree.parts.append(dump_literal(self._text()))
        self._tag(tree, b"S")
        self._static(tree, depth, "S")

    def _template_node(self, tree: Tree, depth: int, tag: str) -> None:
        tree.parts.append(dump_literal(self._plain(1)))
        self._pickled_static(tree, depth, tag)
        tree.parts.append(_COUNT.pack(0))

    def _no_data(self, tree: Tree, depth: int, tag: str) -> None:
        leaf = self._array()
        tree.parts.append(_leaf_bytes(leaf)[1:])

    def _pickled(self, tree: Tree, depth: int, tag: str) -> None:
        tree.leaves.append(Leaf("P", buffers=1))
        tree.parts.append(_COUNT.pack(1))

    # references ---------------------------------------------------------------------------------

    def _refer(self, tree: Tree, depth: int = 0, tag: str = "R") -> None:
        tree.parts.append(dump_literal(self._reference_of(2)))

    def _reference_of(self, depth: int) -> tuple[Any, ...]:
        rng = self._rng
        kind = self._reference(rng)
        self.counts["reference", kind] += 1
        detail = _REFERENCES[kind][1](self, depth)
        token = b"" if rng.random() < 0.8 else rng.randbytes(16)
        return kind, detail, token, self._text()

    def _r_number(self, depth: int) -> tuple[Any, ...]:
        rng = self._rng
        mark = bytes.fromhex(self._of["mark"]) if rng.random() < 0.9 else self._bytes()
        count = len(self._of["objects"])
        return (((mark, rng.randrange(count + 1) if rng.random() < 0.97 else -1),),)

    def _r_content(self, depth: int) -> tuple[Any, ...]:
        known = [bytes.fromhex(each) for each in self._of["contents"]]
        return (self._rng.choice([*known, self._bytes()]),)

    def _r_class(self, depth: int) -> tuple[Any, ...]:
        module, name, *content = self._class_name()
        return module, name, content[0] if content else b""

    def _r_installed(self, depth: int) -> tuple[Any, ...]:
        if self._rng.random() < 0.05:
            return self._rng.choice(self._inventory["modules"]), ""
        module, name, _ = self._callables(self._rng)
        return module, name

    def _r_default(self, depth: int) -> tuple[Any, ...]:
        module, name = self._dataclasses(self._rng)["name"]
        return module, name, self._rng.choice(("activation", "dtype", "name", self._text()))

    def _r_method(self, depth: int) -> tuple[Any, ...]:
        name = self._rng.choice(self._rng.choice(self._inventory["methods"]))
        if not depth:
            return (("o", (), b"", ""), name)
        return self._reference_of(depth - 1), name

    def _r_member(self, depth: int) -> tuple[Any, ...]:
        return *self._r_class(depth), self._text()

    def _r_dtype(self, depth: int) -> tuple[Any, ...]:
        return (self._rng.choice((*_DTYPES, "object", "V8", self._text())),)

    def _r_set(self, depth: int) -> tuple[Any, ...]:
        return self._rng.choice(("set", "frozenset", "x")), (1, "a", self._plain(0))

    def _r_nothing(self, depth: int) -> tuple[Any, ...]:
        return ()

    # aims ---------------------------------------------------------------------------------------

    def _aim_literal(self, depth: int) -> tuple[Any, ...]:
        """An aim that is a literal: an entry of the client's own table, with data."""
        rng = self._rng
        kind = rng.choice(("given", "given", "listed", "argument", "partial", "made", "other"))
        self.counts["aim", kind] += 1
        number = rng.randrange(4) if rng.random() < 0.95 else rng.choice(_NUMBERS)
        if kind == "partial" and depth:
            data = tuple(self._said(1) for _ in range(rng.randrange(3)))
            named = ((self._text(), self._said(1)),) if rng.random() < 0.2 else ()
            return kind, self._aim_literal(depth - 1), data, named
        if kind == "made":
            return kind, number, *self._cells(depth)
        if kind == "other":
            return tuple(self._plain(1) for _ in range(rng.randrange(4)))
        return kind, number

    def _cells(self, depth: int) -> tuple[Any, ...]:
        rng = self._rng
        names = self._inventory["cells"]
        cells = tuple(
            (rng.choice(names) if names else "x", self._said(depth))
            for _ in range(rng.randrange(3))
        )
        defaults = None if rng.random() < 0.7 else (self._said(1),)
        keywords = None if rng.random() < 0.8 else ((self._text(), self._said(1)),)
        return cells, defaults, keywords

    def _said(self, depth: int) -> tuple[Any, ...]:
        """What a cell holds, or an argument that is data."""
        rng = self._rng
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
        self.counts["aim data", kind] += 1
        if kind in ("held", "array", "listed", "self"):
            return kind, rng.randrange(3)
        if kind in ("list", "tuple") and depth:
            return kind, tuple(self._said(depth - 1) for _ in range(rng.randrange(3)))
        if kind == "dict" and depth:
            return kind, ((("value", self._text()), self._said(depth - 1)),)
        if kind == "code" and depth:
            return kind, *self._cells(depth - 1)
        if kind == "argument":
            return (kind,)
        return "value", self._plain(1)

    def _write_aim(self, tree: Tree, depth: int) -> None:
        kind = self._aim(self._rng) if depth else self._rng.choice(("object", "value", "live"))
        self.counts["aim", kind] += 1
        _AIMS[kind][1](self, tree, depth, kind)

    def _put(self, tree: Tree, *literals: Any) -> None:
        for each in literals:
            self._tag(tree, b"S")
            tree.parts.append(dump_literal(each))

    def _head(self, tree: Tree, kind: str, count: int) -> None:
        self._tag(tree, b"T")
        tree.parts.append(_COUNT.pack(count))
        self._put(tree, kind)

    def _number(self, of: str) -> int:
        count = len(self._of[of])
        number = self._rng.randrange(count) if count else 0
        return number if self._rng.random() < 0.97 else self._rng.choice((-1, count, 1 << 40))

    def _a_live(self, tree: Tree, depth: int, kind: str) -> None:
        rng = self._rng
        names: tuple[str, ...] = ()
        if rng.random() < 0.4:
            names = tuple(self._attribute() for _ in range(rng.randrange(1, 3)))
        self._head(tree, kind, 3)
        self._put(tree, self._number("live"), names)

    def _method(self, of: int) -> str:
        """A method of data: those more often that reach further."""
        names = self._inventory["methods"][of]
        weights = [12 if name in REACHING else 1 for name in names]
        return str(self._rng.choices(names, weights)[0])

    def _argument(self, tree: Tree) -> None:
        """Of a callback: a file, something of the client's own, or anything else."""
        drawn = self._rng.random()
        if drawn < 0.35:
            self._put(tree, self._rng.choice(_PATHS))
        elif drawn < 0.55 and self._of["objects"]:
            self._tag(tree, b"R")
            self.counts["reference", "n"] += 1
            tree.parts.append(dump_literal(("n", self._r_number(0), b"", "")))
        else:
            self._value(tree, 2)

    def _attribute(self) -> str:
        rng = self._rng
        own = [*self._of["objects"], *self._of["live"]]
        if own and rng.random() < 0.5:
            names = rng.choice(own)["names"]
            if names:
                return str(rng.choice(names))
        return str(rng.choice(rng.choice(self._inventory["methods"])))

    def _a_object(self, tree: Tree, depth: int, kind: str) -> None:
        self._head(tree, kind, 2)
        self._put(tree, self._number("objects"))

    def _a_get(self, tree: Tree, depth: int, kind: str) -> None:
        self._head(tree, kind, 3)
        if self._rng.random() < 0.5:  # a method of data
            of = self._rng.choice((0, 0, 0, 2, 2, *range(len(self._inventory["methods"]))))
            self._head(tree, "value" if self._rng.random() < 0.7 else "array", 2)
            if of == 2:
                self._put(tree, self._template() if self._rng.random() < 0.6 else self._text())
            elif of == 0 or self._rng.random() < 0.5:
                self._tag(tree, b"A")
                self._leaf(tree, self._array())
            else:
                self._value(tree, depth - 1)
            self._put(tree, self._method(of))
        else:
            self._write_aim(tree, depth - 1)
            self._put(tree, self._attribute())

    def _a_partial(self, tree: Tree, depth: int, kind: str) -> None:
        self._head(tree, kind, 4)
        self._write_aim(tree, depth - 1)
        self._aims_in(tree, self._rng.randrange(3), depth)
        self._tag(tree, b"D")
        tree.parts.append(_COUNT.pack(0))

    def _aims_in(self, tree: Tree, count: int, depth: int) -> None:
        self._tag(tree, b"T")
        tree.parts.append(_COUNT.pack(count))
        for _ in range(count):
            self._write_aim(tree, depth - 1)

    def _a_made(self, tree: Tree, depth: int, kind: str) -> None:
        rng = self._rng
        makers = [number for number, each in enumerate(self._of["objects"]) if each["codes"]]
        number = rng.choice(makers) if makers else 0
        path, cells = (), 0
        if makers and rng.random() < 0.95:
            path, cells = rng.choice(self._of["objects"][number]["codes"])
        self._head(tree, kind, 6)
        self._head(tree, "object", 2)
        self._put(tree, number, tuple(path))
        self._aims_in(tree, cells, depth)
        self._put(tree, None) if rng.random() < 0.8 else self._write_aim(tree, depth - 1)
        self._put(tree, None) if rng.random() < 0.9 else self._write_aim(tree, depth - 1)

    def _a_cell(self, tree: Tree, depth: int, kind: str) -> None:
        self._head(tree, kind, 3)
        self._a_object(tree, depth, "object")
        self._put(tree, self._rng.randrange(2))

    def _a_items(self, tree: Tree, depth: int, kind: str) -> None:
        self._head(tree, kind, 3)
        self._put(tree, self._rng.choice(("list", "tuple", "dict", "set")))
        self._aims_in(tree, self._rng.randrange(3), depth)

    def _a_value(self, tree: Tree, depth: int, kind: str) -> None:
        self._head(tree, kind, 2)
        if self._rng.random() < 0.5:
            self._tag(tree, b"R")
            self._refer(tree)
        else:
            self._value(tree, depth)

    def _a_array(self, tree: Tree, depth: int, kind: str) -> None:
        self._head(tree, kind, 2)
        self._value(tree, depth - 1)

    def _a_other(self, tree: Tree, depth: int, kind: str) -> None:
        self._head(tree, self._text(), 2)
        self._value(tree, depth - 1)


def _leaf_bytes(leaf: Leaf) -> bytes:
    if leaf.tag == "A":
        return spec_bytes("A", leaf.dtype, leaf.shape, leaf.weak)
    return leaf.tag.encode()


_VERBS: Final[Mapping[str, str]] = {
    **{
        name: name
        for name in (
            *("why", "statistics", "info", "devices", "put", "named", "unname", "name", "values"),
            *("functions", "recent", "verify", "recipes", "forget", "part", "fetch"),
        )
    },
    "lower": "stages",
    "jaxpr": "stages",
}
"""What acts of the victim ask for, where that is not a call."""

_WHY: Final = {
    "verdict": "hit", "function": "f", "key": "k", "fingerprint": "f", "reason": "r",
    "nearest": {"function": "g", "key": "k", "same_key": True, "arguments": "a", "seconds": 1.0,
                "age_s": 2.0, "calls": 3},
    "differences": [{"part": "p", "kind": "k", "path": "p", "before": "b", "after": "a",
                     "where": "w", "text": "t"}],
    "advice": ["a"],
    "programs": [{"arguments": "a", "seconds": 1.0, "age_s": 2.0, "calls": 3}],
}  # fmt: skip

_JSON: Final[Mapping[str, str]] = {
    "why": json.dumps(_WHY),
    "warm": json.dumps({"verdict": "compile", "seconds": 1.5, "kept": True}),
    "stages": json.dumps({"text": "module {}", "jaxpr": "{}", "memory": None, "cost": {}}),
    "statistics": json.dumps(dict.fromkeys(("calls", "traces", "compiles", "uptime_s"), 1)),
    "info": json.dumps({"versions": {"jax": "1"}, "devices": [], "pid": 1}),
    "devices": json.dumps({"devices": [{"index": 0, "kind": "cpu", "platform": "cpu"}]}),
    "values": json.dumps({"holders": [], "totals": {}}),
    "functions": json.dumps({"functions": [], "totals": {}}),
    "recent": json.dumps({"decisions": [{"function": "f", "reason": "r"}]}),
    "verify": json.dumps({"checked": 1, "same": 1, "different": [], "skipped": 0}),
    "forget": json.dumps({"executables": 1}),
    "recipes": json.dumps({"mark": "m", "left_out": []}),
}

_Writer = Callable[[Generator, Tree, int, str], None]

_NODES: Final[Mapping[str, tuple[float, _Writer]]] = {
    "N": (1, Generator._nothing),
    "T": (2, Generator._sequence),
    "L": (2, Generator._sequence),
    "D": (2, Generator._mapping),
    "M": (1, Generator._mapping),
    "U": (4, Generator._named_tuple),
    "O": (14, Generator._object),
    "S": (2, Generator._static),
    "R": (6, Generator._refer),
    "G": (8, Generator._registered),
    "J": (1, Generator._structure),
    "Q": (1.0, Generator._pickled_static),
    "X": (1.0, Generator._static_leaf),
    "V": (1.0, Generator._template_node),
    "Z": (1, Generator._no_data),
    "A": (4, Generator._arrays),
    "K": (1, Generator._keys),
    "F": (1, Generator._scalar),
    "I": (1, Generator._scalar),
    "B": (1, Generator._scalar),
    "C": (1, Generator._scalar),
    "P": (1.0, Generator._pickled),
    "?": (0.8, Generator._nothing),
}

_TO_SERVERS: Final[Mapping[str, float]] = {
    "A": 12, "S": 5, "F": 3, "I": 3, "U": 3, "O": 4, "Q": 2, "X": 3, "V": 2, "P": 2,
    "R": 1, "G": 1, "J": 1,  # only towards a client: refused
}  # fmt: skip
"""Other weights, towards a server."""

_REFERENCES: Final[Mapping[str, tuple[float, Callable[[Generator, int], tuple[Any, ...]]]]] = {
    "n": (4, Generator._r_number),
    "c": (1, Generator._r_content),
    "k": (2, Generator._r_class),
    "i": (10, Generator._r_installed),
    "p": (1, Generator._r_default),
    "m": (2, Generator._r_method),
    "e": (1, Generator._r_member),
    "d": (1, Generator._r_dtype),
    "s": (1, Generator._r_set),
    "o": (1, Generator._r_nothing),
}

_AIMS: Final[Mapping[str, tuple[float, _Writer]]] = {
    "live": (4, Generator._a_live),
    "object": (3, Generator._a_object),
    "get": (6, Generator._a_get),
    "partial": (3, Generator._a_partial),
    "made": (5, Generator._a_made),
    "cell": (1.5, Generator._a_cell),
    "items": (2, Generator._a_items),
    "array": (1.5, Generator._a_array),
    "value": (3, Generator._a_value),
    "other": (1, Generator._a_other),
}
