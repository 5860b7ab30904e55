"""What is recorded of calls while somebody looks, and that nothing is there otherwise."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

import numpy as np
import pytest

from jaxd import Client, persistent_call
from jaxd.api import recording
from jaxd.api.recording import CallProfile, OneCall, ProfileRow, Span, follow, profiled, server_rows
from tests.ids import row

PROFILE = CallProfile(
    "step",
    200.0,
    (ProfileRow("client", "wait", 0, 150.0, 0.75), ProfileRow("server", "<run>", 1, 100.0, 0.5)),
    None,
)


def timed_methods() -> dict[str, Any]:
    """What stands on the classes under the names whose time is taken."""
    found = {}
    for module, entries in recording._TIMED.items():
        for entry in entries:
            owner, _, method = entry.method.partition(".")
            found[entry.method] = vars(getattr(import_module(module), owner))[method]
    return found


def step(x: Any) -> Any:
    """Is called."""
    return x + 1


def test_nothing_is_left_of_it_when_nobody_looks(client: Client) -> None:
    """The methods are what they were; also where the call has failed."""
    before = timed_methods()
    client.persistent_call(step).profile(np.ones(3, np.float32))
    assert timed_methods() == before

    def fails(x: Any) -> Any:
        raise KeyError(x.shape)

    with pytest.raises(KeyError):
        client.persistent_call(fails).profile(np.ones(3, np.float32))
    assert timed_methods() == before
    assert client.persistent_call(step)(1.0) == 2


def test_the_stages_of_a_warm_call_are_all_of_its_time(client: Client) -> None:
    """Each moment counts for one of them, at either end or between."""
    function = client.persistent_call(step)
    function(np.ones(3, np.float32))
    found = function.profile(np.ones(3, np.float32))
    assert found.function == "step"
    assert found.result.tolist() == [2, 2, 2]
    stages = [(row.end, row.stage) for row in found.rows if not row.depth]
    assert [stage for end, stage in stages if end == "client"] == [
        *("key", "pack", "send", "decode", "other")
    ]
    server = [stage for end, stage in stages if end == "server"]
    assert server[:4] == ["receive", "arguments", "run", "encode"]
    assert ("between", "on the way") in stages
    assert sum(row.us for row in found.rows if not row.depth) == pytest.approx(found.us)
    assert sum(row.share for row in found.rows if not row.depth) == pytest.approx(1)


def test_a_call_that_compiles_says_so(client: Client) -> None:
    """The stages of the build are parts of that in which the call waits for it."""
    factor = time.monotonic()
    found = client.persistent_call(lambda x: x * factor).profile(np.ones(3, np.float32))
    rows = [(row.depth, row.stage) for row in found.rows]
    build = rows.index((0, "build"))
    assert rows[build + 1 : build + 4] == [(1, "trace"), (1, "lower"), (1, "compile")]
    assert (1, "answer describe") in rows[rows.index((0, "function")) :]


def a_span(name: str, started_ns: int, ended_ns: int) -> Span:
    """Of a thread."""
    return Span(name, 1, started_ns, ended_ns, {})


def test_a_moment_in_which_both_ends_are_busy_counts_for_the_server() -> None:
    """It may begin before the client has sent all; what follows the call is not in it."""
    own = [a_span("send", 100_000, 150_000), a_span("wait", 150_000, 280_000)]
    server = [a_span("run", 130_000, 200_000), a_span("send", 250_000, 900_000)]
    rows = {(row.end, row.stage): row.us for row in recording._rows(own, server, 90_000, 300_000)}
    assert rows == {
        ("client", "send"): 30,
        ("server", "run"): 70,
        ("between", "on the way"): 50,
        ("server", "send"): 50,
        ("client", "other"): 10,
    }
    alone = {(row.end, row.stage): row.us for row in recording._rows(own, [], 90_000, 300_000)}
    assert alone["client", "wait"] == 130


def test_what_stays_on_the_server_is_waited_for(client: Client) -> None:
    """Else the table would end before the device is done."""
    function = client.persistent_call(step)
    state = client.put(np.ones(100_000, np.float32))
    for _ in range(2):
        found = function.profile(state)
    assert {"run"} <= {row.stage for row in found.rows}
    assert found.result.is_here is False


def test_a_method_is_profiled_on_its_instance(client: Client) -> None:
    """As a call of it."""

    class Model:
        scale = 3.0

        @persistent_call(client=client)
        def __call__(self, x: Any) -> Any:
            return x * self.scale

    assert Model().__call__.profile(2.0).result == 6


def test_a_profile_is_a_table_for_people_and_notebooks_and_a_dict() -> None:
    """In a notebook all text is escaped."""
    assert str(PROFILE).splitlines() == [
        "step: 200.0 µs",
        "end       stage  µs     share",
        "client    wait   150.0  75.0%",
        "  server  <run>  100.0  50.0%",
    ]
    assert "&lt;run&gt;" in PROFILE._repr_html_()
    assert json.loads(json.dumps(PROFILE.to_dict())) == {
        "function": "step",
        "us": 200.0,
        "rows": [
            {"end": "client", "stage": "wait", "depth": 0, "us": 150.0, "share": 0.75},
            {"end": "server", "stage": "<run>", "depth": 1, "us": 100.0, "share": 0.5},
        ],
    }


# another machine's clock --------------------------------------------------------------------------


class Elsewhere:
    """A connection to a server whose clock is ahead by `ahead_ns`, over a slow line."""

    def __init__(self, ahead_ns: int, delays_ns: list[int], clock: str | None) -> None:
        self._ahead_ns = ahead_ns
        self._clock = clock
        self._now = 0
        self._delays = iter(delays_ns)

    def now(self) -> int:
        """The time here."""
        return self._now

    def request(self, verb: str, args: tuple[Any, ...]) -> tuple[str, None]:
        """Takes as long there as back, but for the last nanosecond."""
        delay = next(self._delays)
        self._now += delay // 2
        told = json.dumps({"pid": 5, "clock": self._clock, "clock_ns": self._now + self._ahead_ns})
        self._now += delay - delay // 2
        return told, None


@pytest.mark.parametrize("clock", ["another", None])
def test_another_clock_is_compared_by_round_trips(
    clock: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortest says most; the error is half of it. Two unknown clocks may be different ones."""
    server = Elsewhere(7_000_000, [900, 700, 101, 300, 900, 900, 900, 900], clock)
    monkeypatch.setattr(recording, "clock_id", lambda: None)
    monkeypatch.setattr(time, "monotonic_ns", server.now)
    found = follow(server, b"n", "1.1")  # type: ignore[arg-type]
    assert found is not None
    assert found == {"server": 5, "offset_ns": found["offset_ns"], "error_ns": 51}
    assert abs(found["offset_ns"] - 7_000_000) <= found["error_ns"]


