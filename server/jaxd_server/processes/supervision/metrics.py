"""Metrics for Prometheus, from the same view that everything else shows: `jaxd serve --metrics`.

Served by the host, so they are there while the worker hangs. Labels are bounded, and no principal,
argument or value is in them.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd_protocol.errors import CannotListen, ConfigurationError
from jaxd_protocol.messages.server_view import LATENCY_BOUNDS_S
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.tokens import read_token_file
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.server_view import ServerViews, WorkerRows
from jaxd_server.runtime.logs import log_event

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

MAX_FUNCTIONS: Final = 50
"""So many functions have a label of their own, those that were used most first; then `other`."""

_OTHER: Final = "other"
_MAX_KEPT: Final = 1000
"""Names of functions of ended workers that are kept apart."""

_MAX_CONNECTIONS: Final = 16
_MAX_HEAD_BYTES: Final = 8192
_PATIENCE_S: Final = 10.0


class _Words(NamedTuple):
    """A metric.

    Attributes:
        name: by the conventions of Prometheus, without ``_total``.
        help: what it counts.
    """

    name: str
    help: str


_COUNTERS: Final[Mapping[str, _Words]] = {
    "calls": _Words("jaxd_calls", "Calls that were answered, the failed ones included."),
    "failed_calls": _Words("jaxd_failed_calls", "Calls that ended in an exception."),
    "cancelled_calls": _Words("jaxd_cancelled_calls", "Calls that their clients gave up."),
    "late_calls": _Words("jaxd_late_calls", "Calls whose time was over."),
    "fallback_calls": _Words("jaxd_fallback_calls", "Calls that ran in their clients' processes."),
    "executable_hits": _Words("jaxd_executable_hits", "Calls that a ready program answered."),
    "executable_loads": _Words("jaxd_executable_loads", "Programs that were loaded from disk."),
    "traces": _Words("jaxd_traces", "Functions that were traced."),
    "compiles": _Words("jaxd_compiles", "Programs that XLA compiled."),
    "trace_s": _Words("jaxd_trace_seconds", "Seconds of tracing and lowering."),
    "compile_s": _Words("jaxd_compile_seconds", "Seconds of compiling."),
    "load_s": _Words("jaxd_load_seconds", "Seconds of loading programs from disk."),
    "run_s": _Words("jaxd_run_seconds", "Seconds that calls ran."),
    "waited_s": _Words("jaxd_waited_seconds", "Seconds that calls waited for their turn."),
    "saved_s": _Words("jaxd_saved_seconds", "Seconds of building that clients were spared."),
    "bytes_received": _Words("jaxd_received_bytes", "Bytes received from clients."),
    "bytes_sent": _Words("jaxd_sent_bytes", "Bytes sent to clients."),
}
_GAUGES: Final[Mapping[str, _Words]] = {
    "functions": _Words("jaxd_functions", "Functions that are known."),
    "executables": _Words("jaxd_executables", "Executables in memory."),
    "programs": _Words("jaxd_programs", "Compiled programs in memory."),
    "connections": _Words("jaxd_connections", "Open connections."),
    "sessions": _Words("jaxd_sessions", "Client processes."),
    "values": _Words("jaxd_values", "Arrays that stay for clients."),
    "value_bytes": _Words("jaxd_value_bytes", "Bytes of these."),
    "running_calls": _Words("jaxd_running_calls", "Calls in flight."),
    "held_calls": _Words("jaxd_held_calls", "Calls that wait for a thread, or run in one."),
    "queued_calls": _Words("jaxd_queued_calls", "Calls that wait for a thread."),
    "queued_builds": _Words("jaxd_queued_builds", "Builds that wait for their turn."),
    "disk_bytes": _Words("jaxd_disk_bytes", "Room that is taken in the cache folder."),
    "disk_files": _Words("jaxd_disk_files", "Records that are kept there."),
}
_OF_FUNCTIONS: Final[Mapping[str, _Words]] = {
    "hits": _Words("jaxd_function_hits", "Calls that a ready program answered, by function."),
    "compiled": _Words("jaxd_function_compiles", "Programs that were made, by function."),
    "saved_s": _Words("jaxd_function_saved_seconds", "Seconds that were spared, by function."),
    "built_s": _Words("jaxd_function_build_seconds", "Seconds of building, by function."),
    "run_s": _Words("jaxd_function_run_seconds", "Seconds that hits took, by function."),
}
_OF_DEVICES: Final[Mapping[str, _Words]] = {
    "in_use": _Words("jaxd_device_memory_in_use_bytes", "Bytes of the device that are in use."),
    "peak": _Words("jaxd_device_memory_peak_bytes", "The most that were in use."),
    "limit": _Words("jaxd_device_memory_limit_bytes", "The most that may be."),
}
STATES: Final = ("starting", "ready", "busy", "stuck", "resting", "draining", "broken")


class _Ended:
    """What workers have counted that are no more, as it was seen last.

    A sum that falls in part looks like one that has begun anew: `rate` would count all of it again.

    Attributes:
        counts: sums, by the name of the counter.
        functions: rows of a view, by the name of the function.
        restarts: the most of each principal.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.functions: dict[str, dict[str, Any]] = {}
        self.restarts: dict[str, int] = {}

    def keep(self, rows: WorkerRows) -> None:
        """Adds the rows of a worker that has ended."""
        self.counts.update({name: rows.counters.get(name, 0) for name in _COUNTERS})
        for table, name in rows.places:
            if table == "functions" and (row := rows.journal.get(table, name)) is not None:
                self._add(row)

    def _add(self, row: Mapping[str, Any]) -> None:
        is_known = row["name"] in self.functions or len(self.functions) < _MAX_KEPT
        name = row["name"] if is_known else ""
        empty: dict[str, Any] = {"name": name, "latency": [], **dict.fromkeys(_OF_FUNCTIONS, 0)}
        kept = self.functions.setdefault(name, empty)
        for field in _OF_FUNCTIONS:
            kept[field] += row[field]
        pairs = zip_longest(kept["latency"], row["latency"], fillvalue=0)
        kept["latency"] = [one + other for one, other in pairs]

    def count_restarts(self, workers: Iterable[Mapping[str, Any]]) -> int:
        """Of those that there are, and of those that there were."""
        for row in workers:
            known = self.restarts.get(row["principal"], 0)
            self.restarts[row["principal"]] = max(known, row["restarts"])
        return sum(self.restarts.values())


