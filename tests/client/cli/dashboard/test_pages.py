"""What a browser shows: every figure is that of the view, for eyes, keys and screen readers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from jaxd_protocol.messages.server_view import ServerView
from tests.client.cli.dashboard import views
from tests.client.cli.dashboard.figures import BY_CLOCK, text_of
from tests.client.cli.dashboard.running import ROOT, Dashboard, figures, go, opened, played, until

PAGES = ("overview", "functions", "calls", "memory", "builds", "errors", f"functions/{views.KEY}")
LEAST = {"overview": 60, "functions": 15, "calls": 15, "memory": 15, "builds": 20, "errors": 15}
pytestmark = pytest.mark.slow

STATIC = ROOT / "client" / "jaxd" / "cli" / "dashboard" / "static"


@pytest.fixture(scope="module")
def board(browser: Any) -> Iterator[Dashboard]:
    """Of a server with some of everything."""
    with played("example") as found:
        yield found


def test_every_figure_is_that_of_the_view(browser: Any) -> None:
    """As it arrives, and after changes of a value, a row that comes and one that goes."""
    view = views.example_view()
    patch = {
        "counters": {"saved_s": 98_765.4321, "calls": 1_234_567},
        "functions": {
            views.KEY: {"hits": 77_777, "latency": [0, 5] + [1] * 23},
            "ab" * 16: {"name": "new"},
        },
        "values": {"n/weights": None},
        "calls": {"c0ffef": None, "c0ff00": {"function": "new", "phase": "running"}},
        "events": {"10": {"name": "built", "level": "error", "at": 1.0}},
    }
    with played("example") as own, opened(browser, own.link) as page:
        for where in PAGES:
            go(page, where)
            assert wrong_figures(page, view, LEAST.get(where, 30)) == [], where
        own.order(patch=patch)
        until(page, "document.getElementById('sequence').textContent === '42'")
        after = view.patched({**patch, "sequence": 42})
        assert wrong_figures(page, after, 30) == [], "of the page that was open"
        for where in PAGES:
            go(page, where)
            assert wrong_figures(page, after, LEAST.get(where, 30)) == [], where


def wrong_figures(page: Any, view: ServerView, least: int) -> list[Any]:
    """Figures of the page that are not those of the view, times of the view left out."""
    content = view.to_dict()
    shown = [each for each in figures(page) if each[1] not in BY_CLOCK]
    assert len(shown) >= least
    return [
        (path, text, text_of(content, path, kind))
        for path, kind, text in shown
        if text != text_of(content, path, kind) and not is_time_of_start(path)
    ]


def is_time_of_start(path: str) -> bool:
    """What `example_view` has relative to the moment when it was made."""
    return bool(re.fullmatch(r"/(builds|events)/\d/(queued|at)|-/builds/.*", path))


TILES = {
    "Calls": "1,250",
    "From memory": "1,000",
    "From disk": "7",
    "Compiled": "12",
    "Failed calls": "3",
    "In flight": "2",
    "Functions": "2",
    "Programs": "9",
    "Values": "5",
    "Connections": "2",
    "Received": "12.3 MB",
    "Sent": "456 B",
    "On disk": "98.0 MB",
    "Errors": "1",
}


def test_labels_stand_over_their_figures(page: Any) -> None:
    """Of the first page, and of a row of the functions, under its columns."""
    go(page, "overview")
    labels, texts = (page.locator(f".tile {tag}").all_inner_texts() for tag in ("dt", "dd"))
    assert dict(zip(labels, texts, strict=True)) == TILES
    assert page.inner_text(".hero .large") == "4,321.8 s"
    assert "72 min 01 s." in page.inner_text(".hero")
    assert "12.3 s tracing, 78.9 s compiling, 450 ms loading" in page.inner_text(".hero")
    go(page, "functions")
    heads = page.locator("thead th").all_inner_texts()
    cells = page.locator("tbody tr[data-key]").first.locator("td").all_inner_texts()
    assert dict(zip(heads, cells, strict=True)) | {"Last call": ""} == {
        "Function": "train_step",
        "Where": "train.py:12",
        "Saved": "66 min 40 s",
        "Spent": "78.9 s",
        "Hits": "1,000",
        "Ran": "25.0 s",
        "Compiled": "2",
        "Loaded": "1",
        "In memory": "2",
        "Last call": "",
    }


LOOSE_DIGITS = """
[...document.querySelectorAll('main *')].flatMap((one) => [...one.childNodes])
  .filter((node) => node.nodeType === Node.TEXT_NODE && /[0-9]/.test(node.textContent))
  .filter((node) => !node.parentElement.closest('[data-figure], svg, .reading, option, .bar .dim'))
  .map((node) => node.textContent)
