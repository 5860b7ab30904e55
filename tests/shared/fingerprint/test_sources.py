"""Modules that reached code imports and that are not imported yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared.fingerprint.defining import digest_of, function, part_names, seen

FILES = {
    "late_one.py": "import json, numpy\nimport late_two\nfrom late_package import inner\nVALUE = 1",
    "late_two.py": "import late_one\nVALUE = 2",
    "late_package/__init__.py": "from . import beside\n",
    "late_package/inner.py": "from .beside import VALUE\n",
    "late_package/beside.py": "VALUE = 3\n",
    "late_other.py": "VALUE = 4\n",
}
REACHED = {"late_one", "late_two", "late_package", "late_package.inner", "late_package.beside"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules of a user's on this process's path."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("late_")]:
        del sys.modules[name]


STEP = function("import late_one\nreturn late_one.VALUE")


def test_those_that_it_imports_in_turn_are_found(folder: Path) -> None:
    """However they are written, in a circle too; nothing is imported here."""
    walked = seen(STEP)
    assert set(walked.reach.sources) == REACHED
    assert walked.reach.sources["late_package"].is_package
    assert not REACHED & set(sys.modules)
    assert set(walked.fingerprint.packages) == {"numpy"}
    assert {f"module: module {name}" for name in REACHED} <= set(part_names(STEP))


@pytest.mark.parametrize("name", ["late_one.py", "late_two.py", "late_package/beside.py"])
def test_an_edit_of_any_of_them_counts_and_is_noticed(folder: Path, name: str) -> None:
    """At the next look."""
    before = seen(STEP)
    assert before.guards.hold()
    (folder / name).write_text(FILES[name] + "\nMORE = 100\n")
    assert not before.guards.hold()
    assert digest_of(STEP) != before.fingerprint.digest


def test_an_edit_of_another_one_does_not(folder: Path) -> None:
    """Which nobody imports."""
    before = seen(STEP)
    (folder / "late_other.py").write_text("VALUE = 100\n")
    assert before.guards.hold()


def test_one_that_was_imported_meanwhile_counts_as_it_is(folder: Path) -> None:
    """By value, as any module."""
    before = seen(STEP)
    import late_package.beside  # type: ignore[import-not-found]

    assert not before.guards.hold()
    reach = seen(STEP).reach
    assert reach.imports["late_package.beside"] is late_package.beside
    assert set(reach.sources) == {"late_one", "late_two", "late_package.inner"}
    vars(late_package.beside)["VALUE"] = 4
    assert digest_of(STEP) != before.fingerprint.digest
