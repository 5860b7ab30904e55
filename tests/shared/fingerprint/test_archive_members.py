"""How a walk treats what stands in an archive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import WalkResult, walk
from jaxd_protocol.fingerprint.local_archives import LocalArchives
from tests.shared.pickling.processes import write

SHOP = """
import importlib
RATE = 2
def f(x): return x * RATE
def make():
    def inner(x): return x * RATE
    return inner
class Settings: lr = 1
settings = Settings()
"""
MAIN = """
import importlib, sys
import some_shop
from some_shop import f, make, settings
def named(x): return f(x)
def chain(x): return some_shop.RATE * x
def closed(x, inner=make()): return inner(x)
def held(x): return settings.lr * x
def dotted(x): return some_shop.settings.lr * x
def on_class(x): return some_shop.Settings.lr * x
def computes(x, name): return importlib.import_module(name).f(x)
def table(x): return sys.modules["some_shop"].f(x)
def body(x):
    from some_shop import f
    return f(x)
"""


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A program whose package lies in a file."""
    write(tmp_path, {"some_shop.py": SHOP})
    monkeypatch.syspath_prepend(tmp_path)
    program: dict[str, Any] = {"__name__": "no_file"}
    exec(MAIN, program)
    yield program
    del sys.modules["some_shop"]


def walked(value: Any) -> WalkResult:
    """Over a function whose packages travel as files."""
    return walk(value, "it", archives=LocalArchives())


def parts(found: WalkResult, kind: str) -> dict[str, str]:
    """What was found of a kind: name to shown."""
    return {part.name: part.shown for part in found.fingerprint.parts if part.kind == kind}


def test_a_function_in_an_archive_is_not_looked_into(main: dict[str, Any]) -> None:
    """The archive has its code; its module is named as a part."""
    found = walked(main["named"])
    assert parts(found, "function") == {"function named": ""}
    assert "module some_shop" in parts(found, "module")


@pytest.mark.parametrize("name", ["named", "chain", "closed", "held", "on_class", "body"])
def test_every_way_leads_to_the_archive(main: dict[str, Any], name: str) -> None:
    """Its code is in the key."""
    found = walked(main[name])
    assert found.reach.archives is not None
    assert list(found.reach.archives.archive.sources) == ["some_shop"]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("chain", "some_shop.RATE"),
        ("held", "some_shop.settings.lr"),
        ("dotted", "some_shop.settings.lr"),
        ("on_class", "some_shop.Settings.lr"),
    ],
)
def test_a_plain_value_that_is_read_is_a_part(
    main: dict[str, Any], name: str, setting: str
) -> None:
    """The server compares it with its own."""
    main["settings"].lr = 3
    assert list(parts(walked(main[name]), "archived")) == [setting]


def test_code_that_was_put_into_an_archive_is_refused(main: dict[str, Any]) -> None:
    """The server would run what the source makes."""
    main["some_shop"].RATE = main["named"]
    with pytest.raises(PackingError, match=r"some_shop\.RATE, which was replaced by named"):
        walked(main["chain"])


def test_computed_imports_are_allowed_and_the_table_is_not(main: dict[str, Any]) -> None:
    """`sys.modules` of a server has none of the user's."""
    assert not walked(main["computes"]).fingerprint.unshared
    with pytest.raises(PackingError, match=r"uses sys\.modules"):
        walked(main["table"])
    with pytest.raises(PackingError, match=r"ship='source'"):
        walk(main["computes"], "it")
