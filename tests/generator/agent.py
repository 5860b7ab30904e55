"""A process that projects run in: a client of the server, or plain jax, which says what is right.

python -m tests.generator.agent PATH client|client-jax|oracle

Imports what it needs once, listens on a socket, and forks a fresh process for each connection: what
a script would find that was just started. The oracle forks once more for each step, so that no
trace sees what an earlier one imported, cached or wrote.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

STATIC: Final = 4
"""The argument that is part of the program; the first of a tuple when there are more."""

Message = dict[str, Any]
Outcome = list[Any]
"""`["value", dtype, shape, bytes]` or `["raised", type, text]`."""


class Answers:
    """How this process answers the calls of one step."""

    def answer(self, calls: list[Message]) -> Message:
        """Imports what is called, in this process, then calls it."""
        for call in calls:
            importlib.import_module(call["function"])
        return self.step(calls)

    def step(self, calls: list[Message]) -> Message:
        """The outcomes by function, each a list with one for each thread."""
        return {"outcomes": {call["function"]: self._of(call) for call in calls}}

    def _of(self, call: Message) -> list[Outcome]:
        if not call.get("threads"):
            return [self.outcome(call)]
        found: dict[int, Outcome] = {}
        ready = threading.Barrier(len(call["threads"]))

        def run(number: int, code: str) -> None:
            execute(code)
            ready.wait(60)
            found[number] = self.outcome(call)

        threads = [threading.Thread(target=run, args=each) for each in enumerate(call["threads"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[number] for number in range(len(threads))]

    def outcome(self, call: Message) -> Outcome:
        """What one call gives."""
        try:
            module = importlib.import_module(call["function"])
            values = [getattr(module, name) for name in call.get("statics", ())]
            return self.call(module.entry, (STATIC, *values) if values else STATIC)
        except Exception as error:  # noqa: BLE001  it is what the call gives
            return ["raised", type(error).__name__, str(error)[:1500]]

    def call(self, entry: Callable[..., Any], static: Any) -> Outcome:
        """The value."""
        raise NotImplementedError


def value(array: Any) -> Outcome:
    """An array, to the last bit."""
    import numpy as np

    plain = np.asarray(array)
    return ["value", str(plain.dtype), list(plain.shape), plain.tobytes().hex()]


def argument() -> Any:
    """What each function is called with."""
    import numpy as np

    return np.arange(3, dtype="int32")


class ClientAnswers(Answers):
    """Calls through the server, by one persistent function for each function."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}
        self._warnings: list[tuple[str, str]] = []
        warnings.simplefilter("always")
        warnings.showwarning = self._heard  # type: ignore[assignment]

    def _heard(self, message: Any, category: Any, *rest: Any) -> None:
        self._warnings.append((category.__name__, str(message)))

    def step(self, calls: list[Message]) -> Message:
        """The outcomes, and the warnings beside them."""
        self._warnings.clear()
        return super().step(calls) | {"warnings": list(self._warnings)}

    def call(self, entry: Callable[..., Any], static: Any) -> Outcome:
        """The server's answer."""
        import jaxd

        known = self._made.get(id(entry))
        if known is None:
            known = self._made[id(entry)] = (entry, jaxd.persistent_call(entry, static_argnums=0))
        return value(known[1](static, argument()))


class OracleAnswers(Answers):
    """What a fresh `jax.jit` says in a fork of this process, of which nothing is left."""

    def __init__(self, known: dict[str, Outcome]) -> None:
        self._known = known  # by program, so that each is compiled once
        self._learned: list[tuple[str, Outcome]] = []
        self._tracing = threading.Lock()  # held from the clearing of jax's caches to the trace

    def step(self, calls: list[Message]) -> Message:
        """The outcomes, and the programs that were compiled for them."""
        reader, writer = os.pipe()
        if not (child := os.fork()):
            try:
                os.close(reader)
                answer = super().step(calls) | {"learned": self._learned}
                with os.fdopen(writer, "w") as file:
                    json.dump(answer, file)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            text = file.read()
        os.waitpid(child, 0)
        answer = json.loads(text)
        self._known.update(answer["learned"])
        return answer  # type: ignore[no-any-return]

    def call(self, entry: Callable[..., Any], static: Any) -> Outcome:
        """Traced here; a program that was seen before need not be compiled again."""
        import jax

        with self._tracing:  # else jax would give one thread what it traced for another
            jax.clear_caches()
            traced = jax.jit(entry, static_argnums=0).trace(static, argument())
        program = str(traced.jaxpr)
        known = None if traced.jaxpr.consts else self._known.get(program)
        if known is None:
            known = value(traced.lower().compile()(argument()))
            if not traced.jaxpr.consts:
                self._learned.append((program, known))
        return known


def execute(code: str) -> None:
    """Runs an edit, which may use what it needs by name."""
    names = {"again": again, "module": importlib.import_module, "os": os, "sys": sys}
    exec(code, {**names, "__name__": "__main__"})


def again(name: str) -> None:
    """Reloads a module, where it is imported."""
    if name in sys.modules:
        importlib.reload(sys.modules[name])


def begin(start: Mapping[str, Any]) -> None:
    """The environment, arguments and folder of a new process."""
    for name, text in start["environment"].items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text
    sys.argv[:] = start["argv"]
    os.chdir(start["folder"])
    sys.path.insert(0, start["path"])
    importlib.invalidate_caches()


def session(connection: socket.socket, answers: Answers) -> None:
    """Serves one connection to its end."""
    with connection.makefile("rw") as file:
        file.write("ready\n")
        file.flush()
        for line in file:
            message = json.loads(line)
            try:
                if "start" in message:
                    begin(message["start"])
                for code in message.get("edits", ()):
                    execute(code)
                answer = answers.answer(message.get("calls", []))
            except Exception:  # noqa: BLE001  the program is at fault, and this says how
                answer = {"broken": traceback.format_exc()}
            file.write(json.dumps(answer) + "\n")
            file.flush()


def warm_up(kind: str) -> None:
    """Imports what a first call would, of jaxd or of jax."""
    if kind != "oracle":
        from tests.generator.mechanisms import switch_off

        for name in filter(None, os.environ.get("JAXD_GENERATOR_WITHOUT", "").split(",")):
            switch_off(name, "client")
    names = [] if kind == "client" else ["jax", "jax.numpy", "jax._src.interpreters.mlir"]
    if kind != "oracle":
        names += ["jaxd", "numpy", *json.loads(os.environ.get("JAXD_GENERATOR_IMPORTS", "[]"))]
    for name in names:
        importlib.import_module(name)


def main() -> None:
    """Forks until it is ended."""
    path, kind = sys.argv[1:]
    sys.dont_write_bytecode = True
    warm_up(kind)
    known: dict[str, Outcome] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            with connection:
                first = connection.makefile("r").readline() if kind == "oracle" else ""
                known.update(json.loads(first) if first else [])
                if os.fork():
                    continue
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    made = OracleAnswers(known) if kind == "oracle" else ClientAnswers()
                    session(connection, made)
                finally:
                    os._exit(0)


if __name__ == "__main__":
    main()
