"""Dashboards in processes of their own, requests to them, and a browser that shows their pages."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[4]
CHROMIUM = "/usr/bin/chromium"
_LOOK_MS, _MOST_LOOKS = 20, 1500
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)


FIGURES = """
[
  ...[...document.querySelectorAll('[data-figure]')]
    .map((one) => [one.dataset.figure, one.dataset.format, one.textContent]),
  ...[...document.querySelectorAll('table[data-table]')]
    .map((one) => [`#/${one.dataset.table}`, 'count', `${one.getAttribute('aria-rowcount') - 1}`]),
]
"""
"""All that a page shows of a view: path, format and text of each, and how many rows tables have."""


class Answer(NamedTuple):
    """Of a request."""

    status: int
    headers: Mapping[str, str]
    text: str


class Dashboard:
    """One that runs, and the link that it has printed."""

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        folders = [str(ROOT / name) for name in ("client", "server", "shared")]
        path = {"PYTHONPATH": os.pathsep.join([*folders, str(ROOT)])}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", *command],
            env={**os.environ, **(environment or {}), **path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.link = next((line.strip() for line in self.process.stdout if "http://" in line), "")
        assert self.link, self.process.communicate()[1]
        parts = urlsplit(self.link)
        self.port = parts.port or 0
        self.place = parts.path.removesuffix("open")
        self.opening = f"{parts.path}?{parts.query}"

    def order(self, **what: Any) -> None:
        """Has the played server do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def said(self) -> Any:
        """The next line of its stdout, which tells of an action."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
        """The answer to a request; `cookie_` in a name stands for a dash."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body or None, named)
            answer = connection.getresponse()
            text = "" if path.endswith("/events") else answer.read().decode()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, text)
        finally:
            connection.close()

    @contextmanager
    def events(self, cookie: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The events that a page of it receives: the name and the content of each."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=50)
        connection.request("GET", f"{self.place}events", headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert answer.headers.get_content_type() == "text/event-stream"
        try:
            yield self._parsed(answer)
        finally:
            answer.close()
            connection.close()

    @staticmethod
    def _parsed(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
        while name := answer.readline().decode().removeprefix("event: ").strip():
            yield name, json.loads(answer.readline().decode().removeprefix("data: "))
            answer.readline()

    def cookie(self) -> str:
        """Opens the link, and returns the cookie that it sets."""
        answer = self.ask(self.opening)
        assert answer.status == 200, answer
        return answer.headers["set-cookie"].partition(";")[0]

    def end(self) -> tuple[int, str]:
        """Sends Ctrl-C; the exit code, and what it wrote to stderr."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@contextmanager
def dashboard(*command: str, environment: Mapping[str, str] | None = None) -> Iterator[Dashboard]:
    """One that is ended with the test; by default of a played server."""
    pytest.importorskip("starlette", reason="needs the extra: pip install 'jaxd[dashboard]'")
    pytest.importorskip("uvicorn", reason="needs the extra: pip install 'jaxd[dashboard]'")
    found = Dashboard(*command, environment=environment)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
        found.process.communicate()


@contextmanager
def played(view: str) -> Iterator[Dashboard]:
    """One of a server that the test plays."""
    with dashboard("tests.client.cli.dashboard.played", view) as found:
        yield found


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install playwright"
    )
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, link: str, **options: Any) -> Iterator[Any]:
    """A page that shows a dashboard; fails when the browser complains about anything."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.set_default_timeout(40_000)
    page.goto(link)
    page.wait_for_selector("#connection[data-state=live]")
    until(page, "document.getElementById('sequence').textContent !== ''")
    yield page
    own = link.partition("/open")[0]
    assert [url for url in asked if not url.startswith(own)] == []
    context.close()
    assert complaints == [], complaints


def until(page: Any, condition: str) -> None:
    """Waits until an expression is true on the page, which forbids the eval of Playwright's own."""
    for _ in range(_MOST_LOOKS):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(_LOOK_MS)
    raise AssertionError(f"it never became true: {condition}\n{page.inner_text('body')}")


def go(page: Any, where: str) -> None:
    """Shows another page of the dashboard."""
    page.evaluate(f"location.hash = '#/{where}'")
    shown = "document.querySelector('nav [aria-current]').dataset.page"
    until(page, f"{shown} === '{where.partition('/')[0]}'")


def figures(page: Any) -> list[tuple[str, str, str]]:
    """All that the page shows of the view: path, format and text of each."""
    return [tuple(each) for each in page.evaluate(FIGURES)]
