"""What it costs to choose the member for a call, without a pool: `pool_routing MEMBERS`."""

from __future__ import annotations

import random
import sys

from benchmarks.answering import Measurement, answer_requests, measure_throughput
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller
from jaxd.pool.routes import Pool
from jaxd_protocol.messages.pool_view import PoolMember, PoolView
from jaxd_protocol.network.addresses import Address
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


def routing(members: int) -> Measurement:
    """The mean of what each call runs, in such a pool, of which there is no more than the view."""
    chance = random.Random(1)
    settings = Settings(server=Address.parse("pool+unix:///nowhere"))
    shown = {
        name: PoolMember(
            name, devices=1, epoch=1, state="ready", load=chance.choice((0, 0, 1, 1, 2))
        )
        for name in (f"member-{number}" for number in range(members))
    }
    pool = Pool(settings, Caller(settings))
    pool.keeper.view = PoolView("lab", 1, shown)
    pool.changed()
    keys = [number.to_bytes(32, "big") for number in range(64)]

    def make(calls: int) -> None:
        for number in range(calls):
            pool.of_key(keys[number % 64])

    make(len(keys))  # orders are kept, and what makes the calls of each member
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
    found = {"choose": choosing(members), "route": routing(members), "rank": ranking(members)}
    answer_requests(found)


if __name__ == "__main__":
    main()
