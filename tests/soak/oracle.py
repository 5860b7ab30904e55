"""What jax itself says, without jaxd: in a process of its own, for clients that have no jax."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Final, NamedTuple

from tests.soak.project import Version, load

_REMEMBERED: Final = 200
"""Programs; after that all are forgotten, because jax keeps more of each than it has to."""


class Question(NamedTuple):
    """A call of a function of the program; hashable but for its arguments.

    Attributes:
        version: of the program.
        name: of the function.
        derived: transformations, the innermost first: name and options.
        statics: names of its static arguments.
        x64: whether jax has numbers of 64 bits.
    """

    version: Version
    name: str
    derived: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    statics: tuple[str, ...] = ()
    x64: bool = False


class Answer(NamedTuple):
    """What the call returns, as a tree of numpy arrays, what it called back with, and said."""

    result: Any
    heard: tuple[Any, ...] = ()
    said: str = ""


def answer(question: Question, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Answer:
    """The right answer."""
    import jax

    if _compiled.cache_info().currsize >= _REMEMBERED:
        _compiled.cache_clear()
        _loaded.cache_clear()
        jax.clear_caches()
    function, heard = _compiled(question)
    heard.clear()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), jax.enable_x64(question.x64):
        result = jax.block_until_ready(function(*args, **kwargs))
        jax.effects_barrier()
    return Answer(as_numpy(result), tuple(as_numpy(heard)), said.getvalue())


def as_numpy(tree: Any) -> Any:
    """The tree of dicts, lists and tuples with its arrays as those of numpy."""
    import numpy as np

    if isinstance(tree, dict):
        return {name: as_numpy(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(as_numpy(value) for value in tree)
    return np.array(tree)


@functools.cache
def _compiled(question: Question) -> tuple[Any, list[Any]]:
    import jax

    module = _loaded(question.version)
    plain = getattr(module, question.name)

    @functools.wraps(plain)
    def function(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)  # jax would find what it has compiled for the plain one

    for name, options in question.derived:
        function = getattr(jax, name)(function, **dict(options))
    return jax.jit(function, static_argnames=question.statics), module.heard


_loaded = functools.cache(load)


class Asking:
    """Asks the process at that address; to be used by one thread at a time."""

    def __init__(self, address: str) -> None:
        self._connection = Client(address)

    def __call__(
        self, question: Question, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Answer:
        """The right answer."""
        self._connection.send((question, args, dict(kwargs)))
        found = self._connection.recv()
        assert isinstance(found, Answer), found
        return found


def main() -> None:
    """Answers whoever asks at the address on the command line, until it is ended."""
    one_at_a_time = threading.Lock()

    def serve(connection: Connection) -> None:
        try:
            while True:
                asked = connection.recv()
                try:
                    with one_at_a_time:
                        found: Any = answer(*asked)
                except Exception as error:  # noqa: BLE001  whoever asked shows it
                    found = repr(error)
                connection.send(found)
        except (EOFError, OSError):
            connection.close()

    with Listener(sys.argv[1]) as listener:
        print("listens", flush=True)
        while True:
            threading.Thread(target=serve, args=(listener.accept(),), daemon=True).start()
