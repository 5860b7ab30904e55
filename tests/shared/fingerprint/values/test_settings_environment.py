"""Variables of the environment that a function reads."""

from __future__ import annotations

import os
from typing import Any

import pytest

from jaxd_protocol.fingerprint.values.settings import ReadEnvironment
from tests.shared.fingerprint.defining import digest_of, function, part_names, walk_of

READS = [
    "import os\nreturn os.environ['READ']",
    "import os\nreturn os.environ.get('READ')",
    "import os\nreturn os.environ.get('READ', 'a')",
    "import os\nreturn os.getenv('READ')",
    "import os\nreturn os.getenv('READ', 'a')",
    "from os import environ\nreturn environ['READ']",
    "from os import environ\nreturn environ.get('READ')",
    "from os import getenv\nreturn getenv('READ')",
    "return OS.environ['READ']",
    "return ENVIRON['READ']",
    "return GETENV('READ')",
]


def reading(body: str) -> Any:
    """A function with that body."""
    return function(body, OS=os, ENVIRON=os.environ, GETENV=os.getenv)


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is read, and one that is not."""
    monkeypatch.setenv("READ", "one")
    monkeypatch.setenv("UNREAD", "one")


@pytest.mark.parametrize("body", READS)
def test_the_variable_that_is_read_counts(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its change is noticed; no other variable counts, or travels."""
    made = reading(body)
    walked = walk_of(made)
    assert walked.reach.replacements[id(os.environ)].counted == {"READ": "one"}
    assert walked.reach.replacements[id(os.getenv)]("READ") == "one"
    monkeypatch.setenv("UNREAD", "other")
    assert walked.guards.hold()
    assert "variable: environment READ" in part_names(made)
    monkeypatch.setenv("READ", "other")
    assert not walked.guards.hold()
    other = digest_of(made)
    monkeypatch.delenv("READ")
    assert len({walked.fingerprint.digest, other, digest_of(made)}) == 3


@pytest.mark.parametrize(
    "body",
    [
        "import os\nreturn os.environ",
        "import os\nreturn dict(os.environ)",
        "import os\nreturn os.environ[x]",
        "import os\nreturn os.environ.get(x)",
        "import os\nreturn os.getenv(x)",
        "import os\nreturn os.environ.items()",
        "import os\nos.environ['READ'] = x",
        "return ENVIRON",
        "return GETENV(x)",
    ],
)
def test_what_does_not_show_which_variable_is_found_when_it_is_traced(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the walk has none of them; the server's own environment is asked."""
    before = walk_of(reading(body))
    monkeypatch.setenv("READ", "another")
    after = walk_of(reading(body))
    assert before.fingerprint.digest == after.fingerprint.digest
    assert before.reach.replacements[id(os.environ)].counted == {}


def test_a_second_walk_over_the_stand_in_finds_the_same() -> None:
    """As the server does it."""
    body = "return ENVIRON['READ']"
    there = function(body, ENVIRON=ReadEnvironment({"READ": "one"}))
    assert digest_of(there) == digest_of(reading(body))
