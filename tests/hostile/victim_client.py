"""A victim: a real client of the hostile server, which uses what it gets as people do.

python -m tests.hostile.victim_client ADDRESS LIBRARIES REVERTS

Reads what to do from its input, a line each, and answers on its output: the inventory first, then
each find as a line of JSON, and `done` after each line. Its working directory has the canaries.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import json
import logging
import os
import pkgutil
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any, Final, TextIO

import numpy as np

from tests.hostile import functions as own
from tests.hostile.audit import Oracle
from tests.hostile.reverts import revert

_MAX_BYTES: Final = 24 << 30  # of address space: jax alone asks for many
_MAX_VALUES: Final = 40
_COLLECT_EVERY: Final = 32

_OF_IMPORTS: Final = (
    *("import", "open", "exec", "compile", "marshal.loads", "os.listdir", "object.__setattr__"),
    *("code.__new__", "function.__new__", "ctypes.dlopen", "ctypes.dlsym", "sys.monitoring"),
)
"""What importing a library does, and making its classes."""

_NAMED: Final = frozenset({"__name__", "__qualname__", "__module__"})

Rule = Callable[[tuple[Any, ...], FrameType], bool]


def allowed_to_clients(server: str) -> Mapping[str, Rule]:
    """What an honest exchange does in a client, by event.

    Args:
        server: the path of the server's socket.
    """
    sources = {_file(module) for module in list(sys.modules.values())}

    def of_a_source(args: tuple[Any, ...], frame: FrameType) -> bool:
        """A traceback or a warning shows the lines of this process's own sources."""
        return args[0] in sources and args[1] in ("r", "rb")

    rules: dict[str, tuple[Rule, ...]] = {
        "socket.__new__": (
            lambda args, frame: _stands(frame.f_back, "jaxd/connection/connect.py"),
        ),
        "socket.connect": (lambda args, frame: args[1] == server,),
        "socket.sendmsg": (lambda args, frame: _stands(frame, "jaxd_protocol/wire/stream.py"),),
        "exec": (_of_a_frame, _of_a_named_tuple),
        "code.__new__": (_of_a_frame,),
        "compile": (_of_a_named_tuple, _of_a_shown_line),
        "open": (of_a_source, _of_a_shown_line, _of_library_code),
        "marshal.loads": (_of_library_code,),
        "function.__new__": (_is_callback_target,),
        "object.__setattr__": (_is_callback_target, _of_a_named_tuple, _of_an_annotation),
        "object.__delattr__": (_is_callback_target,),
    }
    for event in _OF_IMPORTS:
        rules[event] = (*rules.get(event, ()), _of_own_code)
    return {event: partial(_any_of, each) for event, each in rules.items()}


def _stands(frame: FrameType | None, *ends: str) -> bool:
    return frame is not None and frame.f_code.co_filename.endswith(ends)


def _of_a_frame(args: tuple[Any, ...], frame: FrameType) -> bool:
    """The code that stands for a frame of a traceback: one constant line that raises."""
    return (
        _stands(frame, "jaxd_protocol/messages/tracebacks.py")
        and frame.f_code.co_name == "_make_frame"
    )


def _of_a_named_tuple(args: tuple[Any, ...], frame: FrameType) -> bool:
    """Python's `namedtuple` writes its `__new__` as source: of names that it has checked."""
    return _stands(frame, "collections/__init__.py") and _stands(
        frame.f_back, "jaxd/results/reader.py"
    )


def _of_a_shown_line(args: tuple[Any, ...], frame: FrameType) -> bool:
    """A traceback parses the line that it marks, and compiles nothing."""
    return _stands(frame, "/ast.py") and _stands(frame.f_back, "/traceback.py")


def _of_an_annotation(args: tuple[Any, ...], frame: FrameType) -> bool:
    """A type that jaxtyping makes for a subscript gets its name: the victim calls what it gets."""
    return _stands(frame, "jaxtyping/_pytree_type.py") and str(args[1]) in _NAMED


def _of_library_code(args: tuple[Any, ...], frame: FrameType) -> bool:
    """A function of a library's is packed, or given, by its place in the code of its module."""
    at: FrameType | None = frame
    for _ in range(4):
        if _stands(at, "pickling/code_objects.py", "fingerprint/code/library_callbacks.py"):
            return True
        at = at.f_back if at is not None else None
    return False


