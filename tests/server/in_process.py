"""The server's inside without its outside: a pipeline, and a whole worker, in this process."""

from __future__ import annotations

import functools
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import rpyc

from jaxd import Client, connect
from jaxd.request.arguments import encode_arguments
from jaxd.results.reader import ResultReader, ResultsAs
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from jaxd_protocol.jit.options import Options, function_key
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs, infer_static_args
from jaxd_protocol.messages.calls import FAILED, MAY_REPEAT
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.messages.function_manifest import FunctionManifest, parameter_names
from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_protocol.messages.recorded_reads import ProcessRead, RecordedRead, recorded
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import UNIX, handshake_with_server
from jaxd_protocol.pickling.pack.functions import Packed, pack_function
from jaxd_protocol.pytree import Layout
from jaxd_protocol.wire import BulkChannel, BulkStream, Frame, tune_socket
from jaxd_server.cache.store import open_store
from jaxd_server.codec.arguments import Arguments
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.eviction import Limits
from jaxd_server.compilation.executable_source import ExecutableSource
from jaxd_server.compilation.executables import Executables
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.compilation.functions.receive import UnpackedFunction
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.admission import Admission
from jaxd_server.execution.call import Call, Reply
from jaxd_server.execution.memory_room import OutOfMemoryHandler
from jaxd_server.execution.pipeline import Pipeline
from jaxd_server.jax_compat import programs
from jaxd_server.processes.worker.wiring import WorkerComponents
from jaxd_server.rpc.endpoint import Endpoint
from jaxd_server.runtime import imported_packages
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import OutputOnce
from jaxd_server.runtime.import_graph import ImportGraph
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.memory_reclaimer import Reclaimer
from tests.server.staging import until
from tests.shared.wire.by_hand import DispatchingConnection

PLAIN = Options()


def encode(
    args: Sequence[Any], kwargs: dict[str, Any] | None = None, statics: StaticArgs = NO_STATIC_ARGS
) -> tuple[bytes, bytes, list[memoryview]]:
    """Skeleton, blob and buffers, as the client sends them."""
    encoded = encode_arguments(tuple(args), kwargs or {}, statics, {})
    return encoded.skeleton, encoded.blob, encoded.buffers


class Source:
    """A function and its options, as a client knows them; counts how often it is asked."""

    def __init__(self, function: Callable[..., Any], options: Options = PLAIN) -> None:
        self.function = function
        self.options = options
        self.name = getattr(function, "__name__", "it")
        walked = walk(function, self.name)
        self.manifest = FunctionManifest.of(walked.fingerprint)
        self.code_: Packed = pack_function(function, "the function", walked.reach)
        self.fingerprint = self.manifest.fingerprint
        self.key = function_key(self.fingerprint, options)
        self.asked: list[str] = []
        self.process: dict[ProcessRead, Any] = {}
        self.owner = os.urandom(16)

    def describe(self, key: bytes) -> Described:
        """What the key stands for."""
        self.asked.append("describe")
        return Described(self.fingerprint, self.name, self.options, self.manifest)

    def code(self, fingerprint: bytes) -> bytes | memoryview:
        """The packed function."""
        self.asked.append("code")
        return self.code_

    def read(self, fingerprint: bytes, read: ProcessRead) -> Any:
        """What its process has of `process`."""
        self.asked.append("read")
        if read not in self.process:
            raise PackingError(f"it does not name {read}")
        return self.process[read]

    def confirm(
        self, fingerprint: bytes, reads: tuple[ProcessRead, ...]
    ) -> tuple[RecordedRead, ...]:
        """The digests of the same."""
        self.asked.append("confirm")
        return recorded(fingerprint, {read: self.process[read] for read in reads})

    def waiting(self) -> AbstractContextManager[None]:
        """Waiting needs no preparation here."""
        return nullcontext()

    def call(self, args: Sequence[Any], kwargs: dict[str, Any] | None = None, **more: Any) -> Call:
        """A call of it, encoded as the client does."""
        statics = infer_static_args(self.function, self.options)
        return Call(self.key, *encode(args, kwargs, statics), self, **more)


def request_of(
    function: Function, call: Call, arguments: Arguments, layout: Layout
) -> BuildRequest:
    """What has to be built for a call."""
    return BuildRequest(
        function,
        arguments,
        RecordedCall(b""),
        call.skeleton,
        call.placement(layout),
        call.blob,
        call.buffers,
        call.source,
        OutputOnce(call.emit),
        warm_only=call.warm_only,
    )


