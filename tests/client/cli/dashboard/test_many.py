"""Ten thousand functions, and a thousand events a second, do not freeze a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.cli.dashboard.running import Dashboard, go, played, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def board(browser: Any) -> Iterator[Dashboard]:
    """Of a server that knows ten thousand functions."""
    with played("large") as found:
        yield found


def test_few_rows_are_in_the_page(page: Any) -> None:
    """However many there are, and wherever somebody scrolls; a screen reader is told how many."""
    go(page, "functions")
    rows = page.locator("tbody tr[data-key]")
    assert 10 < rows.count() < 80
    assert page.get_attribute("table", "aria-rowcount") == "10001"
    assert "10,000 shown" in page.inner_text(".bar")
    page.locator(".scroller").focus()
    page.keyboard.press("End")
    until(page, "document.activeElement.textContent === 'layer_00000'")
    assert rows.last.get_attribute("aria-rowindex") == "10001"
    assert rows.count() < 80


def sequence(page: Any) -> int:
    """The number of the view that a page shows."""
    return int(page.inner_text("#sequence").replace(",", ""))


def until_shown(page: Any, number: int) -> None:
    """Waits until a page shows the view of that number."""
    until(page, f"document.getElementById('sequence').textContent === '{number:,}'")


def test_it_answers_while_changes_pour_in(board: Dashboard, page: Any) -> None:
    """What is typed is answered between two of five thousand changes, and the last one arrives."""
    go(page, "functions")
    page.evaluate("document.querySelector('.scroller').scrollTop = 0")
    before = sequence(page)
    board.order(burst=5000)
    until(page, f"document.getElementById('sequence').textContent !== '{before:,}'")
    answered = []
    for number in range(5):
        page.fill("#filter", f"layer_0{number}0")
        assert "100 shown" in page.inner_text(".bar")
        answered.append(sequence(page))
    page.fill("#filter", "")
    assert answered[0] < before + 5000, "only after the last of them"
    until_shown(page, before + 5000)
    assert page.locator("nav [data-page=functions]").inner_text().split()[-1] == "10,000"
    assert page.locator("tbody tr[data-key]").count() < 80


def test_no_screen_reader_reads_what_changes(board: Dashboard, page: Any) -> None:
    """The one live region says nothing while figures change."""
    assert page.locator("[aria-live], [role=status], [role=alert], [role=log]").count() == 1
    until(page, "document.getElementById('said').textContent !== ''")  # that it is connected
    page.evaluate(
        "window.said = 0; new MutationObserver(() => window.said++)"
        ".observe(document.getElementById('said'), {childList: true, subtree: true})"
    )
    before = sequence(page)
    board.order(burst=500)
    until_shown(page, before + 500)
    assert page.evaluate("window.said") == 0


def test_a_page_that_was_behind_gets_the_whole_view(board: Dashboard, page: Any) -> None:
    """One that opens later, or was too slow, ends with the same figures as the others."""
    before = sequence(page)
    board.order(burst=500)
    with page.context.new_page() as other:
        other.goto(page.url)
        for each in (page, other):
            until_shown(each, before + 500)
            go(each, "overview")
        tiles = [each.locator(".tiles").first.inner_text() for each in (page, other)]
    assert tiles[0] == tiles[1]