class ViewMetrics:
    """The metrics of a view, as `prometheus_client` collects them; not thread-safe.

    Args:
        views: what there is to see of the server.
    """

    def __init__(self, views: ServerViews) -> None:
        self._views = views
        self._named: set[str] = set()  # once one has a label, it keeps it: counts never fall
        self._ended = _Ended()
        views.when_ended.append(self._ended.keep)

    def collect(self) -> Iterator[Metric]:
        """The metrics of the rows that there are."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        tables = self._views.journal
        server = tables.get("server", "") or {}
        info = InfoMetricFamily("jaxd_server", "The server.")
        info.add_metric([], {name: str(server.get(name, "")) for name in ("version", "platform")})
        yield info
        since = float(server.get("since", 0.0))
        yield GaugeMetricFamily("jaxd_start_time_seconds", "When the server was started.", since)
        counts = {name: tables.get("counters", name) for name in tables.names("counters")}
        yield from _counts(counts, self._ended.counts)
        yield from self._workers()
        yield from self._functions()
        for field, words in _OF_DEVICES.items():
            gauge = GaugeMetricFamily(*words, labels=["device"])
            for name in tables.names("devices"):
                gauge.add_metric([name], tables.get("devices", name)[field])
            yield gauge

    def _workers(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        rows = [
            self._views.journal.get("workers", name)
            for name in self._views.journal.names("workers")
        ]
        states = Counter(row["state"] for row in rows)
        gauge = GaugeMetricFamily("jaxd_workers", "Workers, by state.", labels=["state"])
        for state in STATES:
            gauge.add_metric([state], states[state])
        yield gauge
        restarts = self._ended.count_restarts(rows)
        yield CounterMetricFamily("jaxd_worker_restarts", "Workers that were replaced.", restarts)
        resident = sum(row["resident_bytes"] for row in rows)
        yield GaugeMetricFamily("jaxd_worker_resident_bytes", "Memory of all workers.", resident)

    def _functions(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        tables = self._views.journal
        rows = [tables.get("functions", name) for name in tables.names("functions")]
        rows += self._ended.functions.values()
        self._name_more(rows)
        sums: dict[str, Counter[str]] = {field: Counter() for field in _OF_FUNCTIONS}
        latency = [0] * (len(LATENCY_BOUNDS_S) + 1)
        for row in rows:
            label = row["name"] if row["name"] in self._named else _OTHER
            for field, counted in sums.items():
                counted[label] += row[field]
            for place, count in enumerate(row["latency"][: len(latency)]):
                latency[place] += count
        for field, words in _OF_FUNCTIONS.items():
            counter = CounterMetricFamily(*words, labels=["function"])
            for label, total in sorted(sums[field].items()):
                counter.add_metric([label], total)
            yield counter
        seconds = sum(row["run_s"] for row in rows)
        histogram = HistogramMetricFamily(
            "jaxd_call_duration_seconds", "Seconds in the server of calls that hit a program."
        )
        histogram.add_metric([], _buckets(latency), seconds)
        yield histogram

    def _name_more(self, rows: list[dict[str, Any]]) -> None:
        """Gives labels to the functions that were used most, as long as there are any left."""
        if len(self._named) >= MAX_FUNCTIONS:
            return
        hits: Counter[str] = Counter()
        for row in rows:
            hits[row["name"]] += 1 + row["hits"]
        new = [name for name, _ in hits.most_common() if name not in self._named]
        self._named.update(new[: MAX_FUNCTIONS - len(self._named)])


def _counts(counts: Mapping[str, float], ended: Mapping[str, float]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, words in _COUNTERS.items():
        yield CounterMetricFamily(*words, counts.get(name, 0) + ended.get(name, 0))
    for name, words in _GAUGES.items():
        yield GaugeMetricFamily(*words, counts.get(name, 0))


def _buckets(latency: list[int]) -> list[tuple[str, float]]:
    """Cumulated, as Prometheus has them."""
    total, found = 0, []
    bounds = [f"{bound:g}" for bound in LATENCY_BOUNDS_S]
    for bound, count in zip((*bounds, "+Inf"), latency, strict=True):
        total += count
        found.append((bound, float(total)))
    return found


@asynccontextmanager
async def serving_metrics(options: ServerOptions, views: ServerViews) -> AsyncIterator[None]:
    """Serves `/metrics` while the block runs, if `--metrics` was given.

    Raises:
        ConfigurationError: when prometheus-client is not installed.
        CannotListen: when the address cannot be opened.
    """
    if options.metrics is None:
        yield
        return
    try:
        import prometheus_client  # noqa: F401  needed at the first request only
    except ImportError as error:
        raise ConfigurationError(
            "--metrics needs prometheus-client. Run: pip install 'jaxd[metrics]'"
        ) from error
    address = Address.parse(f"tcp://{options.metrics}")
    token = (
        None if options.metrics_token_file is None else read_token_file(options.metrics_token_file)
    )
    endpoint = _Endpoint(views, token)
    try:
        server = await asyncio.start_server(
            endpoint.serve, address.host, address.port, limit=_MAX_HEAD_BYTES
        )
    except OSError as error:
        raise CannotListen(
            f"--metrics {options.metrics} cannot be opened: {error.strerror}. Choose another port."
        ) from error
    for sock in server.sockets:
        host, port, *_ = sock.getsockname()
        log_event("metrics_served", address=f"{host}:{port}")
    try:
        yield
    finally:
        server.close()


class _Endpoint:
    """Answers HTTP requests for metrics; one for each connection."""

    def __init__(self, views: ServerViews, token: str | None) -> None:
        self._views = views
        self._metrics = ViewMetrics(views)
        self._token = token
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request, and closes the connection."""
        self._open += 1
        try:
            if self._open <= _MAX_CONNECTIONS:
                async with asyncio.timeout(_PATIENCE_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head))
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the client went away, is too slow, or says too much
        finally:
            self._open -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> bytes:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        line, *lines = head.decode("latin-1").split("\r\n")
        method, path, *_ = (*line.split(" "), "", "")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", "Use GET.\n")
        if not self._may_read(lines):
            more = 'WWW-Authenticate: Bearer realm="jaxd"\r\n'
            return _response("401 Unauthorized", "Send the token of --metrics-token-file.\n", more)
        if path.partition("?")[0] != "/metrics":
            return _response("404 Not Found", "Metrics are at /metrics.\n")
        await self._views.refresh()
        text = generate_latest(self._metrics).decode()
        return _response("200 OK", text, kind=CONTENT_TYPE_LATEST, has_body=method == "GET")

    def _may_read(self, lines: list[str]) -> bool:
        if self._token is None:
            return True
        headers = {name.strip().lower(): value for name, _, value in map(_split, lines)}
        kind, _, given = headers.get("authorization", "").strip().partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token.encode())
        return kind.lower() == "bearer" and is_right


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _response(
    status: str,
    text: str,
    more: str = "",
    *,
    kind: str = "text/plain; charset=utf-8",
    has_body: bool = True,
) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n{more}\r\n"
    )
    return head.encode() + (body if has_body else b"")
