"""What a plan means, as plain data: files, installed packages, processes and what each does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any, Final

from tests.generator.features import Edit, Package
from tests.generator.kinds import FEATURES
from tests.generator.plans import Choice, Function, Piece, Plan, Session
from tests.identity.random_projects import LINKS

FOLDERS: Final = ("wd", "wd_longer")
_HEAD: Final = (
    '"""A module."""\n# top\nimport enum, functools\nfrom dataclasses import dataclass\n'
    "from types import SimpleNamespace\nimport numpy as np\nUNUSED = 1\n"
    "def unread_helper(x): return x"
)
_salts: Final = count(1)


@dataclass(slots=True)
class Act:
    """One step of a process: files are written, then edits are run, then functions are called."""

    writes: dict[str, str] = field(default_factory=dict)
    edits: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Process:
    """A process, from its start."""

    environment: dict[str, str | None]
    argv: list[str]
    folder: str
    installs: list[dict[str, Any]]
    acts: list[Act]


@dataclass(slots=True)
class World:
    """A project and its processes. `files` and `writes` are relative to a folder of its own."""

    name: str
    files: dict[str, str]
    installs: list[dict[str, Any]]
    processes: list[Process]


def world(plan: Plan) -> World:
    """The world of a plan, with names that no other one has."""
    return _Maker(plan).made()


class _Maker:
    """Follows a plan from its beginning, with what is on disk and in the environment."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._functions = {function.number: function for function in plan.functions}
        self._salt = next(_salts)
        self._name = f"w{plan.seed}_{self._salt}"
        self._texts: dict[str, str] = {}
        self._environment: dict[str, str | None] = {}
        self._argv = ["prog", "one"]
        self._folder = FOLDERS[0]

    def made(self) -> World:
        """All of it."""
        files = {f"{self._name}/__init__.py": ""}
        for function in self._plan.functions:
            files |= self._files(function)
        self._texts = dict(files)
        installs = [
            self._installed(package, function, piece)
            for function in self._plan.functions
            for piece in function.pieces
            for package in FEATURES[piece.feature].packages
        ]
        for function in self._plan.functions:
            for piece in function.pieces:
                for name, text in FEATURES[piece.feature].environment.items():
                    self._environment[self._fill(name, function, piece)] = self._fill(
                        text, function, piece
                    )
        processes = [self._process(session) for session in self._plan.sessions]
        return World(self._name, files, installs, processes)

    # the text of it ------------------------------------------------------------------------------

    def _module(self, function: Function, at: int) -> str:
        return f"{self._name}.f{function.number}" + ("" if not at else f"_{at}")

    def _fill(
        self, text: str, function: Function, piece: Piece, numbers: tuple[int, int] | None = None
    ) -> str:
        number = function.pieces.index(piece)
        one, other = numbers or piece.numbers
        return (
            text.replace("NN", f"{function.number}_{number}s{self._salt}")
            .replace("AA", str(one))
            .replace("BB", str(other))
            .replace("MOD", self._module(function, piece.module))
            .replace("PKG", self._name)
        )

    def _files(self, function: Function) -> dict[str, str]:
        made: dict[str, str] = {}
        last = len(function.links)
        for at in range(last + 1):
            pieces = [piece for piece in function.pieces if piece.module == at]
            follows = self._module(function, at + 1).rpartition(".")[2] if at < last else ""
            link = LINKS[function.links[at]] if at < last else ("", "", "")
            top, inside, call = (part.format(p=self._name, m=follows) for part in link)
            filled = [(FEATURES[piece.feature], piece) for piece in pieces]
            lines = [
                _HEAD,
                top,
                *(self._fill(feature.top, function, piece) for feature, piece in filled),
                "def go(x):",
                '    """Adds it all."""',
                f"    {inside}",
                *(self._fill(feature.inside, function, piece) for feature, piece in filled),
                "    return "
                + " + ".join(
                    [
                        "x",
                        *(self._fill(f.term, function, p) for f, p in filled if not f.static),
                        *filter(None, [call]),
                    ]
                ),
                "# bottom",
            ]
            if not at:
                lines += self._entry(function)
            path = self._module(function, at).replace(".", "/") + ".py"
            made[path] = "\n".join(line for line in lines if line.strip()) + "\n"
            for feature, piece in filled:
                for name, text in feature.files.items():
                    file = f"{self._name}/{self._fill(name, function, piece)}"
                    made[file] = self._fill(text, function, piece)
        return made

    def _entry(self, function: Function) -> list[str]:
        """The function that is called."""
        statics = self._statics(function)
        terms = [
            self._fill(FEATURES[piece.feature].term, function, piece)
            for piece in function.pieces
            if FEATURES[piece.feature].static
        ]
        return [
            "def entry(n, x):",
            f"    salt = {self._salt}",
            f"    n, {', '.join(statics)} = n" if statics else "",
            "    return " + " + ".join(["x", "go(n)", *terms]),
        ]

    def _statics(self, function: Function) -> list[str]:
        """The globals that it is called with."""
        found = ((FEATURES[piece.feature].static, piece) for piece in function.pieces)
        return [self._fill(name, function, piece) for name, piece in found if name]

    def _installed(
        self,
        package: Package,
        function: Function,
        piece: Piece,
        numbers: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        def filled(text: str) -> str:
            return self._fill(text, function, piece, numbers)

        files = {filled(name): filled(text) for name, text in package.files.items()}
        return {"name": filled(package.name), "version": package.version, "files": files}

    # what happens --------------------------------------------------------------------------------

    def _process(self, session: Session) -> Process:
        acts: list[Act] = []
        installs: list[dict[str, Any]] = []
        for number, step in enumerate(session.steps):
            act = Act()
            for choice in step.choices:
                if choice.function in self._functions:
                    self._choose(choice, act, installs, running=number > 0)
            for call in step.calls:
                if call in self._functions:
                    act.calls.append(self._call(self._functions[call]))
            acts.append(act)
        environment = dict(self._environment)
        return Process(environment, list(self._argv), self._folder, installs, acts)

    def _call(self, function: Function) -> dict[str, Any]:
        threads = [
            self._fill(code, function, piece)
            for piece in function.pieces
            for code in FEATURES[piece.feature].threads
        ]
        statics = self._statics(function)
        return {"function": self._module(function, 0), "threads": threads, "statics": statics}

    def _choose(
        self, choice: Choice, act: Act, installs: list[dict[str, Any]], *, running: bool
    ) -> None:
        function = self._functions[choice.function]
        piece = function.pieces[choice.piece]
        edits = FEATURES[piece.feature].edits
        if choice.edit >= len(edits):
            return  # the piece was taken out
        edit = edits[choice.edit]

        def filled(text: str) -> str:
            return self._fill(text, function, piece, choice.numbers)

        if edit.code:
            act.edits.append(
                f"m = module('{self._module(function, piece.module)}')\n{filled(edit.code)}"
            )
        for name, text in edit.environment.items():
            self._environment[filled(name)] = None if text is None else filled(text)
        if edit.argv:
            self._argv = list(map(filled, edit.argv))
        self._folder = edit.folder or self._folder
        if edit.install is not None:
            installs.append(self._installed(edit.install, function, piece, choice.numbers))
        for name, text in edit.write.items():
            act.writes[f"{self._name}/{filled(name)}"] = filled(text)
        if edit.swap is not None:
            self._swap(choice, edit, act, running=running)

    def _swap(self, choice: Choice, edit: Edit, act: Act, *, running: bool) -> None:
        function = self._functions[choice.function]
        piece = function.pieces[choice.piece]
        assert edit.swap is not None
        old = self._fill(edit.swap[0], function, piece)
        new = self._fill(edit.swap[1], function, piece, choice.numbers)
        for path in self._of(function, piece):
            if self._texts[path].count(old) == 1:
                self._texts[path] = act.writes[path] = self._texts[path].replace(old, new)
                if running and path.endswith(".py") and choice.reloads != "none":
                    name = path.removesuffix(".py").replace("/", ".")
                    above = [self._module(function, at) for at in range(piece.module, -1, -1)]
                    names = [name, *above] if choice.reloads == "all" else [name]
                    act.edits += [f"again('{each}')" for each in dict.fromkeys(names)]
                return

    def _of(self, function: Function, piece: Piece) -> Iterator[str]:
        """The files of a piece: its own before its module."""
        for name in FEATURES[piece.feature].files:
            yield f"{self._name}/{self._fill(name, function, piece)}"
        yield self._module(function, piece.module).replace(".", "/") + ".py"


def plain(made: World) -> dict[str, Any]:
    """As JSON takes it."""
    return asdict(made)
