"""What one person has on a server is not shown to another, whatever they ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.dispatch.warm import recipe_mark, recipes_since
from jaxd_protocol.errors import Cancelled, NotPermitted
from jaxd_protocol.messages.server_view import apply_change
from jaxd_protocol.network.accounts import add_account, remove_account
from tests.end_to_end.gates import Gate, stop_at
from tests.live_server import LiveServer
from tests.server.staging import until

pytestmark = pytest.mark.own_server

SECRET = 0.123456
"""Stands in Alice's code only."""

X = np.ones(3, np.float32)


def alices_own_secret_step(x: Any) -> Any:
    """Is called by Alice alone."""
    return x * SECRET


def common_step(x: Any) -> Any:
    """Is called by both."""
    return x - 3


class Two(NamedTuple):
    """Clients of two people, and of the one whose server it is.

    Attributes:
        mark: of the moment before any of them did anything.
    """

    alice: Client
    bob: Client
    owner: Client
    mark: str


@pytest.fixture(scope="module")
def two(live: LiveServer) -> Iterator[Two]:
    """Alice has called both functions, Bob the common one; both keep values under names."""
    folder = str(live.directory / "config" / "jaxd" / "tokens")
    tokens = [add_account(name, folder)[1] for name in ("alice", "bob")]
    with (
        connect(live.tls, token=tokens[0]) as alice,
        connect(live.tcp, token=tokens[1]) as bob,
        connect(live.unix) as owner,
    ):
        mark = recipe_mark(owner.caller)
        alice.persistent_call(alices_own_secret_step)(X)
        for number in (1.0, np.float32(1)):  # two programs, of which one is needless
            alice.persistent_call(alices_own_secret_step)(number)
        alice.persistent_call(common_step)(X)
        alice.put(np.zeros(1000), name="alices-values")
        bob.persistent_call(common_step)(X)
        yield Two(alice, bob, owner, mark)
    for name in ("alice", "bob"):
        remove_account(name, folder)


def everything(client: Client, verb: str, *args: Any) -> str:
    """All that a client is told, as text."""
    if verb == "view":
        return json.dumps(viewed(client, *args)[0])
    return json.dumps(client.caller.session.ask(verb, *args))


def viewed(client: Client, since: int = 0, source: str = "") -> tuple[dict[str, Any], str]:
    """All that a client is shown after that, and where it comes from: a server shows pieces."""
    found: dict[str, Any] = {"sequence": since}
    while True:
        reply = client.caller.session.ask("view", found["sequence"], source)
        found = apply_change(found, reply.get("view") or reply["change"])
        source = reply["source"]
        if not reply["more"]:
            return found, source


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("functions", ()),
        ("recent", (100,)),
        ("report", ()),
        ("statistics", ()),
        ("values", ()),
        ("view", (0, "")),
    ],
)
def test_nothing_of_alice_is_shown_to_bob(two: Two, verb: str, args: tuple[Any, ...]) -> None:
    """Not her functions, their arguments, her values or her name; her own are shown to her."""
    told = everything(two.bob, verb, *args)
    assert "alices" not in told
    if verb == "view":
        assert "account:alice" not in told
        assert "account:bob" in told
        assert "alices-values" in everything(two.alice, verb, *args)
    if verb in ("functions", "recent", "report", "view"):
        assert "common_step" in everything(two.bob, "functions")
        for who in (two.alice, two.owner):
            assert "alices_own_secret_step" in everything(who, verb, *args)
    if verb == "report":
        assert "account:bob" in told
        assert "account:alice" in everything(two.owner, verb)
    if verb == "values":
        assert "alices-values" in everything(two.alice, verb, *args)
    if verb == "statistics":
        assert "account:bob" in told
        assert "account:alice" not in told
        assert "account:alice" in everything(two.owner, verb)


def test_a_view_goes_on_without_what_others_do(two: Two) -> None:
    """Neither what changes for Alice, nor that something of hers is gone, is news for Bob."""
    seen, source = viewed(two.bob)
    two.alice.persistent_call(alices_own_secret_step)(X)
    two.alice.put(np.zeros(10), name="alices-other-values")
    two.alice.forget("alices-other-values")
    told = everything(two.bob, "view", seen["sequence"], source)
    assert "alice" not in told
    assert "alices_own_secret_step" in everything(two.owner, "view", 0, "")


