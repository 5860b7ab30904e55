"""Large arguments with a small result, and a large result, by every way there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant
from benchmarks.processes import Driver, NotMeasurable
from benchmarks.rows import peers

Kind = Literal["tcp", "unix"]
Route = Literal["socket", "shared", "any"]

_KB: Final = 2**10
_MB: Final = 2**20
_WITH_TARGETS: Final = 64 * _MB
_JAXD: Final = ("jaxd", "jax")
_SLOW: Final = 16 * _MB
"""From this size on, rpyc's own frames take seconds, and soon minutes."""


def _size(run: BenchmarkRun, nbytes: int) -> int:
    return min(nbytes, run.sizes.most_bytes)


def _sampler(run: BenchmarkRun, driver: Driver, what: str, nbytes: int) -> Sampler:
    return lambda: driver.seconds(what, run.sizes.large_calls(nbytes))


def with_jaxd(
    kind: Kind, route: Route, what: str, nbytes: int
) -> Callable[[BenchmarkRun], Sampler]:
    """Starts a client of jaxd whose data takes that way, and measures `what`."""

    def start(run: BenchmarkRun) -> Sampler:
        server, size = run.own_server(), _size(run, nbytes)
        driver = run.driver(
            "benchmarks.drivers.transfer",
            server.tcp if kind == "tcp" else server.unix,
            str(size),
            route,
            JAXD_TOKEN_FILE=server.token_file,
        )
        return _sampler(run, driver, what, size)

    return start


def _raw(kind: Kind, nbytes: int) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        size = _size(run, nbytes)
        where = "127.0.0.1" if kind == "tcp" else run.socket_path("raw")
        greeting = run.service("benchmarks.raw_server", kind, where, str(size))
        target = str(greeting["port"]) if kind == "tcp" else where
        driver = run.driver("benchmarks.drivers.raw_socket", kind, target, str(size))
        return _sampler(run, driver, "large", size)

    return start


def memory_copy(nbytes: int) -> Callable[[BenchmarkRun], Sampler]:
    """Starts a process that copies as much in its memory."""

    def start(run: BenchmarkRun) -> Sampler:
        size = _size(run, nbytes)
        driver = run.driver("benchmarks.drivers.memory_copy", str(size))
        return _sampler(run, driver, "copy", size)

    return start


def _naive(nbytes: int) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        size = _size(run, nbytes)
        if size > _WITH_TARGETS:
            raise NotMeasurable("takes minutes for one call")
        driver = peers.naive(run, size)
        return lambda: driver.seconds("large", 1 if size >= _SLOW else 11)

    return start


def _peer(
    start: Callable[[BenchmarkRun, int], Driver], nbytes: int
) -> Callable[[BenchmarkRun], Sampler]:
    return lambda run: _sampler(run, start(run, _size(run, nbytes)), "large", nbytes)


def _ways(what: str, nbytes: int) -> Iterator[Variant]:
    """Of what jaxd moves, and of what only moves it."""
    yield Variant("TCP", with_jaxd("tcp", "socket", what, nbytes), _JAXD)
    yield Variant("Unix socket", with_jaxd("unix", "socket", what, nbytes), _JAXD)
    yield Variant("shared memory", with_jaxd("unix", "shared", what, nbytes), _JAXD)
    yield Variant("raw TCP socket", _raw("tcp", nbytes))
    yield Variant("raw Unix socket", _raw("unix", nbytes))
    yield Variant("memory copy", memory_copy(nbytes))


def _arguments(nbytes: int) -> Iterator[Variant]:
    yield from _ways("argument", nbytes)
    yield Variant("TCP, sent before", with_jaxd("tcp", "any", "again", nbytes), _JAXD)
    yield Variant("there already", with_jaxd("unix", "shared", "ready", nbytes), _JAXD)
    yield Variant("handle", with_jaxd("unix", "any", "handle", nbytes), _JAXD)
    yield Variant("small call", with_jaxd("unix", "any", "small", nbytes), _JAXD)
    yield Variant("naive server", _naive(nbytes), ("jax",))
    yield peers.ray_variant(_peer(peers.ray, nbytes))
    yield peers.dask_variant(_peer(peers.dask, nbytes))


_RATIOS: Final = (
    ("TCP / raw socket into a fresh buffer", "TCP", "raw TCP socket", 1.2),
    ("Unix socket / raw socket into a fresh buffer", "Unix socket", "raw Unix socket", 1.2),
    ("shared memory / one memory copy", "shared memory", "memory copy", 1.3),
)

_VIEW: Final = ("view of shared memory / one memory copy", "view", "memory copy", 1.3)

_TO_SMALL: Final = (
    ("there already, in shared memory / a small call", "there already", "small call", 2.0),
    ("there already, on the server / a small call", "handle", "small call", 2.0),
)

_TO_PEERS: Final = tuple(
    Comparison(f"{peer} / jaxd, shared memory", (peer,), ("shared memory",), target=None)
    for peer in ("naive server", "Ray actor", "Dask submit")
)


def _comparisons(nbytes: int, *ratios: tuple[str, str, str, float]) -> Iterator[Comparison]:
    """The ratios, of which only those for one size have targets."""
    for text, over, under, most in ratios:
        target = Target("at most", most) if nbytes == _WITH_TARGETS else None
        yield Comparison(text, (over,), (under,), target)


def _transfer(name: str, nbytes: int) -> Row:
    return Row(
        name=f"transfer-{name.replace(' ', '')}",
        title=f"{name} argument, small result",
        variants=tuple(_arguments(nbytes)),
        comparisons=(*_comparisons(nbytes, *_RATIOS, *_TO_SMALL), *_TO_PEERS),
    )


TRANSFERS: Final = tuple(
    _transfer(name, nbytes)
    for name, nbytes in (
        ("64 kB", 64 * _KB),
        ("1 MB", _MB),
        ("16 MB", 16 * _MB),
        ("64 MB", 64 * _MB),
        ("256 MB", 256 * _MB),
    )
)

FETCH: Final = Row(
    name="fetch-64MB",
    title="64 MB result, fetched",
    variants=(
        *_ways("fetch", _WITH_TARGETS),
        Variant("view", with_jaxd("unix", "shared", "view", _WITH_TARGETS), _JAXD),
    ),
    comparisons=(
        *_comparisons(_WITH_TARGETS, *_RATIOS[:2]),
        *_comparisons(0, _RATIOS[2], _VIEW),  # of the two copies that a result takes, no target
    ),
)
