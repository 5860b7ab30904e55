"""The key of a call: what is paid each time, what is paid once, and what the plain way costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant

_DRIVER = "benchmarks.drivers.key_cost"

_FUNCTIONS = {
    "small function": ("small", ("jaxd",)),
    "ten helpers": ("helpers", ("jaxd",)),
    "flax train step": ("train", ("jaxd", "jax", "flax", "optax")),
}


def _again_and_again(function: str, what: str, calls: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = run.driver(_DRIVER, function)
        return lambda: driver.seconds(what, getattr(run.sizes, calls))

    return start


def _once_in_a_process(function: str, what: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        def sample() -> float:
            with run.fresh() as own:
                return own.driver(_DRIVER, function).seconds(what, 1)

        return sample

    return start


def _variants() -> Iterator[Variant]:
    for title, (name, needs) in _FUNCTIONS.items():
        yield Variant(title, _again_and_again(name, "unchanged", "calls"), needs)
        yield Variant(f"{title}, first walk", _once_in_a_process(name, "first"), needs)
        yield Variant(f"{title}, packing", _once_in_a_process(name, "packing"), needs)
        cloudpickle = _again_and_again(name, "cloudpickle", "slow_calls")
        yield Variant(f"{title}, cloudpickle", cloudpickle, needs)


def _budget(title: str, allowed: str, seconds: float) -> Comparison:
    return Comparison(f"{title} / {allowed}", (title,), (), Target("at most", 1), seconds)


def _plain_way(title: str) -> Comparison:
    text = f"{title}: hash of cloudpickle's bytes / jaxd"
    return Comparison(text, (f"{title}, cloudpickle",), (title,), target=None)


KEY = Row(
    name="key",
    title="Key for a call whose function has not changed, p50",
    variants=tuple(_variants()),
    comparisons=(
        _budget("small function", "20 µs", 20e-6),
        _budget("flax train step", "0.5 ms", 500e-6),
        *map(_plain_way, _FUNCTIONS),
    ),
)
