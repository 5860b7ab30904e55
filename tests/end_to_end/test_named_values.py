"""Values under a name: left by one process, found by another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxd import Client, connect, wait
from jaxd.errors import ArgumentError, ValueDeleted
from tests.live_server import LiveServer
from tests.server.staging import until
from tests.warm_clients import run_light

StartLive = Callable[..., LiveServer]

LEAVE = """
    import sys
    import numpy as np
    import jaxd

    tree = {"w": np.arange(100_000, dtype=np.float32), "b": [np.int32(3), None]}
    jaxd.put(tree, name=sys.argv[1], ttl_s=float(sys.argv[2]) if sys.argv[2:] else None)
"""

FIND = """
    import json, sys
    import jaxd

    tree = jaxd.named(sys.argv[1])
    w, (b, nothing) = tree["w"], tree["b"]
    print(json.dumps([float(w[10:13].sum()), int(b), nothing, list(w.shape), "jax" in sys.modules]))
"""


class Point(NamedTuple):
    x: Any
    y: Any


def run(live: LiveServer, text: str, *arguments: str) -> str:
    """What a program prints, in a process of its own."""
    lines = [line.removeprefix("    ") for line in text.splitlines()]
    done = run_light(live, "\n".join(lines), *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def holders(client: Client) -> list[dict[str, Any]]:
    """Names, and sessions with handles, that keep values on the server."""
    found: list[dict[str, Any]] = client.caller.session.ask("values")["holders"]
    return found


def command(live: LiveServer, *words: str) -> str:
    """What `jaxd` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxd.cli", *words],
        env=live.environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_what_one_process_leaves_another_finds(start_live: StartLive) -> None:
    """After the first has ended and its session too; in numbers, a tree of the same form."""
    live = start_live("--session-grace-s", "0")
    run(live, LEAVE, "weights")
    with connect(live.unix) as client:
        until(lambda: client.statistics().values == 2)
        assert json.loads(run(live, FIND, "weights")) == [33.0, 3, None, [100_000], False]
        until(lambda: client.statistics().values == 2)
        assert client.forget("weights")
        assert not client.forget("weights")
        until(lambda: client.statistics().values == 0)  # the session of FIND may still end
        with pytest.raises(ValueDeleted, match="You have none here"):
            client.named("weights")


@pytest.mark.slow
def test_the_command_lists_names(start_live: StartLive) -> None:
    """For people and for programs."""
    live = start_live("--session-grace-s", "0", "--value-bytes", "1M")
    run(live, LEAVE, "weights", "3600")
    head, row, totals, advice = command(live, "values").splitlines()
    assert head.split()[0] == "what"
    assert row.startswith("named 'weights'")
    assert row.endswith("60 min")
    assert totals == "2 arrays, 400 kB of 1.05 MB"
    assert "jaxd.kept()" in advice
    report = json.loads(command(live, "values", "--json"))
    assert report["totals"] == {"values": 2, "bytes": 400_004, "limit_bytes": 1 << 20}
    (holder,) = report["holders"]
    assert (holder["name"], holder["values"], holder["bytes"]) == ("weights", 2, 400_004)


def test_a_name_ends_with_its_time(client: Client) -> None:
    """Its memory is free then, though nobody asks for it; the handles of who put it live on."""
    kept = client.put({"w": np.float32(7)}, name="short", ttl_s=0.05)
    client.put({"w": np.float32(8)}, name="short_too", ttl_s=0.05)
    names = {"short", "short_too"}
    until(lambda: names.isdisjoint(one["name"] for one in holders(client)))
    with pytest.raises(ValueDeleted, match="ttl_s has passed"):
        client.named("short")
    assert float(kept["w"]) == 7.0


def test_a_name_that_is_given_again_is_the_new_one(client: Client) -> None:
    """Who found the old one keeps it as long as they hold it."""
    client.put([np.float32(1)], name="again")
    (old,) = client.named("again")
    client.put(Point(np.float32(2), np.arange(3)), name="again")
    new = client.named("again")
    assert new._fields == Point._fields
    assert (float(old), float(new.x), new.y.tolist()) == (1.0, 2.0, [0, 1, 2])
    assert client.forget("again")
    assert float(new.x) == 2.0


def test_results_can_be_given_a_name(live: LiveServer) -> None:
    """They are not moved for that, and a call that is given what was found uses up a copy."""
    with connect(live.unix) as one, connect(live.unix) as two:

        @one.persistent_call(results="remote")
        def make(n: Any) -> Any:
            import jax.numpy as jnp

            return {"w": jnp.full((100_000,), n)}

        @two.persistent_call(donate_argnums=0)
        def double(tree: Any) -> Any:
            return {"w": tree["w"] * 2}

        one.put(make(np.float32(3)), name="made")
        before = two.statistics().bytes_sent
        found = two.named("made")
        doubled = wait(double(found))
        assert two.statistics().bytes_sent - before < 50_000
        with pytest.raises(ValueDeleted, match="double"):
            found["w"].fetch()
        assert float(doubled["w"][5]) == 6.0
        assert float(two.named("made")["w"][5]) == 3.0
        two.forget("made")


def test_what_cannot_have_a_name_is_refused(client: Client) -> None:
    """With the reason; and nothing is left of it."""
    held = client.statistics().values
    with pytest.raises(ArgumentError, match="1 to 200 characters"):
        client.put([1.0], name="")
    with pytest.raises(ArgumentError, match="seconds that the name is to live"):
        client.put([1.0], name="n", ttl_s=-1)
    until(lambda: client.statistics().values <= held)  # those of earlier clients may go
    with pytest.raises(ValueDeleted):
        client.named("n")
