"""Writes docs/compatibility.md from the results that are kept."""

from __future__ import annotations

from tests.corpus.places import Corpus


def write(corpus: Corpus) -> None:
    """Writes the page."""