def function_of(function: Callable[..., Any], options: Options = PLAIN) -> Function:
    """The function as the server knows it, without having travelled."""
    source = Source(lambda: None, options)
    name = getattr(function, "__name__", "it")
    described = Described(source.fingerprint, name, options, source.manifest)
    statics = infer_static_args(function, options)
    return Function(
        source.key,
        described,
        statics,
        parameter_names(function),
        unpacked=UnpackedFunction(function),
    )


class Machine(NamedTuple):
    """Stands for what records on disk are good for."""

    digest: str = "0123456789abcdef"
    facts: Mapping[str, str] = {}


def program_cache_in(folder: str) -> ProgramCache:
    """What is kept in a folder of this user's, which has to be like those that a server trusts."""
    store = open_store(*Machine(), folder)
    assert store is not None, "the folder was refused"
    with reading_imports_once():
        return ProgramCache(store, ImportedPackages())


prepare_once = functools.cache(programs.prepare)
"""As a worker does at its start."""

_one_import_graph = functools.cache(ImportGraph)


def reading_imports_once() -> AbstractContextManager[Any]:
    """What is opened within it reads each module once with all others that this process opens."""
    return mock.patch.object(imported_packages, "ImportGraph", _one_import_graph)


class PipelineHarness:
    """A pipeline and all that it needs; `close` it."""

    def __init__(self, *, builds: int = 2, limit: int = 400, folder: str | None = None) -> None:
        prepare_once()
        self.counters = Counters()
        self.admission = Admission()
        self.compiler = Compiler(self.counters, builds)
        reclaimer = Reclaimer()
        self.executables = Executables(reclaimer, Limits(limit))
        self.program_cache = None if folder is None else program_cache_in(folder)
        functions = Functions(program_cache=self.program_cache)
        with reading_imports_once():
            self.maker = ExecutableSource(
                functions, self.compiler, self.counters, self.program_cache
            )
        self.pipeline = Pipeline(
            functions,
            self.executables,
            self.maker,
            self.admission,
            self.counters,
            OutOfMemoryHandler(reclaimer, lambda: "Nothing else is here."),
            self.program_cache,
        )

    def close(self) -> None:
        """Stops listening to jax, and has everything written that is to be kept."""
        self.compiler.close()
        if self.program_cache is not None:
            self.program_cache.close()

    def answer(self, call: Call) -> Reply:
        """As a connection does it: with the plan, where a result is all that is wanted."""
        has_more = call.strict or call.warm_only or call.lost
        plan = None if has_more else self.executables.plan(call.key, call.skeleton)
        return self.pipeline.answer(call, plan)

    def value(self, source: Source, *args: Any, results: ResultsAs = "numpy") -> Any:
        """The result of a call, or its exception."""
        return read_reply(self.answer(source.call(args)), source, results)

    def counts(self) -> tuple[int, int]:
        """Traces and compiles so far."""
        snapshot = self.counters.snapshot()
        return int(snapshot["traces"]), int(snapshot["compiles"])


def read_reply(reply: Reply, source: Source, results: ResultsAs = "numpy") -> Any:
    """What the client makes of a reply."""
    outcome, buffers = reply
    if outcome[0] == FAILED:
        raise decode_failure(outcome[1])
    return ResultReader(source.code_.classes).read(outcome[1], outcome[2], buffers, results)


