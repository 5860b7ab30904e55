"""What it costs to choose the member for a call, without a pool: `pool_routing MEMBERS`."""

from __future__ import annotations

import random
import sys

from benchmarks.answering import Measurement, answer_requests, measure_throughput
from jaxd_protocol.network.pool_routing import choose, ranked


def choosing(members: int) -> Measurement:
    """The mean of choices with the order kept, in a pool that is half busy."""
    chance = random.Random(1)
    names = [f"member-{number}" for number in range(members)]
    loads = {name: chance.choice((0, 0, 1, 1, 2)) for name in names}
    devices = dict.fromkeys(names, 1)
    orders = [ranked(number.to_bytes(32, "big"), names, devices) for number in range(64)]
    total_load, total_devices = sum(loads.values()), sum(devices.values())

    def make(calls: int) -> None:
        for number in range(calls):
            choose(
                orders[number % 64],
                loads,
                total_load=total_load,
                devices=devices,
                total_devices=total_devices,
            )

    return measure_throughput(make)


def ranking(members: int) -> Measurement:
    """The mean of orders for new keys."""
    names = [f"member-{number}" for number in range(members)]

    def make(calls: int) -> None:
        for number in range(calls):
            ranked(number.to_bytes(32, "big"), names)

    return measure_throughput(make)


def main() -> None:
    """Measures until the input closes."""
    members = int(sys.argv[1])
    answer_requests({"choose": choosing(members), "rank": ranking(members)})


if __name__ == "__main__":
    main()