"""


@pytest.mark.parametrize("where", ["overview", "functions", "calls", "builds", "errors"])
def test_every_digit_belongs_to_a_figure(page: Any, where: str) -> None:
    """So that the tests above see all of them; drawings say theirs in words."""
    go(page, where)
    assert page.evaluate(LOOSE_DIGITS) == []


def test_the_pages_can_be_found_without_eyes(page: Any) -> None:
    """Landmarks, headings and names, as a screen reader has them."""
    go(page, "overview")
    tree = page.locator("body").aria_snapshot()
    for part in (
        "- banner:",
        '- navigation "Pages":',
        "- main:",
        '- heading "Overview" [level=2]',
        '- heading "Seconds saved" [level=3]',
        '- region "Seconds saved":',
        '- table "Workers":',
        '- columnheader "Saved"',
        "- status",
        'img "Saved over time: now',
        '- button "Pause"',
        '- link "Overview"',
    ):
        assert part in tree, part


@pytest.mark.parametrize("where", PAGES)
def test_whatever_can_be_used_has_a_name(page: Any, where: str) -> None:
    """In the browser's own accessibility tree; so do drawings, their boxes, and tables."""
    go(page, where)
    roles = {
        "button",
        "link",
        "searchbox",
        "combobox",
        "table",
        "image",
        "listitem",
        "region",
        "meter",
        "textbox",
    }
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(shown) > 10
    named_by_text = {"listitem"}  # of the legend
    assert [
        node["role"]["value"]
        for node in shown
        if not node["name"]["value"].strip() and node["role"]["value"] not in named_by_text
    ] == []


def test_drawings_are_lists_of_sentences(page: Any) -> None:
    """Each box and each bar says what it shows."""
    go(page, "memory")
    assert "session ab12: 64.0 MB" in page.locator(".treemap").aria_snapshot()
    go(page, "builds")
    bars = page.locator(".gantt").aria_snapshot()
    waited = "predict: waited 6.50 s for train_step, loaded from disk in 250 ms. it was on disk"
    assert f'listitem "{waited}"' in bars
    assert page.locator(".gantt .waits").count() == 1


def test_everything_is_reached_by_keys(page: Any) -> None:
    """Pages by digits, the filter by a slash, rows by arrows, and a function by Enter."""
    go(page, "overview")
    page.keyboard.press("2")
    page.wait_for_selector("h2:text-is('Functions')")
    page.keyboard.press("/")
    page.keyboard.type("pred")
    assert page.locator("tbody tr[data-key]").count() == 1
    page.keyboard.press("Escape")
    page.locator(".scroller").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "predict"
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('predict')")
    page.keyboard.press("5")
    page.locator(".gantt [tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.box") == "2"
    assert "waited 6.50 s for train_step" in page.inner_text(".drawing .reading")
    page.keyboard.press("?")
    assert page.locator("dialog[open] h2").inner_text() == "Keys"
    page.keyboard.press("Escape")


def test_a_column_is_sorted_by_a_button(page: Any) -> None:
    """Its heading says so to a screen reader, and the status line says it once."""
    go(page, "functions")
    page.get_by_role("button", name="Hits", exact=True).click()
    assert page.locator("th[aria-sort=descending]").inner_text() == "Hits"
    assert page.locator("tbody tr[data-key] td:first-child").all_inner_texts() == [
        "train_step",
        "predict",
    ]
    page.get_by_role("button", name="Hits", exact=True).click()
    assert page.locator("th[aria-sort=ascending]").inner_text() == "Hits"
    until(page, "document.getElementById('said').textContent === 'Sorted by Hits, ascending'")


def test_the_text_of_a_program_is_read_and_searched(page: Any) -> None:
    """Few of its lines are in the page; each find says its line."""
    go(page, f"functions/{views.KEY}")
    page.get_by_role("button", name="jaxpr", exact=True).click()
    page.wait_for_selector(".lines:not([hidden])")
    assert page.locator(".lines pre > div").count() < 80
    page.get_by_label("Search in the text").fill("add x 250")
    assert "line 502, 1 of 2" in page.inner_text(".reader .bar")
    assert page.locator(".lines .here mark").inner_text() == "add x 250"
    page.get_by_label("Search in the text").press("Enter")
    assert "line 503, 2 of 2" in page.inner_text(".reader .bar")
    page.get_by_role("button", name="Memory, cost, advice").click()
    page.wait_for_selector(".facts table")
    assert "pad x" in page.inner_text(".facts")
    assert "1.00 MB" in page.inner_text(".facts")


ACTIONS = [
    ("calls", "Cancel…", "Cancel it", {"cancel": "c0ffee"}, "Cancelled."),
    ("memory", "Release…", "Release them", {"forget": "weights"}, "Released weights."),
    (
        f"functions/{views.KEY}",
        "Clear…",
        "Clear it",
        {"clear": views.KEY},
        "Cleared: 2 programs dropped.",
    ),
]