class Peer(DispatchingConnection):
    """A client as plain as can be: it reads only while it waits for a reply of its own."""

    def __init__(self, in_process_server: InProcessServer, source: Source | None = None) -> None:
        sock = in_process_server.raw()
        self.welcome = handshake_with_server(sock, UNIX, {}, None, None)
        tune_socket(sock)
        super().__init__(rpyc.VoidService(), BulkChannel(BulkStream(sock)), {})
        self.events: list[tuple[Any, ...]] = []
        self._source = source
        self._replies: dict[int, tuple[Any, Sequence[memoryview]]] = {}

    def request(self, verb: str, args: Sequence[Any], buffers: Sequence[memoryview] = ()) -> Reply:
        """The reply; EOFError when the server ended the connection instead."""
        seq = next(self.numbers)
        self.send_request(seq, verb, tuple(args), buffers)
        while seq not in self._replies:
            self.dispatch(self._channel.recv())
        return self._replies.pop(seq)

    def call(self, *args: Any) -> Reply:
        """Calls the source's function."""
        assert self._source is not None
        call = self._source.call(args)
        message = (call.key, call.skeleton, call.blob, None, MAY_REPEAT, b"", b"", b"")
        return self.request("call", message, call.buffers)

    def on_reply(self, seq: int, value: Any, failed: bool, frame: Frame) -> None:
        """Keeps it for `request`."""
        self._replies[seq] = value, frame.buffers

    def on_request(self, seq: int, verb: str, args: tuple[Any, ...], frame: Frame) -> None:
        """The server reports an event, or asks for the function."""
        if verb == "event":
            self.events.append(args)
        elif verb == "describe":
            self.send_reply(seq, self.describe())
        else:
            self.send_reply(seq, (), [memoryview(self.code())])

    def describe(self) -> tuple[Any, ...]:
        """What the key stands for."""
        assert self._source is not None
        said = self._source.describe(b"")
        assert said.manifest is not None
        return said.name, said.options.to_bytes(), said.manifest.to_message()

    def code(self) -> bytes | memoryview:
        """The packed function."""
        assert self._source is not None
        return self._source.code(b"")


class InProcessServer:
    """A worker's parts behind real sockets, in this process; `close` it.

    Args:
        token: what it asks for over TCP.
        **options: of a server.

    Attributes:
        unix, tcp: its addresses.
    """

    def __init__(self, *, token: str = "", **options: Any) -> None:
        self.counters = Counters()
        self._folder = tempfile.TemporaryDirectory(prefix="jaxd-", dir="/tmp")
        if token:
            options["token_file"] = f"{self._folder.name}/token"
            with open(os.open(options["token_file"], os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(token)
        self.options = ServerOptions(
            **{"builds": 2, "threads": 4, "cache_dir": "none", "build_in": "worker", **options}
        )
        try:
            with mock.patch.object(programs, "prepare", prepare_once), reading_imports_once():
                self.parts = WorkerComponents(self.options, self.counters, self.report)
        except BaseException:
            self._folder.cleanup()
            raise
        path = os.path.join(self._folder.name, "s.sock")
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(path)
        unix.listen()
        tcp = socket.create_server(("127.0.0.1", 0))
        self.unix = f"unix://{path}"
        self.tcp = f"tcp://127.0.0.1:{tcp.getsockname()[1]}"
        self.endpoints = [self._open(unix, self.unix), self._open(tcp, self.tcp)]
        self._clients: list[Client] = []
        self._peers: list[Peer] = []

    def _open(self, sock: socket.socket, address: str) -> Endpoint:
        endpoint = self.parts.endpoint(sock, Address.parse(address), self.welcome)
        endpoint.start_in_thread()
        return endpoint

    def welcome(self) -> dict[str, Any]:
        """As a worker's."""
        return {
            "versions": self.parts.versions,
            "epoch": 1,
            "pid": os.getpid(),
            "slots": self.options.slots,
            "max_frame_bytes": self.options.max_frame_bytes,
            "accept": self.options.accept,
            "keeps_snapshots": self.parts.values.snapshots is not None,
        }

    def report(self, what: str, principal: str) -> dict[str, Any]:
        """As a worker's."""
        found = {**self.counters.snapshot(), **self.parts.status.now(), "epoch": 1, "values": 0}
        found = self.parts.status.shown(found, principal)
        return found if what == "statistics" else {"devices": self.parts.devices.names()}

    def client(self) -> Client:
        """A client over the Unix socket, closed with the in process server."""
        self._clients.append(connect(self.unix))
        return self._clients[-1]

    def peer(self, source: Source | None = None) -> Peer:
        """A plain client, closed with the in process server."""
        self._peers.append(Peer(self, source))
        return self._peers[-1]

    def raw(self) -> socket.socket:
        """A plain connection to the Unix socket."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(30)
        sock.connect(self.unix.removeprefix("unix://"))
        return sock

    def close(self) -> None:
        """Ends every thread of it."""
        for client in self._clients:
            client.close()
        for peer in self._peers:
            peer.close()
        for endpoint in self.endpoints:
            endpoint.close()
        worker_context = self.parts._worker_context
        worker_context.watchdog.stop()
        self.parts.pipeline.source._compiler.close()
        self.parts._building.builders.close()
        if self.parts.pipeline.program_cache is not None:
            self.parts.pipeline.program_cache.close()
        until(lambda: not self.parts.status.now()["connections"])
        worker_context.idle_connections.close()
        self._folder.cleanup()
