"""What libraries keep in their process, and functions that read it there."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from tests.shared.fingerprint.defining import function, walk_of


@pytest.mark.parametrize(
    "body",
    [
        "return click.get_current_context().params['lr']",
        "return click.get_current_context(silent=True) is None",
        "return current()",
        "return decorated(x)",
    ],
)
def test_click_s_context_is_refused_while_there_is_one(body: str) -> None:
    """Without one the function means the same everywhere, until there is."""
    click: Any = pytest.importorskip("click")
    decorated = click.pass_context(function("return x"))
    current = click.get_current_context
    made = function(body, click=click, current=current, decorated=decorated)
    walked = walk_of(made)
    assert walked.guards.hold()
    with click.Context(click.Command("c")):
        assert not walked.guards.hold()
        with pytest.raises(PackingError, match=r"reads click's context .*outside of the function"):
            walk_of(made)


@pytest.mark.parametrize(
    "body",
    [
        "return gin.query_parameter('scaled.by')",
        "return gin.get_configurable('scaled')(x)",
        "return query('scaled.by')",
    ],
)
def test_gin_s_bindings_are_refused(body: str) -> None:
    """A server has none."""
    gin: Any = pytest.importorskip("gin")
    made = function(body, gin=gin, query=gin.query_parameter)
    with pytest.raises(PackingError, match=r"reads gin's bindings .*outside of the function"):
        walk_of(made)