def test_a_function_of_alice_is_looked_at_by_alice_alone(two: Two) -> None:
    """And by the one whose server it is: why it was built, its programs and their texts."""
    view, _ = viewed(two.owner)
    keys = {row["name"].rpartition(".")[2]: key for key, row in view["functions"].items()}
    key = bytes.fromhex(keys["alices_own_secret_step"])
    programs = [n for n, one in view["programs"].items() if one["function"] == key.hex()]
    for who in (two.alice, two.owner):
        assert "alices_own_secret_step" in everything(who, "detail", key, "", "")
        assert str(SECRET)[:6] in everything(who, "detail", key, programs[0], "jaxpr")
    for program, stage in (("", ""), (programs[0], "hlo"), (programs[0], "jaxpr")):
        with pytest.raises(NotPermitted, match="no function of that key"):
            two.bob.caller.session.ask("detail", key, program, stage)
    common = bytes.fromhex(keys["common_step"])
    assert "common_step" in everything(two.bob, "detail", common, "", "")


def test_a_call_of_alice_is_cancelled_by_nobody_but_her(two: Two, tmp_path: Path) -> None:
    """And by the one whose server it is."""
    gate = Gate(tmp_path / "gate")
    call = two.alice.persistent_call(stop_at(gate.path)).submit(1.0)
    with gate.reached():
        until(lambda: bool(viewed(two.alice)[0].get("calls")))
        (name,) = viewed(two.alice)[0]["calls"]
        assert viewed(two.bob)[0].get("calls") is None
        assert two.bob.caller.session.ask("cancel_call", name) == {"cancelled": False}
        assert two.alice.caller.session.ask("cancel_call", name) == {"cancelled": True}
        with pytest.raises(Cancelled):
            call.result()
    gate.let_leave(two.owner)


def test_code_is_sent_to_those_who_have_it_anyway(two: Two) -> None:
    """A lockfile of Bob's has what he has called since he began, and no code of Alice's."""
    recorded = {
        who: {recipe.name for recipe in recipes_since(client.caller, two.mark)[0]}
        for who, client in (("alice", two.alice), ("bob", two.bob), ("owner", two.owner))
    }
    assert recorded["bob"] == {"common_step"}
    assert recorded["alice"] == {"common_step", "alices_own_secret_step"}
    assert recorded["owner"] >= recorded["alice"]


def test_a_reason_compares_with_what_one_has_called_oneself(two: Two) -> None:
    """Else the constants of others would stand in it."""

    def asked(client: Client) -> str:
        similar = FunctionType(  # the same code but for the constant, as a guess would be
            alices_own_secret_step.__code__,
            {**globals(), "SECRET": 0.5},
            "alices_own_secret_step",
        )
        similar.__module__ = __name__
        return str(client.persistent_call(similar).why(X))

    assert "0.123456" in asked(two.alice)
    assert "first call of this function" in asked(two.bob)


def test_what_one_does_not_know_one_cannot_remove(two: Two) -> None:
    """Nor learn whether it is there."""
    function = two.alice.persistent_call(alices_own_secret_step)
    key = function.why(X).key
    assert two.bob.caller.session.ask("forget", bytes.fromhex(key)) == {"executables": 0}
    assert function.why(X).verdict == "hit"


def test_statistics_are_ones_own(two: Two) -> None:
    """Of what others do and hold neither names nor sums are shown; the owner is shown all."""
    before, all_before = two.bob.statistics(), two.owner.statistics()
    assert (before.traces, before.compiles) == (0, 0), "Alice had it made"
    assert (before.connections, before.functions, before.executables) == (1, 1, 1)
    assert before.values == 0
    two.alice.persistent_call(common_step)(X)
    two.alice.persistent_call(lambda x: x + 4)(X)
    kept = two.bob.put(np.ones(7, np.float32))
    after, all_after = two.bob.statistics(), two.owner.statistics()
    assert after.values == 1
    same = ("calls", "failed_calls", "executable_hits", "traces", "compiles", "run_s", "saved_s")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
    assert all_after.calls >= all_before.calls + 2
    assert all_after.traces > all_before.traces
    with pytest.raises(ZeroDivisionError):
        two.bob.persistent_call(lambda x: x / 0 if 1 // 0 else x)(kept)
    two.bob.persistent_call(lambda x: x + 5)(kept)
    mine = two.bob.statistics()
    assert mine.calls == after.calls + 2
    assert mine.failed_calls == after.failed_calls + 1
    assert (mine.compiles, mine.functions) == (after.compiles + 1, after.functions + 1)
    assert mine.bytes_received < two.owner.statistics().bytes_received
    told = two.bob.caller.session.ask("statistics")
    assert not {"running_calls", "left_behind", "queued_builds", "held_calls"} & told.keys()
    totals = two.bob.caller.session.ask("functions")["totals"]
    assert totals["calls"] == mine.calls


def test_a_program_that_both_use_is_made_once(two: Two) -> None:
    """Being apart costs nobody a compilation."""
    before = two.bob.statistics()
    two.bob.persistent_call(common_step)(X)
    after = two.bob.statistics()
    assert (after.compiles, after.executable_hits - before.executable_hits) == (before.compiles, 1)
