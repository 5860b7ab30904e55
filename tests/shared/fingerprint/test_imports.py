"""Import statements inside of functions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd_protocol.fingerprint.imports import absolute_name
from tests.shared.fingerprint.defining import digest_of, function, seen

FILES = {
    "inner_one.py": "RATE, OTHER = 1, 2\ndef scale(x): return x * RATE\n",
    "inner_package/__init__.py": "TOP = 1\n",
    "inner_package/sub.py": "DEEP = 1\nOTHER = 2\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules of a user's on this process's path."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("inner_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "level", "package", "expected"),
    [
        ("a.b", 0, "p.q", "a.b"),
        ("a", 1, "p.q", "p.q.a"),
        ("", 1, "p.q", "p.q"),
        ("a", 2, "p.q", "p.a"),
        ("a", 3, "p", "...a"),
        ("a", 1, "", ".a"),
    ],
)
def test_a_relative_name_counts_from_its_package(
    name: str, level: int, package: str, expected: str
) -> None:
    """One that leads out of it names nothing."""
    assert absolute_name(name, level, {"__package__": package}) == expected


STATEMENTS = [
    ("inner_one", "RATE", "import inner_one\nreturn inner_one.RATE"),
    ("inner_one", "RATE", "import inner_one as i\nreturn i.RATE"),
    ("inner_one", "RATE", "from inner_one import RATE\nreturn RATE"),
    ("inner_one", "RATE", "from inner_one import scale\nreturn scale(x)"),
    ("inner_one", "RATE", "from inner_one import RATE as r\nreturn r"),
    ("inner_package.sub", "DEEP", "import inner_package.sub\nreturn inner_package.sub.DEEP"),
    ("inner_package.sub", "DEEP", "import inner_package.sub as s\nreturn s.DEEP"),
    ("inner_package.sub", "DEEP", "from inner_package import sub\nreturn sub.DEEP"),
    ("inner_package.sub", "DEEP", "from inner_package.sub import DEEP\nreturn DEEP"),
]


@pytest.mark.parametrize(("name", "read", "body"), STATEMENTS)
def test_of_a_module_that_is_loaded_what_is_read_counts(name: str, read: str, body: str) -> None:
    """However the statement is written; changes of the rest are none."""
    module = importlib.import_module(name)
    made = function(body)
    walked = seen(made)
    assert name.partition(".")[0] in walked.reach.imports
    assert walked.reach.part_of(module) is not None
    assert walked.reach.sources == {}
    vars(module)["OTHER"] = 9
    assert walked.guards.hold()
    vars(module)[read] = 9
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


@pytest.mark.parametrize(("name", "read", "body"), STATEMENTS)
def test_of_a_module_that_is_not_loaded_the_source_counts(name: str, read: str, body: str) -> None:
    """It is not imported for the sake of the key; when it is loaded, that is noticed."""
    walked = seen(function(body))
    assert name in walked.reach.sources
    assert name not in sys.modules
    assert walked.guards.hold()
    importlib.import_module(name)
    assert not walked.guards.hold()


def test_a_module_that_is_not_there_counts_as_such(folder: Path) -> None:
    """Until it is."""
    made = function("import inner_missing\nreturn inner_missing.A")
    before = digest_of(made)
    assert digest_of(made) == before
    (folder / "inner_missing.py").write_text("A = 1\n")
    importlib.invalidate_caches()
    assert digest_of(made) != before


def test_a_module_that_is_not_there_yet_is_noticed_when_it_comes(folder: Path) -> None:
    """A file that somebody writes while the process runs."""
    walked = seen(function("try:\n    import inner_missing\nexcept ImportError: pass"))
    (folder / "inner_missing.py").write_text("A = 1\n")
    importlib.invalidate_caches()
    assert not walked.guards.hold()


def test_a_package_counts_with_what_is_above_it() -> None:
    """Its parents run, too."""
    walked = seen(function("from inner_package import sub\nreturn sub.DEEP"))
    assert set(walked.reach.sources) == {"inner_package", "inner_package.sub"}


def test_an_installed_module_counts_by_its_name_whether_loaded_or_not() -> None:
    """Which submodules are loaded differs from process to process."""
    body = "import xml.dom.minidom as d\nreturn d.parse(x)"
    for name in [name for name in sys.modules if name.startswith("xml.dom")]:
        del sys.modules[name]
    before = digest_of(function(body))
    importlib.import_module("xml.dom.minidom")
    assert digest_of(function(body)) == before


def test_what_is_imported_and_patched_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a module that is a global."""
    made = function("from json import dumps\nreturn dumps(x)")
    walked = seen(made)
    monkeypatch.setattr("json.dumps", lambda x: x)
    assert not walked.guards.hold()
    again = seen(made)
    assert again.fingerprint.digest != walked.fingerprint.digest
    assert "dumps" in again.reach.carried["json"]
