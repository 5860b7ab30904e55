"""Import statements inside of functions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared.fingerprint.defining import digest_of, function, part_names, walk_of

FILES = {
    "inner_one.py": "RATE, OTHER = 1, 2\ndef scale(x): return x * RATE\n",
    "inner_package/__init__.py": "TOP = 1\n",
    "inner_package/sub.py": "DEEP = 1\nOTHER = 2\n",
    "late_one.py": "import json, numpy\nimport late_two\nfrom late_package import inner\nVALUE = 1",
    "late_two.py": "import late_one\nVALUE = 2",
    "late_package/__init__.py": "from . import beside\n",
    "late_package/inner.py": "from .beside import VALUE\n",
    "late_package/beside.py": "VALUE = 3\n",
    "late_other.py": "VALUE = 4\n",
}
REACHED = {"late_one", "late_two", "late_package", "late_package.inner", "late_package.beside"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules of a user's on this process's path."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("inner_", "late_"))]:
        del sys.modules[name]


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
    walked = walk_of(made)
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
    walked = walk_of(function(body))
    assert name in walked.reach.sources
    assert name not in sys.modules
    assert walked.guards.hold()
    importlib.import_module(name)
    assert not walked.guards.hold()


def test_a_module_that_is_not_there_yet_is_noticed_when_it_comes(folder: Path) -> None:
    """A file that somebody writes while the process runs."""
    walked = walk_of(function("try:\n    import inner_missing\nexcept ImportError: pass"))
    (folder / "inner_missing.py").write_text("A = 1\n")
    importlib.invalidate_caches()
    assert not walked.guards.hold()


def test_a_package_counts_with_what_is_above_it() -> None:
    """Its parents run, too."""
    walked = walk_of(function("from inner_package import sub\nreturn sub.DEEP"))
    assert set(walked.reach.sources) == {"inner_package", "inner_package.sub"}


def test_an_installed_module_counts_by_its_name_whether_loaded_or_not() -> None:
    """Which submodules are loaded differs from process to process."""
    body = "import xml.dom.minidom as d\nreturn d.parse(x)"
    for name in [name for name in sys.modules if name.startswith("xml.dom")]:
        del sys.modules[name]
    before = digest_of(function(body))
    importlib.import_module("xml.dom.minidom")
    assert digest_of(function(body)) == before


STEP = function("import late_one\nreturn late_one.VALUE")


def test_those_that_it_imports_in_turn_are_found(folder: Path) -> None:
    """However they are written, in a circle too; nothing is imported here."""
    walked = walk_of(STEP)
    assert set(walked.reach.sources) == REACHED
    assert walked.reach.sources["late_package"].is_package
    assert not REACHED & set(sys.modules)
    assert set(walked.fingerprint.packages) == {"numpy"}
    assert {f"module: module {name}" for name in REACHED} <= set(part_names(STEP))


@pytest.mark.parametrize("name", ["late_one.py", "late_two.py", "late_package/beside.py"])
def test_an_edit_of_any_of_them_counts_and_is_noticed(folder: Path, name: str) -> None:
    """At the next look."""
    before = walk_of(STEP)
    assert before.guards.hold()
    (folder / name).write_text(FILES[name] + "\nMORE = 100\n")
    assert not before.guards.hold()
    assert digest_of(STEP) != before.fingerprint.digest


def test_an_edit_of_another_one_does_not(folder: Path) -> None:
    """Which nobody imports."""
    before = walk_of(STEP)
    (folder / "late_other.py").write_text("VALUE = 100\n")
    assert before.guards.hold()


def test_one_that_was_imported_meanwhile_counts_as_it_is(folder: Path) -> None:
    """By value, as any module."""
    before = walk_of(STEP)
    import late_package.beside  # type: ignore[import-not-found]

    assert not before.guards.hold()
    reach = walk_of(STEP).reach
    assert reach.imports["late_package.beside"] is late_package.beside
    assert set(reach.sources) == {"late_one", "late_two", "late_package.inner"}
    vars(late_package.beside)["VALUE"] = 4
    assert digest_of(STEP) != before.fingerprint.digest
