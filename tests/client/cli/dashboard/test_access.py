"""Whoever has opened the link in a browser may use a dashboard; nobody else, and no other site."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.client.cli.dashboard.running import Dashboard, played


@pytest.fixture(scope="module")
def board() -> Iterator[Dashboard]:
    """One whose link was opened."""
    with played("hostile") as found:
        yield found


@pytest.fixture(scope="module")
def cookie(board: Dashboard) -> str:
    """That of whoever opened it."""
    return board.cookie()


PATHS = ("", "events", "detail?function=3f", "text?function=3f", "static/js/main.js", "nothing")


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_the_cookie(board: Dashboard, cookie: str, path: str) -> None:
    """The answer says what to do, and is the same whether there is such a thing or not."""
    answer = board.ask(board.place + path)
    assert answer.status == 401
    if path != "events":
        assert "Open the link" in answer.text
        assert answer.text == board.ask("/" + path).text
    name = cookie.partition("=")[0]
    assert board.ask(board.place + path, Cookie=f"{name}=guessed").status == 401


def test_nothing_is_done_without_the_cookie(board: Dashboard, cookie: str) -> None:
    """Even by a request that says all else."""
    answer = board.ask(
        f"{board.place}actions/cancel",
        "POST",
        json.dumps({"call": "c0ffee"}),
        Origin=f"http://127.0.0.1:{board.port}",
        Content_Type="application/json",
    )
    assert answer.status == 401


def test_the_link_opens_once(board: Dashboard) -> None:
    """What only looks at it does not use it up; a second browser is told so, the first may return.

    No script reads the cookie, no other site sends it, and no other port here is sent it.
    """
    with played("example") as own:
        for method, headers in (("HEAD", {}), ("GET", {"Sec_Purpose": "prefetch"}), ("POST", {})):
            assert own.ask(own.opening, method, **headers).status == 403, method
        assert own.ask(f"{own.place}open?token=guessed").status == 403
        said = own.ask(own.opening).headers["set-cookie"]
        again = own.ask(own.opening)
        assert (again.status, "set-cookie" in again.headers) == (403, False)
        assert "opens once" in again.text
        assert own.ask(own.opening, Cookie=said.partition(";")[0]).status == 200
    attributes = {part.strip().lower() for part in said.split(";")[1:]}
    assert {"httponly", "samesite=strict", f"path={own.place}".lower()} <= attributes
    assert not any(each.startswith(("domain", "expires", "max-age")) for each in attributes)
    assert len(own.place.strip("/")) >= 22
    assert own.place != board.place


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}", ""]
)
def test_a_name_that_is_not_the_dashboards_is_refused(
    board: Dashboard, cookie: str, host: str
) -> None:
    """A site whose name leads to 127.0.0.1 (DNS rebinding) gets nothing, even with the cookie."""
    answer = board.ask(board.place, Cookie=cookie, Host=host.format(port=board.port))
    assert answer.status == 403
    assert board.ask(board.place, Cookie=cookie, Host=f"localhost:{board.port}").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_ask_with_the_cookie(board: Dashboard, cookie: str, site: str) -> None:
    """Also not one on another port of 127.0.0.1, which browsers call the same site."""
    assert board.ask(board.place, Cookie=cookie, Sec_Fetch_Site=site).status == 403
    assert board.ask(board.place, Cookie=cookie, Sec_Fetch_Site="same-origin").status == 200


GOOD = {"Origin": "http://127.0.0.1:{port}", "Content_Type": "application/json"}


@pytest.mark.parametrize(
    "changed",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Origin": None},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "none"},
    ],
)
def test_an_action_comes_from_a_page_of_the_dashboard(
    board: Dashboard, cookie: str, changed: dict[str, str | None]
) -> None:
    """What a form or a script of another site can send is refused."""
    headers = {
        k: v.format(port=board.port) for k, v in {**GOOD, **changed}.items() if v is not None
    }
    body = json.dumps({"call": "c0ffee"})
    assert (
        board.ask(f"{board.place}actions/cancel", "POST", body, Cookie=cookie, **headers).status
        == 403
    )
    headers = {k: v.format(port=board.port) for k, v in GOOD.items()}
    answer = board.ask(f"{board.place}actions/cancel", "POST", body, Cookie=cookie, **headers)
    assert (answer.status, board.said()) == (200, {"cancel": "c0ffee"})


@pytest.mark.parametrize(
    "body", ["", "[]", "{", '{"call": 1}', '{"other": "x"}', '{"call": "' + "x" * 5000 + '"}']
)
def test_an_action_that_says_nothing_of_use(board: Dashboard, cookie: str, body: str) -> None:
    """It is refused, and nothing is done."""
    headers = {k: v.format(port=board.port) for k, v in GOOD.items()}
    assert (
        board.ask(f"{board.place}actions/cancel", "POST", body, Cookie=cookie, **headers).status
        == 400
    )
    assert (
        board.ask(
            f"{board.place}actions/other", "POST", '{"call": "x"}', Cookie=cookie, **headers
        ).status
        == 400
    )


@pytest.mark.parametrize("path", ["", "static/js/main.js", "static/../app.py", "nothing", "detail"])
def test_every_answer_says_what_a_page_may_load(board: Dashboard, cookie: str, path: str) -> None:
    """Scripts and styles of this origin, none that stands in a page, and no frame around it."""
    for headers in ({"Cookie": cookie}, {}):
        answer = board.ask(board.place + path, **headers)
        policy = dict(
            part.strip().split(" ", 1)
            for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_the_page_has_no_script_and_no_style_in_it(board: Dashboard, cookie: str) -> None:
    """Nothing but what the policy allows."""
    page = board.ask(board.place, Cookie=cookie).text
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\bstyle=|\bon\w+=", page) == []
    assert "//" not in page.replace("<!doctype", "")


@pytest.mark.parametrize(
    "path",
    [
        "static/../app.py",
        "static/%2e%2e/app.py",
        "static/..%2fapp.py",
        "static/%2e%2e%2f%2e%2e%2fquery.py",
        "static//etc/passwd",
        "static/..\\app.py",
        "static/js",
        "static/access.py",
        "static/",
        "../../etc/passwd",
    ],
)
def test_no_other_file_is_sent(board: Dashboard, cookie: str, path: str) -> None:
    """However a path is written."""
    answer = board.ask(board.place + path, Cookie=cookie)
    assert answer.status == 404
    assert "import" not in answer.text


def test_a_question_that_the_server_refuses_is_an_answer(board: Dashboard, cookie: str) -> None:
    """The page shows why."""
    answer = board.ask(f"{board.place}text?function=3f&program=zz&stage=hlo", Cookie=cookie)
    assert json.loads(answer.text) == {
        "error": "there is no such program. Call the function first."
    }