class Liar:
    """A connection to something that answers nonsense."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def request(self, *_: Any) -> tuple[str, None]:
        """The answer."""
        return self._answer, None


INFINITE: Final = [
    '{"pid": 1e999, "clock_ns": 1, "clock": null}',
    '{"pid": 1, "clock_ns": 1e999, "clock": null}',
    f'{{"pid": 1, "clock_ns": {1 << 63}, "clock": null}}',
    '{"spans": [], "threads": {}, "left_out": 1e999}',
    '{"spans": 1, "threads": {}, "left_out": 0}',
    "[" * 100_000,
]


def test_what_does_not_answer_as_a_server_is_not_followed() -> None:
    """And nothing is raised into a call."""
    rows: list[str] = ["", "[]", "{}", '{"pid": null}', "1", *INFINITE]
    for answer in rows:
        with row(answer):
            liar: Any = Liar(answer)
            assert follow(liar, b"n", "1.1") is None
            assert recording.fetched(liar, b"n") is None


def test_spans_that_cannot_be_read_are_left_out() -> None:
    """And replies to requests of which nothing else is known."""
    run = ["1.1", 5, "run", 0, 1, 7, {}]
    send = ["1.1", 5, "send", 1, 2, 7, {}]
    lone = ["1.1", 6, "send", 1, 2, 7, {}]
    others: list[Any] = [None, [], ["1.1", 5], [*run[:6], None], [*run[:6], {"a": [[]]}]]
    answer = {"spans": [run, *others, lone, send], "threads": {"7": "a"}, "left_out": 2}
    liar: Any = Liar(json.dumps(answer))
    found = recording.fetched(liar, b"n")
    assert found == {"spans": [run, lone, send], "threads": {"7": "a"}, "left_out": 2}
    assert server_rows(found) == [run, send]


@pytest.fixture
def recorder() -> Iterator[Callable[[], OneCall]]:
    """Begins to record; ends with the test."""
    begun: list[OneCall] = []

    def begin() -> OneCall:
        begun.append(OneCall())
        recording._begin(begun[-1])
        return begun[-1]

    yield begin
    for each in begun:
        if each in recording._recorders:
            each.end()


def test_what_other_threads_call_is_not_in_a_profile(
    client: Client, recorder: Callable[[], OneCall]
) -> None:
    """Neither here nor on the server, though the connection is the same."""
    function = client.persistent_call(step)
    function(1.0)
    mine = recorder()
    recording._follow_all(client.caller.session, client.caller.session.connection())
    other = threading.Thread(target=function, args=(1.0,))
    other.start()
    other.join()
    mine.end()
    assert mine.spans == mine.server_spans() == []


def test_two_may_look_at_once(client: Client, recorder: Callable[[], OneCall]) -> None:
    """A profile in a program that is traced: both have the spans, and the first one goes on."""
    first = recorder()
    function = client.persistent_call(step)
    recording._follow_all(client.caller.session, client.caller.session.connection())
    function(1.0)
    function.profile(1.0)
    function(1.0)
    assert [span.name for span in first.spans].count("call") == 3
    first.end()
    rows = first.server_spans()
    assert len([span for span in rows if span.name == "call"]) == 3


def test_several_threads_make_profiles_at_once(client: Client) -> None:
    """The server's part is in each, whichever begins and ends first."""
    function = client.persistent_call(step)
    function(1.0)
    begun, go = threading.Event(), threading.Event()
    found: list[CallProfile] = []

    def first_call() -> Any:
        begun.set()
        assert go.wait(30)
        return function(1.0)

    def profile(call: Callable[[], Any]) -> None:
        found.append(profiled(call, "step", client.caller, lambda _: None))

    first = threading.Thread(target=profile, args=(first_call,))
    first.start()
    assert begun.wait(30)

    def second_call() -> Any:
        go.set()
        first.join(30)
        return function(1.0)

    profile(second_call)
    assert len(found) == 2
    for each in found:
        stages = [row.stage for row in each.rows if row.end == "server"]
        assert stages[:4] == ["receive", "arguments", "run", "encode"]