@pytest.mark.parametrize(
    ("where", "button", "verb", "done", "said"), ACTIONS, ids=[a[1] for a in ACTIONS]
)
def test_an_action_is_asked_for_twice(
    board: Dashboard, page: Any, where: str, button: str, verb: str, done: Any, said: str
) -> None:
    """Enter and Escape in the question do nothing; what came of it is said."""
    go(page, where)
    for key in ("Enter", "Escape"):
        page.get_by_role("button", name=button).first.click()
        page.keyboard.press(key)
        assert page.locator("dialog[open]").count() == 0
    page.get_by_role("button", name=button).first.click()
    page.get_by_role("button", name=verb).click()
    assert board.said() == done
    until(page, f"document.getElementById('said').textContent === {said!r}")
    assert page.inner_text("#done") == said


def test_a_worker_for_each_principal(browser: Any) -> None:
    """A function has the builds and programs of its own worker; the server is told bare names."""
    with played("tenants") as own, opened(browser, own.link) as page:
        go(page, f"functions/account:alice%2F{views.KEY}")
        tables = page.locator(".content .table")
        assert tables.nth(0).locator("tr[data-key]").count() == 2
        assert tables.nth(1).locator("tr[data-key]").count() == 2
        page.get_by_role("button", name="HLO", exact=True).click()
        page.wait_for_selector(".lines:not([hidden])")
        go(page, "calls")
        page.get_by_role("button", name="Cancel…").first.click()
        page.get_by_role("button", name="Cancel it").click()
        assert own.said() == {"cancel": "c0ffee"}


def test_what_somebody_else_has_named_is_text(browser: Any) -> None:
    """HTML in a name of a function, a reason, an array or an event is shown as it is written."""
    with played("hostile") as own, opened(browser, own.link) as page:
        for where in PAGES:
            go(page, where)
            until(page, "document.body.textContent.includes('<img src=x onerror=')")
            assert page.locator("main img, main b").count() == 0
            assert page.title().endswith("jaxd")


def test_a_server_without_anything(browser: Any) -> None:
    """Each empty list says what to do, and nothing is broken."""
    with played("empty") as own, opened(browser, own.link) as page:
        for where in PAGES:
            go(page, where)
            assert "undefined" not in page.inner_text("body")
            assert "NaN" not in page.inner_text("body")
        go(page, "functions")
        assert "Decorate one with @persistent_call" in page.inner_text("main")


@pytest.mark.parametrize("where", PAGES)
def test_a_telephone_shows_it(board: Dashboard, page: Any, where: str) -> None:
    """At 360 pixels nothing is wider than the screen but tables, which scroll in themselves."""
    page.set_viewport_size({"width": 360, "height": 640})
    try:
        go(page, where)
        until(page, "document.documentElement.scrollWidth <= 360")  # drawings are drawn again
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.slow
def test_light_and_dark(browser: Any) -> None:
    """As the system has it; the switch is stronger, and is remembered."""
    ground = "getComputedStyle(document.body).backgroundColor"
    with played("example") as own, opened(browser, own.link, color_scheme="dark") as page:
        dark = page.evaluate(ground)
        page.emulate_media(color_scheme="light")
        light = page.evaluate(ground)
        assert dark != light
        page.keyboard.press("t")
        page.keyboard.press("t")
        assert page.evaluate(ground) == dark
        assert page.inner_text("#theme") == "Theme: dark"
        page.reload()
        page.wait_for_selector("#connection[data-state=live]")
        assert page.evaluate(ground) == dark


@pytest.mark.slow
def test_a_paused_page_stands_still(browser: Any) -> None:
    """Also on its other pages; then it shows all that it has missed."""
    with played("example") as own, opened(browser, own.link) as page:
        page.keyboard.press("p")
        own.order(patch={"counters": {"calls": 5000}})
        own.order(patch={"counters": {"calls": 5001}})
        own.order(patch={"counters": {"failed_calls": 77}})
        with page.context.new_page() as other:
            other.goto(page.url)
            until(other, "document.getElementById('sequence').textContent === '44'")
        go(page, "errors")
        view = views.example_view()
        assert wrong_figures(page, view, 15) == []
        page.keyboard.press("p")
        until(page, "document.getElementById('sequence').textContent === '44'")
        go(page, "overview")
        assert "5,001" in page.inner_text(".tiles")


def test_all_of_it_is_small() -> None:
    """What a browser loads, the library for charts among it, is at most 400 kB."""
    assert sum(file.stat().st_size for file in STATIC.rglob("*") if file.is_file()) <= 400_000


def test_the_library_for_charts_stands_beside_its_licence() -> None:
    """As its licence asks for, with its version."""
    folder = STATIC / "vendor"
    assert sorted(file.name for file in folder.iterdir()) == [
        "LICENSE",
        "uPlot.iife.min.js",
        "uPlot.min.css",
    ]
    assert "The MIT License" in (folder / "LICENSE").read_text()
    assert re.search(r"uPlot \(v\d+\.\d+\.\d+\)", (folder / "uPlot.iife.min.js").read_text()[:300])
