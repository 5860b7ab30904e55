"""A client's program: its files, the module that they are now, and what jax says of it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxd import Client
from tests.soak.oracle import Answer, Question, as_numpy
from tests.soak.project import Version, original, write

Ask = Callable[[Question, tuple[Any, ...], dict[str, Any]], Answer]
Derived = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


class WrongAnswer(Exception):
    """What must never happen."""


class Program:
    """Calls functions of `main.py` and compares what comes back with what jax says.

    Args:
        client: its server.
        ask: says what is right.
        folder: where its files are, or will be.
        seed: of the first version, when there is none yet.

    Attributes:
        calls: how many calls were compared.
        edits: of a file, or of what runs.
        called: when the last call was made.
        answered: when the last answer to one came.
        times: when each small call began, and the seconds that it took, since they were taken.
    """

    def __init__(self, client: Client, ask: Ask, folder: Path, seed: int) -> None:
        self.client = client
        self._ask = ask
        self._folder = folder
        self._found = folder / "version.json"
        self._functions: dict[Any, Any] = {}
        self._called: set[Any] = set()
        self.calls = self.edits = 0
        self.called = self.answered = 0.0
        self.times: list[tuple[float, float]] = []
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True  # Python cannot tell two edits of one second apart
        self.version = original(seed)
        with contextlib.suppress(FileNotFoundError):
            self.version = Version(tuple(json.loads(self._found.read_text())))
        self.become(self.version)

    def become(self, version: Version) -> None:
        """Writes its files anew and imports them, as after an edit."""
        self.version = version
        new = self._found.with_suffix(".new")
        new.write_text(json.dumps(version.numbers))
        os.replace(new, self._found)
        write(version, self._folder)
        self._functions.clear()
        for name in ("main", "helper"):
            sys.modules.pop(name, None)
        self.module = importlib.import_module("main")
        for statement in version.done:
            exec(statement, vars(self.module))

    def edit(self, chance: random.Random) -> None:
        """One of its files."""
        self.edits += 1
        self.become(self.version.edited(chance))

    def change(self, chance: random.Random) -> None:
        """Something in the module that runs, behind the back of who holds its functions."""
        self.edits += 1
        self.version, statement = self.version.changed(chance)
        exec(statement, vars(self.module))

    def function(self, name: str, derived: Derived = (), **options: Any) -> Any:
        """The persistent function; the same one until the next edit."""
        key = name, derived, str(options)
        if key not in self._functions:
            function = self.client.persistent_call(getattr(self.module, name), **options)
            for derive, how in derived:
                function = getattr(function, derive)(**dict(how))
            self._functions[key] = function
        return self._functions[key]

    def expected(
        self,
        name: str,
        *args: Any,
        derived: Derived = (),
        statics: tuple[str, ...] = (),
        x64: bool = False,
        **kwargs: Any,
    ) -> Answer:
        """What jax says."""
        return self._ask(Question(self.version, name, derived, statics, x64), args, kwargs)

    def check(
        self,
        name: str,
        *args: Any,
        derived: Derived = (),
        statics: tuple[str, ...] = (),
        x64: bool = False,
        **kwargs: Any,
    ) -> None:
        """A call, which is right or raises."""
        how: dict[str, Any] = {"derived": derived, "statics": statics, "x64": x64}
        expected = self.expected(name, *args, **how, **kwargs)
        function = self._function_for(name, **how)
        begun = self.called = time.monotonic()
        found = function(*args, **kwargs)
        self.answered = time.monotonic()
        took = self.answered - begun
        shapes = tuple((np.shape(one), str(np.asarray(one).dtype)) for one in args)
        known = self.version, name, derived, statics, x64, shapes, str(kwargs)
        if known in self._called:  # the first one may be built
            self.times.append((begun, took))
        self._called.add(known)
        self.compare(found, expected.result, name, args, kwargs)

    def _function_for(
        self, name: str, derived: Derived, statics: tuple[str, ...], *, x64: bool
    ) -> Any:
        options: dict[str, Any] = {"static_argnames": statics} if statics else {}
        if not x64:
            return self.function(name, derived, **options)
        return self.function(name, derived, config={"jax_enable_x64": True}, **options)

    def compare(self, found: Any, expected: Any, *what: Any) -> None:
        """Raises unless both are the same to the last bit.

        Raises:
            WrongAnswer: says all that is needed to see it again.
        """
        self.calls += 1
        if not same(found, expected):
            raise WrongAnswer(
                f"{what}\nof version {self.version}:\n{as_numpy(found)!r}\n"
                f"but jax says\n{expected!r}"
            )


def same(found: Any, expected: Any) -> bool:
    """Whether two trees have the same structure, dtypes, shapes and bytes."""
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(same(found[k], expected[k]) for k in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    one, other = np.asarray(found), np.asarray(expected)
    kinds = (one.dtype, one.shape) == (other.dtype, other.shape)
    return kinds and one.tobytes() == other.tobytes()