def _is_callback_target(args: tuple[Any, ...], frame: FrameType) -> bool:
    """A function is called back that another one makes: of code of the client's own."""
    is_maker = frame.f_code.co_name == "function"  # and not what runs the callback
    return is_maker and _stands(frame, "jaxd/events/jax_callbacks.py")


def _of_own_code(args: tuple[Any, ...], frame: FrameType) -> bool:
    """The victim calls what it gets; a function of its own does what it was written for.

    Not one that the server has called back: that is the server's choice.
    """
    files: list[str] = []
    at: FrameType | None = frame
    while at is not None:
        files.append(at.f_code.co_filename)
        at = at.f_back
    is_own = own.__file__ in files
    return is_own and not any(name.endswith("jaxd/events/jax_callbacks.py") for name in files)


def _any_of(rules: tuple[Rule, ...], args: tuple[Any, ...], frame: FrameType) -> bool:
    return any(rule(args, frame) for rule in rules)


def _file(module: Any) -> str | None:
    found = getattr(module, "__file__", None)
    return found if type(found) is str and found.endswith(".py") else None


class Victim:
    """Does what it is told, and uses what comes of it."""

    def __init__(self, address: str, *, libraries: bool) -> None:
        from jaxd import connect

        self.client = connect(address)
        self.functions = own.functions(libraries=libraries)
        self.persistent = {
            name: self.client.persistent_call(each.function)
            for name, each in self.functions.items()
        }
        self.remote: Any = None
        self._count = 0

    def act(self, what: str, name: str) -> None:
        """One thing that a user does."""
        self._count += 1
        try:
            use(_ACTS[what](self, name))
        except BaseException as error:  # noqa: BLE001  a user looks at it
            for look in (traceback.format_exception, repr, str):
                with suppress(Exception):
                    look(error)
            error.__traceback__ = None
            del error
        if self._count % _COLLECT_EVERY == 0:
            gc.collect()

    def call(self, name: str) -> Any:
        return self.persistent[name](*self.functions[name].args)

    def submit(self, name: str) -> Any:
        future: Future[Any] = self.persistent[name].submit(*self.functions[name].args)
        return future.result(60)

    def leave(self, name: str) -> Any:
        self.remote = self.persistent[name].remote(*self.functions[name].args)
        return self.remote

    def fetch(self, name: str) -> Any:
        remote, self.remote = self.remote, None
        return self.client.get(remote)

    def part(self, name: str) -> Any:
        return first_leaf(self.remote)[:1]

    def caller(self, verb: str) -> Any:
        return self.client.caller.session.ask(verb)

    def recipes(self, name: str) -> Any:
        from jaxd.dispatch.warm import recipes_since

        return recipes_since(self.client.caller, "")


def _with(method: str) -> Callable[[Victim, str], Any]:
    return lambda victim, name: str(
        getattr(victim.persistent[name], method)(*victim.functions[name].args)
    )


_ACTS: Final[dict[str, Callable[[Victim, str], Any]]] = {
    "call": Victim.call,
    "submit": Victim.submit,
    "remote": Victim.leave,
    "fetch": Victim.fetch,
    "part": Victim.part,
    "why": _with("why"),
    "warm": _with("warm"),
    "lower": _with("lower"),
    "jaxpr": _with("jaxpr"),
    "statistics": lambda victim, name: repr(victim.client.statistics()),
    "info": lambda victim, name: victim.client.info(),
    "devices": lambda victim, name: repr(victim.client.devices()),
    "put": lambda victim, name: victim.client.put(victim.functions[name].args),
    "name": lambda victim, name: victim.client.put(np.arange(3), name="n"),
    "named": lambda victim, name: victim.client.named("n"),
    "unname": lambda victim, name: victim.client.forget("n"),
    "values": lambda victim, name: victim.caller("values"),
    "functions": lambda victim, name: victim.caller("functions"),
    "recent": lambda victim, name: victim.client.caller.session.ask("recent", 3),
    "recipes": Victim.recipes,
    "forget": lambda victim, name: victim.persistent[name].clear(),
}


def first_leaf(tree: Any) -> Any:
    """Of containers, what comes first in them."""
    while isinstance(tree, dict | tuple | list):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return tree


