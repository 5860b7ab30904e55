"""What a page says when the server is away, and when the dashboard itself ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.cli.dashboard.running import opened, played, until

pytestmark = pytest.mark.slow


def test_a_server_that_is_restarted(browser: Any) -> None:
    """The page says so, keeps what it has, and goes on with the next one's figures."""
    with played("example") as own, opened(browser, own.link) as page:
        own.order(problem="no server runs there. Start one: jaxd start")
        page.wait_for_selector("#connection[data-state=lost]")
        assert page.inner_text("#notice").endswith(
            "last ones: no server runs there. Start one: jaxd start"
        )
        until(page, "document.getElementById('said').textContent.startsWith('The server is away')")
        assert "1,250" in page.inner_text(".tiles")
        own.order(
            problem="", patch={"server": {"pid": 101, "since": 5.0}, "counters": {"calls": 2}}
        )
        page.wait_for_selector("#connection[data-state=live]")
        until(page, "document.querySelector('.tile .figure').textContent === '2'")
        assert page.is_hidden("#notice")
        until(page, "document.getElementById('said').textContent.includes('was restarted')")


def test_ctrl_c(browser: Any) -> None:
    """The dashboard ends in order although pages are open, and each of them says so."""
    with played("example") as own, opened(browser, own.link) as page:
        code, errors = own.end()
        page.wait_for_selector("#connection[data-state=ended]")
        assert "jaxd dashboard" in page.inner_text("#notice")
        assert (code, errors) == (130, "")


def test_a_dashboard_that_is_killed(browser: Any) -> None:
    """The page says that its figures are old."""
    with played("example") as own, browser.new_context() as context:
        page = context.new_page()
        page.goto(own.link)
        page.wait_for_selector("#connection[data-state=live]")
        own.process.kill()
        page.wait_for_selector("#connection[data-state=away]")
        assert "the figures are old" in page.inner_text("#notice")
