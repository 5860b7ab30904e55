from __future__ import annotations

from jaxd_server.progress import SILENT


def test_nobody_has_to_listen() -> None:
    """The silent event stream takes everything."""
    SILENT("stage", {"stage": "trace"})
