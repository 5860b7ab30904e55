"""README.md is one page, every public name has a guide, and sentences use plain words."""

from __future__ import annotations

import re
from typing import Final

import jaxd
from tests.documents.blocks import ROOT, blocks_of, pages

RIDDLES: Final = {
    r"\b(come|comes|came|brings?|brought|sends?|sent) home\b": "is fetched, is sent back",
    r"\banew\b": "again",
    r"in particular\b": "leave it out",
    r"\bwithout a word\b": "without an error, without notice",
    r"\bgiven for good\b": "donated",
    r"\bfor want of\b": "because … was short",
    r"stands for each": "you get a … for each",
    r"\bover there\b": "on that machine",
    r"\blast words\b": "the last lines that it wrote",
}
"""Phrases that a reader stopped at, each with what to write instead."""

_WRITTEN_BY_A_RUN: Final = re.compile(
    r"<!-- (?:transcript|written by)[^>]* -->.*?<!-- end[^>]* -->", re.DOTALL
)
_BESIDE: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
_MAKE: Final = re.compile(r"^\$ (make \S+)", re.MULTILINE)


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_the_readme_is_one_page_with_two_commands_to_begin() -> None:
    """What it does not have room for has a page of its own."""
    assert len(_text("README.md").splitlines()) <= 150
    assert _MAKE.findall(_text("README.md")) == ["make demo", "make test"]
    assert _MAKE.findall(blocks_of("README.md")[0].text) == ["make demo", "make test"]


def test_the_index_has_a_link_for_each_page_of_the_site() -> None:
    """A forge shows a toctree as it is written, so each section lists its pages as well."""
    linked = re.findall(r"^\* \[.+?\]\((.+?)\): ", _text("docs/index.md"), re.MULTILINE)
    assert "\n".join(linked) == "\n".join(
        block.text.partition("\n\n")[2].rstrip()
        for block in blocks_of("docs/index.md")
        if block.language == "{toctree}"
    )


def test_a_public_name_has_a_guide_and_its_docstring_is_in_the_reference() -> None:
    """The guide is in some page beside the reference and the changelog."""
    guides = "\n".join(_text(page) for page in pages() if page != "docs/api.md")
    for name in [name for name in jaxd.__all__ if name[0].isalpha()]:
        assert re.search(rf"\b{name}\b", guides), name
        assert f":: jaxd.{name}\n" in _text("docs/api.md")


def test_no_sentence_has_a_phrase_that_readers_stopped_at() -> None:
    """But for what a run has written there, in the words of its tests."""
    for page in (*pages(), *_BESIDE):
        assert (page, riddles(_WRITTEN_BY_A_RUN.sub("", _text(page)))) == (page, {})


def riddles(text: str) -> dict[str, str]:
    """The phrases that are in a text, each with what to write instead."""
    found = [(m[0], instead) for r, instead in RIDDLES.items() for m in re.finditer(r, text)]
    return {re.sub(r"\s+", " ", phrase): instead for phrase, instead in found}