def use(result: Any) -> None:
    """Shows, compares, iterates, maps and calls what it is expected to hold."""
    jax = sys.modules.get("jax")
    for value in _inside(result):
        for act in _USES:
            with suppress(Exception):
                act(value)
    if jax is not None:
        with suppress(Exception):
            jax.tree.map(lambda leaf: leaf, result)


def _index(value: Any) -> None:
    if isinstance(value, Mapping):
        value["not there"]


def _call(value: Any) -> None:
    is_own = getattr(value, "__module__", None) == own.__name__  # what it does is its user's wish
    if callable(value) and not isinstance(value, type) and not is_own:
        value(np.arange(3, dtype=np.float32))


_USES: Final[tuple[Callable[[Any], object], ...]] = (
    repr,
    len,
    bool,
    lambda value: value == value,  # noqa: PLR0124
    lambda value: next(iter(value)),
    lambda value: np.asarray(value).sum(),
    lambda value: f"{value}",
    hash,
    lambda value: value + 1,
    lambda value: (value.shape, value.dtype),
    _index,
    _call,
)


def _inside(result: Any) -> Iterator[Any]:
    """The result, and what is in its containers and attributes."""
    todo, count = [result], 0
    while todo and count < _MAX_VALUES:
        count += 1
        value = todo.pop()
        yield value
        if type(value) in (str, bytes, int, float, bool) or isinstance(value, np.ndarray | type):
            continue
        with suppress(Exception):
            more = value.values() if isinstance(value, Mapping) else value
            if isinstance(value, Mapping | list | tuple | set | frozenset):
                todo.extend(islice(more, _MAX_VALUES))
        with suppress(Exception):
            todo.extend(islice(vars(value).values(), _MAX_VALUES))
        del value


# Modules that are imported only where jax is.
_BESIDE_JAX = ("exporting", "jax_objects.arrays", "jax_primitive", "jax_stages")


def prepare(*, libraries: bool) -> None:
    """What honest exchanges would import one by one, at once."""
    import jaxd
    import jaxd_protocol

    if libraries:
        for name in ("jax", "jax.experimental", "optax", "flax.training.train_state", "equinox"):
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
    for package in (jaxd, jaxd_protocol):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".demo" in found.name or found.name.endswith("__main__"):
                continue
            if "jax" not in sys.modules and any(w in found.name for w in _BESIDE_JAX):
                continue
            with suppress(ImportError):
                importlib.import_module(found.name)
    for name in (
        "ml_dtypes",
        "unicodedata",
        "tokenize",
        "linecache",
        "logging",
        "asyncio",
        "concurrent.futures",
        "unittest",
    ):
        importlib.import_module(name)


def _thread_ended(stacks: TextIO, args: threading.ExceptHookArgs) -> None:
    """Where a thread has ended by an error, for who looks why something hangs; opens no source."""
    print(f"a thread ended by {args.exc_type.__name__}", file=stacks)
    for frame, line in traceback.walk_tb(args.exc_traceback):
        print(f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}", file=stacks)
    stacks.flush()


def main(address: str, libraries: str, reverts: str) -> None:
    """Until its input ends."""
    report_to = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    stacks = open("stacks", "w")  # noqa: SIM115  until the process ends
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    sys.unraisablehook = lambda _: None
    threading.excepthook = partial(_thread_ended, stacks)
    warnings.simplefilter("always")
    prepare(libraries=libraries == "True")
    assert libraries == "True" or "jax" not in sys.modules
    revert(reverts.split(",") if reverts else [])

    from tests.hostile.inventory import inventory

    victim = Victim(address, libraries=libraries == "True")
    oracle = Oracle(report_to, allowed_to_clients(address.removeprefix("unix://")))
    oracle.install()

    def say(**what: Any) -> None:
        os.write(report_to, json.dumps(what).encode() + b"\n")

    told = json.dumps(inventory(victim.persistent)).encode()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  until the process ends
    logging.basicConfig(stream=sys.stderr, level=logging.DEBUG)
    with os.fdopen(os.dup(report_to), "wb") as out:
        out.write(told + b"\n")
    del told
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        what, _, name = line.decode().rstrip("\n").partition(" ")
        if what == "arm":
            oracle.arm()
        else:
            victim.act(what, name)
        say(done=True)
    os._exit(0)  # nothing of what a server has sent runs at the end


if __name__ == "__main__":
    main(*sys.argv[1:4])
