"""A dashboard of a real server: each figure is that of `jaxd status`, and each sees their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from jaxd import connect
from jaxd.connection.control_client import send_request
from jaxd_protocol.messages.server_view import ServerView, apply_change
from jaxd_protocol.network.accounts import add_account, remove_account, token_files
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.client.cli.dashboard.figures import BY_CLOCK, text_of
from tests.client.cli.dashboard.running import FIGURES, Dashboard, chromium, dashboard, go, opened
from tests.live_server import LiveServer, live_server

pytestmark = [pytest.mark.own_server, pytest.mark.slow]

PAGES = ("overview", "functions", "calls", "memory", "builds", "errors")

CLIENT = """
import sys
import numpy as np
import jaxd

name = sys.argv[1]

@jaxd.persistent_call(extra_key=name)
def scale(x):
    return x * 3

@jaxd.persistent_call
def broken(x):
    raise ValueError(name)

kept = []
for number, line in enumerate(sys.stdin, 1):
    for size in range(1, 4):
        scale(np.ones(10 * number + size, "f4"))
    for _ in range(50):
        scale(np.ones(10 * number + 1, "f4"))
    try:
        broken(np.float32(number))
    except ValueError:
        pass
    kept.append(jaxd.put(np.zeros(1000 * number)))
    if number == 2:
        jaxd.put(np.zeros(50_000), name=f"of {name}")
    print("done", flush=True)
"""


@contextmanager
def client(live: LiveServer, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that works once for each line that it is sent."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", CLIENT, name], env=live.environment, **pipes)
    try:
        yield process
        process.communicate()
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@contextmanager
def board_of(live: LiveServer, address: str = "", **more: str) -> Iterator[Dashboard]:
    """`jaxd dashboard` of a server."""
    words = ("jaxd.cli", "dashboard", "--no-open", "--server", address or live.unix)
    with dashboard(*words, environment=live.environment | more) as found:
        yield found


def status(live: LiveServer) -> dict[str, Any]:
    """The view that `jaxd status --json` has."""
    report = send_request(control_path(Address.parse(live.unix)), {"ask": "status", "view": True})
    assert report is not None
    return ServerView.from_dict(report["view"]).to_dict()


RECORD = f"""
window.recorded = {{}};
window.record = () => {{
  const sequence = document.getElementById('sequence').textContent.replaceAll(',', '');
  window.recorded[sequence] = {FIGURES};
}};
new MutationObserver(window.record)
  .observe(document.getElementById('sequence'), {{childList: true, subtree: true}});
