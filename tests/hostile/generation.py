"""Messages by grammar, from a seed: what a hostile server says to a client.

Of each exchange, which is one thing that the client asks for, the steps: events and questions, and
then the reply. Skeletons are written with what the inventory says is loaded in the victim.
Everything is drawn: nothing here knows an attack.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd_protocol import errors
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.recorded_reads import KINDS
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.leaves import Leaf
from tests.hostile.callback_targets import CallbackTargetWriter
from tests.hostile.drawing import NUMBERS, PATHS, SECRET_FILES, RandomValues, WeightedChoice
from tests.hostile.exchanges import Exchange, Step
from tests.hostile.trees import COUNT, TreeBuffer, TreeWriter, leaf_bytes
from tests.spans import packed_leaves

_LINKS: Final = 2

EVENTS: Final = ("print", "warned", "logged", "compiled", "stage", "built", "warning")


class Generator:
    """Draws exchanges for one victim.

    Args:
        inventory: what is loaded there, see `inventory`.
        seed: of everything.
        to_server: whether a server is the victim: it is sent arguments.

    Attributes:
        draws: the values that it draws.
    """

    def __init__(self, inventory: Mapping[str, Any], seed: int, *, to_server: bool = False) -> None:
        self.draws = RandomValues(inventory, seed)
        self._trees = TreeWriter(self.draws, to_server=to_server)
        self._callback_targets = CallbackTargetWriter(self.draws, self._trees)
        self._own: Mapping[str, Any] = inventory["own"]
        self._exceptions = WeightedChoice(inventory["exceptions"])

    def arguments(self, pickles: Sequence[bytes]) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """What a call may bring: skeleton, blob and buffers.

        Args:
            pickles: what stands where a pickle belongs.
        """
        self._trees.pickles = pickles
        if self.draws.rng.random() < 0.05:
            return self._trees.whole()
        tree = TreeBuffer()
        tree.parts.append(b"T" + COUNT.pack(2))
        count = self.draws.rng.choice((1, 1, 1, 2, 0))
        tree.parts.append(b"T" + COUNT.pack(count))
        for _ in range(count):
            self._trees.write(tree, 3)
        tree.parts.append(b"D" + COUNT.pack(0))
        skeleton, blob, buffers = tree.data(self.draws.rng)
        if any(leaf.tag == "P" for leaf in tree.leaves):
            buffers = tuple(each or self.draws.rng.choice(pickles) for each in buffers)
        return skeleton, blob, buffers

    def exchange(self, number: int, act: str, name: str) -> Exchange:
        """The exchange of that number: the same for the same seed and inventory.

        Args:
            number: of the exchange.
            act: what the client does.
            name: with which function.
        """
        self.draws.begin(number)
        return self.drawn(act, name)

    def drawn(self, act: str, name: str) -> Exchange:
        """An exchange from what `draws` has now."""
        self.draws.of = self._own[name]
        steps = []
        if act in ("call", "submit", "remote", "warm", "lower", "jaxpr"):
            draws = (self._event, self._question)
            while self.draws.rng.random() < 0.4:
                steps.append(self.draws.rng.choices(draws, (6, 4))[0]())
            if self.draws.of["calls_back"] and self.draws.rng.random() < 0.6:
                steps.append(self._callback())
        steps.append(self._reply(act))
        return Exchange(act, name, tuple(steps))

    def all_honest(self) -> list[Exchange]:
        """One of each kind that differs for the client, for each of its functions."""
        acts = ("call", "fail", "submit", "remote")
        return [self.honest(act, name) for name in self._own for act in acts]

    def honest(self, act: str, name: str) -> Exchange:
        """An exchange as an honest server would have it, which shows what belongs to one."""
        tree = TreeBuffer()
        tree.parts.append(b"T" + COUNT.pack(2))
        for leaf in (Leaf("A", "float32", (3,)), Leaf("F")):
            tree.leaves.append(leaf)
            tree.parts.append(leaf_bytes(leaf))
        skeleton, blob, buffers = tree.data(self.draws.rng)
        told = {"text": "told\n", "stream": "stdout", "flush": True}
        file = self.draws.inventory["files"][0]
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
            more = (), (), (), (), (), ("", "")
            links = (
                "cause",
                ("builtins", "KeyError", "'k'", dump_literal(("k",)), 0.0, "t", *more),
            )
            failure = ("builtins", "ValueError", "v", dump_literal(("v",)), 0.0, "text",
                       (frame,), links, ("a note",), (), (), ("building", "m"))  # fmt: skip
            act, reply = "call", (FAILED, failure)
        return Exchange(act, name, (*steps, Step("reply", reply, buffers)))

    def _reply(self, act: str) -> Step:
        verb = _VERBS.get(act, "call")
        self.draws.counts["reply", verb] += 1
        if self.draws.rng.random() < (0.12 if verb == "call" else 0.06):
            failure = self._failure(0)
            return Step("reply", (FAILED, failure, b"") if act == "remote" else (FAILED, failure))
        if verb in _JSON:
            return Step("reply", self._json_of(verb))
        if verb in ("put", "part", "fetch", "share", "unname", "name", "adopt", "named", "recipes"):
            return self._of_values(verb)
        if act == "warm":
            text = self._json_of("warm")
            return Step("reply", (OK, text, self._trees.whole()[0]))
        skeleton, blob, buffers = self._trees.whole()
        if act == "remote":
            away = self.draws.rng.choice((b"", packed_leaves([0]), packed_leaves([1, 0]), b"\0"))
            return Step("reply", (OK, skeleton, blob, b"", away), buffers)
        return Step("reply", (OK, skeleton, blob), buffers)

    def _of_values(self, verb: str) -> Step:
        rng = self.draws.rng
        leaves = [self._trees.array() for _ in range(rng.randrange(1, 3))]
        specs = b"T" + COUNT.pack(len(leaves)) + b"".join(map(leaf_bytes, leaves))
        if verb == "recipes":
            return Step(
                "reply", (self._json_of(verb), *(self.draws.bytes() for _ in range(2))), (b"x",)
            )
        if verb in ("put", "part", "named"):
            skeleton = specs if rng.random() < 0.7 else self._trees.whole()[0]
            return Step("reply", (OK, skeleton), tuple(rng.randbytes(4) for _ in range(2)))
        if verb == "fetch":
            return Step("reply", (OK,), tuple(rng.randbytes(12) for _ in range(rng.randrange(3))))
        return Step("reply", (OK, self.draws.plain(1)))

    def _json_of(self, verb: str) -> str:
        good = json.loads(_JSON.get(verb, "{}"))
        return json.dumps(self._changed(good))

    def _changed(self, value: Any) -> Any:
        """JSON like this, some of it replaced."""
        if self.draws.rng.random() < 0.08:
            return self.draws.json()
        if type(value) is dict:
            return {name: self._changed(each) for name, each in value.items()}
        if type(value) is list:
            return [self._changed(each) for each in value]
        return value

    def _event(self) -> Step:
        rng = self.draws.rng
        kind = rng.choice(EVENTS) if rng.random() < 0.88 else "other"
        self.draws.counts["event", kind] += 1
        content = self._content(kind)
        if rng.random() < 0.15:
            content = self._changed(content)
        number = None if rng.random() < 0.97 else rng.choice(NUMBERS[:6])
        return Step("event", (number, kind, json.dumps(content)))

    def _content(self, kind: str) -> dict[str, Any]:
        draws, rng = self.draws, self.draws.rng
        file = rng.choice(PATHS if rng.random() < 0.5 else self.draws.inventory["files"])
        text = rng.choice((draws.text(), rng.choice(PATHS)))
        category = rng.choice(self.draws.inventory["warnings"])
        common: dict[str, Any] = {"text": text, "function": draws.text()}
        line = rng.choice((0, 1, 3, 50, -1))
        own: dict[str, dict[str, Any]] = {
            "print": {"stream": rng.choice(("stdout", "stderr", "x")), "flush": True},
            "warned": {"category": category, "bases": ["UserWarning", draws.text()],
                       "file": file, "line": line},
            "logged": {"name": rng.choice(("", "root", "jax", "a.b", draws.text())), "file": file,
                       "level": rng.choice((0, 10, 20, 30, 40, 50, 1 << 40)), "line": line,
                       "traceback": rng.choice((None, draws.text()))},
            "stage": {"stage": rng.choice(("trace", "lower", "compile", "x"))},
            "built": {"seconds": rng.choice((0.0, 1e300, -1)), "reason": draws.text()},
            "warning": {"package": rng.choice(("jax", draws.text())),
                        "category": rng.choice(("", "advice", "device", "x"))},
        }  # fmt: skip
        own["compiled"] = own["logged"]
        return common | own.get(kind, {})

    def _question(self) -> Step:
        rng = self.draws.rng
        verbs = ("describe", "code", "callback", "read", "confirm", "other")
        verb = rng.choices(verbs, (5, 6, 8, 5, 2, 4))[0]
        if verb == "callback":
            return self._callback()
        self.draws.counts["question", verb] += 1
        if verb in ("read", "confirm"):
            count = 1 if verb == "read" else rng.randrange(4)
            reads = tuple(self._process_read() for _ in range(count))
            return Step(verb, (bytes.fromhex(self.draws.of["fingerprint"]), reads))
        key = (
            bytes.fromhex(self.draws.of["fingerprint"]) if verb == "code" else b""
        )  # b"": that of the call
        if rng.random() < 0.03:
            return Step(verb, tuple(self.draws.plain(1) for _ in range(rng.randrange(3))))
        return Step(verb, (key,))

    def _process_read(self) -> tuple[Any, Any]:
        """Something that the client is to tell of its process."""
        rng = self.draws.rng
        if rng.random() < 0.03:
            return self.draws.plain(1), self.draws.plain(1)
        kind = rng.choices((*sorted(KINDS), "other"), (2, 10, 2, 2, 2, 2, 10, 1))[0]
        if kind == "variable":
            return kind, rng.choice(("JAXD_HOSTILE_SECRET", "PATH", "HOME", "USER"))
        if kind == "file":
            return kind, rng.choice((*PATHS, *SECRET_FILES))
        return kind, rng.choice(("", "root", self.draws.text()))

    def _callback(self) -> Step:
        """A function of the client's is to be called, with data of the server's choice."""
        rng = self.draws.rng
        self.draws.counts["question", "callback"] += 1
        tree = TreeBuffer()
        if rng.random() < 0.5:
            tree.parts.append(b"T" + COUNT.pack(4))
            self._callback_targets.put(tree, dump_literal(self._callback_targets.literal(2)))
            held = rng.randrange(3)
            tree.parts.append(b"T" + COUNT.pack(held))
            for _ in range(held):
                self._trees.tag(tree, b"A")
                self._trees.leaf(tree, self._trees.array())
        else:  # as trees, with objects and references in them
            tree.parts.append(b"T" + COUNT.pack(3))
            self._callback_targets.write(tree, 2)
        count = rng.choice((0, 1, 1, 1, 2, 2, 3))
        tree.parts.append(b"T" + COUNT.pack(count))
        for _ in range(count):
            self._callback_targets.argument(tree)
        named = rng.random() < 0.1
        tree.parts.append(b"D" + COUNT.pack(int(named)))
        if named:
            tree.parts.append(dump_literal(self.draws.text()))
            self._trees.value(tree, 1)
        skeleton, blob, buffers = tree.data(rng)
        places = (rng.randrange(2), rng.choice((-1, 0, 1, 1 << 40)), rng.randrange(2))
        return Step("callback", (None, skeleton, blob, *places), buffers)

    def _failure(self, depth: int) -> tuple[Any, ...]:
        rng = self.draws.rng
        self.draws.counts["reply", "failure"] += 1
        if rng.random() < 0.05:
            return tuple(self.draws.plain(2) for _ in range(rng.randrange(14)))
        kind = rng.random()
        if kind < 0.1:
            names = [each for each in errors.__all__ if each not in ("Busy", "WorkerReplaced")]
            module, name = "jaxd_protocol.errors", rng.choice(names)
        else:
            module, name, _ = self._exceptions(rng)
        message = self.draws.text()
        args = tuple(self.draws.plain(2) for _ in range(rng.randrange(4)))
        if rng.random() < 0.5:
            args = (message,)
        frames = tuple(self._frame() for _ in range(rng.randrange(3)))
        links: tuple[Any, ...] = ()
        if depth < _LINKS and rng.random() < 0.2:
            links = (rng.choice(("cause", "context")), self._failure(depth + 1))
        notes = tuple(self.draws.text() for _ in range(rng.randrange(2)))
        literal = None if rng.random() < 0.1 else dump_literal(args)
        members: tuple[Any, ...] = ()
        if depth < _LINKS and rng.random() < 0.1:
            members = tuple(self._failure(depth + 1) for _ in range(rng.randrange(3)))
        described = (module, name, message, literal, 0.0, self.draws.text(), frames, links, notes)
        origin = (rng.choice(("", "trace", "run")), self.draws.text(), self.draws.text())
        return (*described, self._user_type(), members, origin)

    def _user_type(self) -> tuple[Any, ...]:
        """A class of the victim's own by its content, with attributes; or none."""
        rng = self.draws.rng
        classes = self._own[rng.choice(list(self._own))]["classes"]
        if rng.random() < 0.6 or not classes:
            return ()
        tree = TreeBuffer()
        self._trees.value(tree, 2)
        skeleton, blob, _ = tree.data(rng)
        return bytes.fromhex(rng.choice(classes)[2]), skeleton, blob

    def _frame(self) -> tuple[Any, ...]:
        rng = self.draws.rng
        file = rng.choice(PATHS if rng.random() < 0.5 else self.draws.inventory["files"])
        lines = (rng.choice((1, 3, 40, 0, -1, 1 << 20)), 3, rng.choice((-1, 0, 4)), 9)
        module = rng.choice(("m", "__main__", rng.choice(self.draws.inventory["modules"])))
        marks = self._own[rng.choice(list(self._own))]["code"]
        mark = bytes.fromhex(rng.choice(marks)) if marks and rng.random() < 0.5 else b"none"
        offset = rng.choice((0, 2, 40, -2, 1 << 40))
        return file, module, self.draws.text(), *lines, mark, offset


_VERBS: Final[Mapping[str, str]] = {
    **{
        name: name
        for name in (
            *("why", "statistics", "info", "devices", "put", "named", "unname", "name", "values"),
            *("functions", "recent", "recipes", "forget", "part", "fetch"),
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
    "forget": json.dumps({"executables": 1}),
    "recipes": json.dumps({"mark": "m", "left_out": []}),
}