"""


def wrong(view: dict[str, Any], shown: list[list[str]]) -> list[Any]:
    """Figures that are not those of the view."""
    return [
        (path, text, text_of(view, path, kind))
        for path, kind, text in shown
        if kind not in BY_CLOCK and text != text_of(view, path, kind)
    ]


def test_every_figure_is_that_of_jaxd_status() -> None:
    """While three processes compile, call, fail and keep arrays: by the number of the view."""
    with ExitStack() as stack:
        browser = stack.enter_context(chromium())
        live = stack.enter_context(live_server())
        board = stack.enter_context(board_of(live))
        page = stack.enter_context(opened(browser, board.link))
        clients = [stack.enter_context(client(live, f"c{number}")) for number in range(3)]
        page.evaluate(RECORD)
        seen: dict[int, dict[str, Any]] = {}
        compared = at_work = 0
        for turn in range(12):
            where = PAGES[turn % len(PAGES)]
            go(page, where)
            page.evaluate("window.recorded = {}; window.record()")
            for each in clients:
                assert each.stdin is not None
                each.stdin.write("go\n")
                each.stdin.flush()
            for each in clients:
                assert each.stdout is not None
                view = status(live)
                seen[view["sequence"]] = view
                assert each.stdout.readline() == "done\n"
            view = settled(live, page)
            seen[view["sequence"]] = view
            recorded = page.evaluate("window.record(), window.recorded")
            for sequence, shown in recorded.items():
                if int(sequence) in seen:
                    assert wrong(seen[int(sequence)], shown) == [], where
                    compared += len(shown)
                    at_work += int(sequence) != view["sequence"]
            assert str(view["sequence"]) in recorded
        assert compared > 500
        assert view["counters"]["calls"] >= 3 * 12 * 54
        assert view["counters"]["failed_calls"] == 36
        assert len(view["functions"]) == 3
        assert at_work, "no view of clients at work was compared"


def settled(live: LiveServer, page: Any) -> dict[str, Any]:
    """The view, once the page shows the same one."""
    for _ in range(100):
        view = status(live)
        page.wait_for_timeout(100)
        if int(page.inner_text("#sequence").replace(",", "")) == view["sequence"]:
            return view
    raise AssertionError("the page does not come to rest")


@pytest.fixture
def folder(live: LiveServer) -> Iterator[str]:
    """Where the server looks for named tokens; nobody has one afterwards."""
    folder = str(live.directory / "config" / "jaxd" / "tokens")
    yield folder
    for file in token_files(folder):
        remove_account(file.name, folder)


def test_each_sees_their_own(live: LiveServer, folder: str) -> None:
    """Bob's dashboard has no function, no session, no call and no array of Alice's."""
    alice, bob = (add_account(name, folder)[1] for name in ("alice", "bob"))
    with connect(live.tls, token=alice) as of_alice, connect(live.tls, token=bob) as of_bob:
        of_alice.persistent_call(_secret_of_alice)(2.0)
        of_bob.persistent_call(_work_of_bob)(2.0)
        of_alice.put([1.0], name="array_of_alice")
        texts = [_view_text(live, token) for token in (alice, bob)]
    assert "_secret_of_alice" in texts[0]
    assert "array_of_alice" in texts[0]
    assert "alice" not in texts[1]
    assert "_work_of_bob" in texts[1]
    assert "_work_of_bob" not in texts[0]


def _view_text(live: LiveServer, token: str) -> str:
    with (
        board_of(live, live.tls, JAXD_TOKEN=token) as board,
        board.events(board.cookie()) as events,
    ):
        return json.dumps([next(events), next(events)])


def _secret_of_alice(x: Any) -> Any:
    return x * 5


def _work_of_bob(x: Any) -> Any:
    return x * 7


def test_what_a_page_asks_reaches_the_server(live: LiveServer) -> None:
    """The texts of a program, what XLA says of it, and an action: its programs are dropped."""
    with connect(live.unix) as of_us:
        assert float(of_us.persistent_call(_asked_about)(2.0)) == 22.0
    with board_of(live) as board:
        cookie = board.cookie()
        with board.events(cookie) as events:
            view = next(content for name, content in events if name == "view")
        key = next(k for k, row in view["functions"].items() if row["name"] == "_asked_about")
        program = next(k for k, row in view["programs"].items() if row["function"] == key)

        def ask(path: str) -> Any:
            return json.loads(board.ask(board.place + path, Cookie=cookie).text)

        assert "lambda" in ask(f"text?function={key}&program={program}&stage=jaxpr")["text"]
        assert "HloModule" in ask(f"text?function={key}&program={program}&stage=hlo")["text"]
        detail = ask(f"detail?function={key}")
        assert [one["name"] for one in detail["programs"]] == [program]
        assert detail["history"][0]["verdict"] == "compile"
        origin = {"Origin": f"http://127.0.0.1:{board.port}", "Content_Type": "application/json"}
        action = f"{board.place}actions/clear"
        said = board.ask(action, "POST", json.dumps({"key": key}), Cookie=cookie, **origin)
        assert json.loads(said.text) == {"text": "Cleared: 1 program dropped."}
        assert not ask(f"detail?function={key}").get("programs")


def _asked_about(x: Any) -> Any:
    return x * 11


def test_a_server_that_is_started_again(tmp_path: Path) -> None:
    """The dashboard says that it is away, and goes on with the next one at that address."""
    with ExitStack() as stack:
        first = stack.enter_context(live_server())
        board = stack.enter_context(board_of(first))
        events = stack.enter_context(board.events(board.cookie()))
        _, view = next(events), next(events)[1]
        assert first.close() == 0
        state = next(content for name, content in events if name == "state")
        assert state["state"] == "lost"
        again = LiveServer(first.directory)
        stack.callback(again.close)
        for name, content in events:
            if name == "patch":
                view = apply_change(view, content)
            if (name, content) == ("state", {"state": "live", "text": ""}):
                break
        while view["server"]["pid"] != again.process.pid or "calls" not in view["counters"]:
            name, content = next(events)
            view = apply_change(view, content) if name == "patch" else view
        assert view["counters"]["calls"] == 0
